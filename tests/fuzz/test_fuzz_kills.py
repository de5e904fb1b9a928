"""kill -9 before any operation on a file, in any kind of run: resume gives the uninterrupted run's results."""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked
import hypothesis
import pytest
import small_runs
from hypothesis import strategies as st
from tests.engines.test_lanes import assert_equal

import cpfl

TIMES = int(os.environ.get("FUZZ", "1"))
FUZZ = hypothesis.settings.get_profile("fuzz")
JOINT = {"stopping.rule": "joint", "stopping.eval_interval": 2, "stopping.min_gain": 0, "max_rounds": 4}
MEET = {"meetings.rule": "mean", "meetings.interval": "15s", "max_rounds": 4}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "written later": {"checkpoint_seconds": 0.02},
    "joint": JOINT,
    "joint, moving average": JOINT | {"stopping.keep": "ema"},
    "meetings": MEET,
    "meetings, moving average, momentum": MEET | {"stopping.keep": "ema", "federation.server": "fedavgm"},
    "meetings, drawn anew": MEET | {"meetings.redraw": True},
    "meetings one by one": MEET | {"meetings.rule": "asynchronous", "meetings.rule_args.momentum": 0.5},
    "joint at meetings": MEET | {"stopping.rule": "joint", "stopping.min_gain": 0},
    "scaffold": {"federation.client": "scaffold", "federation.momentum": 0},
    "feddyn": {"federation.client": "feddyn", "federation.momentum": 0},
    "fedadam": {"federation.server": "fedadam"},
    "fedavgm": {"federation.server": "fedavgm"},
    "oort": {"federation.selection": "oort", "federation.participants": 1},
    "stale": {"federation.deadline": 20, "federation.straggler_policy": "stale"},
    "partial": {"federation.deadline": 20, "federation.straggler_policy": "partial"},
    "buffered": {"federation.buffer_size": 1},
    "crashing clients": {"devices.crash_rate": 0.2},
    "available at times": {"devices.availability": "synthetic"},
    "snapshots by time": {"snapshots": "10s"},
    "quorum": {"distillation.quorum": 0.5},
}
SMALL = {"max_rounds": 4, "distillation.epochs": 2}
COMMON: dict[str, Any] = {"device": "cpu", "workers": 1}
ENGINES = ["reference", "reference", "workers", "workers"]
if TIMES > 1:  # a process with lanes imports for seconds: only where many of them share the import
    ENGINES.append("lanes")
    forked.CONTEXT.set_forkserver_preload([*forked.PRELOADED, "torch._dynamo"])

Make = Callable[[str, str, str], Path]


def settings(kind: str, engine: str) -> dict[str, Any]:
    """In float64 lanes are equal after a resume, up to rounding."""
    precise = {"precision": "float64"} if engine == "lanes" else {}
    return small_runs.settings_with(SMALL | KINDS[kind] | precise)


def run(path: Path, kind: str, engine: str) -> None:
    """Run or resume."""
    if (path / "run.json").exists():
        cpfl.resume(path, **COMMON)
    else:
        cpfl.run("digits", settings=settings(kind, engine), out=path, engine=engine, **COMMON)


def sweep(path: Path, kind: str, engine: str) -> None:
    """Two runs, or what is missing of them."""
    if (path / "sweep.json").exists():
        cpfl.sweep(path, **COMMON)
    else:
        chosen = {key: value for key, value in settings(kind, engine).items() if key != "cohorts"}
        cpfl.sweep("digits", cohorts=[1, 2], settings=chosen, out=path, engine=engine, **COMMON)


def distillation(path: Path, kind: str, engine: str) -> None:
    """Another distillation of a finished run."""
    cpfl.distill(path, name="later", device="cpu", epochs=3)


WORKS = {one.__name__: one for one in (run, sweep, distillation)}


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """The folder after uninterrupted work; made once, only for reading."""
    made: dict[tuple[str, str, str], Path] = {}

    def make(work: str, kind: str, engine: str) -> Path:
        if (work, kind, engine) not in made:
            path = tmp_path_factory.mktemp("unbroken") / "run"
            if work == "distillation":
                shutil.copytree(make("run", kind, engine), path)
            WORKS[work](path, kind, engine)
            made[work, kind, engine] = path
        return made[work, kind, engine]

    return make


def test_every_kind_is_allowed() -> None:
    for kind in KINDS:
        cpfl.load_experiment("digits", [f"{key}={value}" for key, value in settings(kind, "lanes").items()])


@hypothesis.settings(FUZZ, max_examples=4 * TIMES)
@hypothesis.given(
    work=st.sampled_from(["run", "run", "run", "sweep", "distillation"]),
    kind=st.sampled_from(sorted(KINDS)),
    engine=st.sampled_from(ENGINES),
    mode=st.sampled_from(["kill", "kill", "kill", "torn"]),
    share=st.floats(0, 1),
)
def test_killed_and_resumed(
    work: str,
    kind: str,
    engine: str,
    mode: str,
    share: float,
    unbroken: Make,
    tmp_path_factory: pytest.TempPathFactory,
    tally: Counter[str],
) -> None:
    path = tmp_path_factory.mktemp("killed") / "run"
    if work == "distillation":
        shutil.copytree(unbroken("run", kind, engine), path)
        words = ["distill", str(path), "--name", "later", "--device", "cpu", "--set", "distillation.epochs=3"]
    else:
        words = ["sweep" if work == "sweep" else "run", "digits", "--engine", engine, "--workers", "1"]
        words += ["--device", "cpu", "--out", str(path)]
        if work == "sweep":
            words += ["--cohorts", "1,2"]
        for key, value in settings(kind, engine).items():
            if (work, key) != ("sweep", "cohorts"):
                words += ["--set", f"{key}={value}"]
    last = {"run": 140, "sweep": 150, "distillation": 20}[work] // (4 if mode == "torn" else 1)
    dead = small_runs.cpfl(*words, driver=(mode, str(1 + round(share * last))))
    assert dead.returncode in (0, -signal.SIGKILL), dead.stderr  # 0: it had fewer operations
    tally[f"kills: {work}" if dead.returncode else "runs that ended before their kill"] += 1
    tally[f"kills on {engine}"] += dead.returncode != 0
    tally["kills"] += dead.returncode != 0
    WORKS[work](path, kind, engine)
    whole = unbroken(work, kind, engine)
    pairs = [(path, whole)]
    if work == "sweep":
        pairs = [(path / one.name, one) for one in sorted(whole.glob("n*"))]
    elif work == "distillation":
        pairs = [(path / "distillations/later", whole / "distillations/later")]
    for one, other in pairs:
        if engine == "lanes" and work != "distillation":
            assert_equal(cpfl.load_run(one), cpfl.load_run(other))
        else:
            assert small_runs.differing(one, other) == []
    assert list(path.rglob(".*.part")) == []
    shutil.rmtree(path.parent)
