"""kill -9 before any operation on a file, in any kind of run: resume gives the uninterrupted run's results."""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from typing import Any

import hypothesis
import pytest
import small_runs
from hypothesis import strategies as st

from cpfl import api

TIMES = int(os.environ.get("FUZZ", "1"))
FUZZ = hypothesis.settings.get_profile("fuzz")
JOINT = {"stopping.rule": "joint", "stopping.eval_interval": 2, "stopping.min_gain": 0, "max_rounds": 4}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "written later": {"checkpoint_seconds": 0.02},
    "joint": JOINT,
    "joint, moving average": JOINT | {"stopping.keep": "ema"},
    "scaffold": {"federation.client": "scaffold"},
    "feddyn": {"federation.client": "feddyn"},
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


@hypothesis.settings(FUZZ, max_examples=4 * TIMES)
@hypothesis.given(
    kind=st.sampled_from(sorted(KINDS)),
    engine=st.sampled_from(["reference", "reference", "workers"]),
    mode=st.sampled_from(["kill", "kill", "kill", "torn"]),
    operation=st.integers(1, 160),
)
def test_killed_and_resumed(
    kind: str,
    engine: str,
    mode: str,
    operation: int,
    unbroken: small_runs.Unbroken,
    tmp_path_factory: pytest.TempPathFactory,
    tally: Counter[str],
) -> None:
    path = tmp_path_factory.mktemp("killed") / "run"
    words = [*small_runs.run_words(path, KINDS[kind]), "--engine", engine, "--workers", "1"]
    dead = small_runs.cpfl(*words, driver=(mode, str(operation)))
    assert dead.returncode in (0, -signal.SIGKILL), dead.stderr  # 0: it had fewer operations
    tally["kills" if dead.returncode else "runs that ended before their kill"] += 1
    if (path / "run.json").exists():
        api.resume(path, device="cpu", workers=1)
    else:
        settings = small_runs.settings_with(KINDS[kind])
        api.run("digits", settings=settings, out=path, engine=engine, device="cpu", workers=1)
    assert small_runs.differing(path, unbroken(engine, **KINDS[kind])) == []
    shutil.rmtree(path.parent)


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A finished, uninterrupted run with these settings; made once, only for reading."""
    made: dict[str, Any] = {}

    def make(engine: str, **settings: Any) -> Any:
        key = repr((engine, sorted(settings.items())))
        if key not in made:
            out, chosen = tmp_path_factory.mktemp("unbroken") / "run", small_runs.settings_with(settings)
            made[key] = api.run("digits", settings=chosen, out=out, engine=engine, device="cpu", workers=1).path
        return made[key]

    return make
