"""Options that would change nothing are refused; where that would be wrong, a message says so."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import cpfl
from cpfl.callbacks import Callback
from cpfl.engines.reference import ReferenceEngine
from cpfl.errors import RunFolderError, SettingError

if TYPE_CHECKING:  # there are several conftest modules: no import of it is sure to be this one
    from conftest import Command

FEW = {"clients": 6, "cohorts": 2, "max_rounds": 1, "data.train_limit": 200, "data.public_limit": 60}
FEW |= {"model.args.hidden": 8, "distillation.epochs": 1}


class Messages(Callback):
    """Keeps them."""

    def __init__(self) -> None:
        self.all: list[str] = []

    def on_message(self, text: str) -> None:
        self.all.append(text)

    def about(self, word: str) -> list[str]:
        return [text for text in self.all if word in text]


def run(out: Path, callback: Callback | None = None, **more: Any) -> cpfl.Run:
    return cpfl.run("digits", out=out, device="cpu", callback=callback, **more)


@pytest.mark.parametrize("engine", ["reference", "lanes"])
def test_workers_of_an_engine_without_them(engine: str, tmp_path: Path, cpfl_command: Command) -> None:
    with pytest.raises(SettingError, match=f"workers = 2 has no effect with engine = '{engine}'"):
        run(tmp_path / "run", settings=FEW, engine=engine, workers=2)
    with pytest.raises(SettingError, match="workers = 2 has no effect"):
        cpfl.sweep("digits", cohorts=[1, 2], settings=FEW, out=tmp_path / "run", engine=engine, workers=2, device="cpu")
    answer = cpfl_command("run", "digits", "--engine", engine, "--workers", "2", "--out", "run")
    assert (answer.code, answer.err.count("\n")) == (2, 1), answer.err
    assert not (tmp_path / "run").exists()


def test_workers_of_an_engine_of_ones_own(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="workers = 2 has no effect: an engine of your own"):
        run(tmp_path / "run", settings=FEW, engine=ReferenceEngine.__new__(ReferenceEngine), workers=2)


def test_one_worker_is_what_one_process_is(tmp_path: Path) -> None:
    """A resumed run takes the engine that it began with, so its workers are no mistake."""
    said = Messages()
    made = run(tmp_path / "run", said, settings=FEW, engine="reference", workers=1)
    assert not said.about("workers")
    (made.path / "summary.json").unlink()
    cpfl.resume(made.path, device="cpu", workers=2, callback=said)
    assert said.about("workers = 2 has no effect here: the engine reference trains in one process")


def test_a_single_run_has_no_jobs(finished: Path, cpfl_command: Command) -> None:
    answer = cpfl_command("resume", finished, "--jobs", "2")
    assert answer.code == 2
    assert "--jobs 2 is for the runs of a sweep" in answer.err


def test_more_participants_than_clients(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"federation\.participants = 7 is more than clients = 6"):
        run(tmp_path / "run", settings=FEW | {"federation.participants": 7})
    said = Messages()
    run(tmp_path / "some", said, settings=FEW | {"federation.participants": 3})
    assert not said.about("participants")
    run(tmp_path / "all", said, settings=FEW | {"federation.participants": 4})
    assert said.about("federation.participants = 4: no cohort has so many clients, all of at most 3 take part")


def test_the_arithmetic_of_a_gpu(tmp_path: Path) -> None:
    """A preset may run on both."""
    said = Messages()
    run(tmp_path / "run", said, settings=FEW | {"precision": "tf32"})
    assert said.about("precision = tf32")


def test_nothing_is_distilled_from_one_cohort(tmp_path: Path) -> None:
    """No mistake: scripts give the same settings for every n."""
    said = Messages()
    run(tmp_path / "one", said, settings=FEW | {"cohorts": 1, "distillation.lr": 0.01})
    assert said.about("cohorts = 1: nothing is distilled")
    for settings, noted in (({"lr": 0.02}, True), ({}, False), ({"at": "1s", "unfinished": "drop"}, False)):
        said = Messages()
        with suppress(RunFolderError):  # nobody has stopped so early
            cpfl.distill(tmp_path / "one", callback=said, device="cpu", **settings)
        assert bool(said.about("cohorts = 1: nothing is distilled")) == noted
    said = Messages()
    run(tmp_path / "two", said, settings=FEW)
    assert not said.about("distilled")
