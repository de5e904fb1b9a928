"""Any damage to a file of a run: refused in one sentence, or the outcome is that of the undamaged run."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest
import small_runs
from hypothesis import strategies as st
from strategies import damaged, damages

import cpfl
from cpfl.errors import CpflError

TIMES = int(os.environ.get("FUZZ", "1"))
FUZZ = hypothesis.settings.get_profile("fuzz")
KINDS = {
    "plateau": {},
    "joint": {"stopping.rule": "joint", "stopping.eval_interval": 2, "stopping.min_gain": 0, "max_rounds": 6},
}

DISTILLATIONS: dict[str, dict[str, str]] = {"again": {}, "earlier": {"at": "50s"}}  # the second one reads snapshots


class Stop(cpfl.Callback):
    """Ends a run after so many rounds, as a kill would."""

    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def on_round(self, session: object, closed: object) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Of every kind, an unfinished run and the finished one."""
    made = {}
    for kind, changes in KINDS.items():
        folder, settings = tmp_path_factory.mktemp(kind), small_runs.settings_with(changes)
        whole = cpfl.run("digits", settings=settings, out=folder / "whole", engine="reference", device="cpu").path
        with contextlib.suppress(KeyboardInterrupt):
            cpfl.run(
                "digits", settings=settings, out=folder / "part", engine="reference", device="cpu", callback=Stop(10)
            )
        for name, changes in DISTILLATIONS.items():
            cpfl.distill(whole, name=name, device="cpu", **changes)
        made[kind] = (folder / "part", whole)
    return made


@hypothesis.settings(FUZZ, max_examples=16 * TIMES)
@hypothesis.given(
    kind=st.sampled_from(sorted(KINDS)),
    command=st.sampled_from(["resume", *DISTILLATIONS]),
    number=st.integers(0, 10**6),
    damage=damages(),
)
def test_a_damaged_file_of_a_run(
    kind: str,
    command: str,
    number: int,
    damage: tuple[str, int, int],
    runs: dict[str, tuple[Path, Path]],
    tmp_path_factory: pytest.TempPathFactory,
    tally: Counter[str],
) -> None:
    part, whole = runs[kind]
    path = tmp_path_factory.mktemp("damaged") / "run"
    shutil.copytree(part if command == "resume" else whole, path)
    shutil.rmtree(path / "distillations", ignore_errors=True)
    every = sorted(file for file in path.rglob("*") if file.is_file())
    file, (how, place, byte) = every[number % len(every)], damage
    touched = [file]
    if how == "delete":
        file.unlink()
    elif how == "swap":
        touched.append(other := every[place % len(every)])
        first, second = file.read_bytes(), other.read_bytes()
        file.write_bytes(second)
        other.write_bytes(first)
    else:
        new = damaged(file.read_bytes(), how, place, byte)
        hypothesis.assume(new is not None)
        assert new is not None
        file.write_bytes(new)
    tally["damaged files"] += 1
    sentence = ""
    try:
        if command == "resume":
            cpfl.resume(path, device="cpu")
            unread = {str(one.relative_to(path)) for one in touched if one.parent.name == "snapshots"}
            assert set(small_runs.differing(path, whole)) <= unread  # later distillations refuse them
        else:
            cpfl.distill(path, name=command, device="cpu", **DISTILLATIONS[command])
            model = Path("distillations", command, "models/global.safetensors")
            assert (path / model).read_bytes() == (whole / model).read_bytes()
    except CpflError as refused:
        tally["damage refused"] += 1
        sentence = str(refused)
    assert "\n" not in sentence
    assert len(sentence) < 500
    for read in READERS:
        with contextlib.suppress(CpflError):
            read(path)
    shutil.rmtree(path.parent)


def overview(path: Path) -> None:
    from cpfl.report import tables

    tables.overview(path)


def contents(path: Path) -> None:
    run = cpfl.load_run(path)
    _ = run.experiment, run.summary, run.rounds


READERS: tuple[Callable[[Path], None], ...] = (overview, contents)
