"""What users plug into a run from Python: callbacks that follow and stop it, and engines of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import MEASURED, OWN

import cpfl
from cpfl.callbacks import CallbackList
from cpfl.distillation.student import EpochRecord
from cpfl.engines.base import OnRound
from cpfl.engines.reference import ReferenceEngine
from cpfl.federation.session import ClosedRound, Session
from cpfl.task.task import Task

QUICK: dict[str, Any] = {"max_rounds": 8, "distillation.epochs": 2, "checkpoint_seconds": 0}


class Stopper(cpfl.Callback):
    """Has `on_round` only: stops the run after so many rounds of all cohorts."""

    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def on_round(self, session: Session, closed: ClosedRound) -> bool:
        self.left -= 1
        return self.left == 0


class Recorder(cpfl.Callback):
    """Keeps every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def on_start(self, sessions: Sequence[Session]) -> None:
        self.calls.append(("start", [session.round for session in sessions]))

    def on_round(self, session: Session, closed: ClosedRound) -> None:
        self.calls.append(("round", (closed.record.cohort, closed.record.round)))

    def on_epoch(self, record: EpochRecord) -> None:
        self.calls.append(("epoch", record.epoch))

    def on_end(self, summary: Mapping[str, Any] | None) -> None:
        self.calls.append(("end", summary))


def run(path: Path, engine: str | cpfl.Engine = "reference", **more: Any) -> cpfl.Run:
    settings = QUICK | more.pop("settings", {})
    return cpfl.run("digits", settings=settings, out=path, engine=engine, device="cpu", workers=1, **more)


def comparable(one: cpfl.Run) -> dict[str, Any]:
    """The summary without wall-clock measurements and the engine's name."""
    return {key: value for key, value in one.summary.items() if key not in MEASURED | OWN | {"engine"}}


def last_records(one: cpfl.Run) -> list[dict[str, Any]]:
    return list({line["cohort"]: line for line in one.rounds}.values())


def test_a_callback_may_have_one_method(tmp_path: Path) -> None:
    """One that never stops changes nothing."""
    followed = run(tmp_path / "followed", callback=Stopper(10**6))
    assert comparable(followed) == comparable(run(tmp_path / "alone"))


@pytest.mark.parametrize("engine", ["reference", "workers", "lanes"])
def test_a_callback_stops_the_run(engine: str, tmp_path: Path) -> None:
    stopped = run(tmp_path / "run", engine, callback=Stopper(9))
    last = last_records(stopped)
    assert [line["stop"] for line in last] == ["callback"] * 4
    assert not any(line["stop"] for line in stopped.rounds if line not in last)
    assert all(line["round"] < QUICK["max_rounds"] for line in last)
    assert stopped.summary["rounds"] == len(stopped.rounds)
    assert {cohort["stop"] for cohort in stopped.summary["by_cohort"]} == {"callback"}
    assert stopped.summary["teachers"] == [0, 1, 2, 3]
    assert len((stopped.path / "epochs.jsonl").read_text().splitlines()) == 2
    assert stopped.model


def test_a_run_that_a_callback_stopped_is_finished(tmp_path: Path) -> None:
    stopped = run(tmp_path / "run", callback=Stopper(9))
    before = {file: file.stat().st_mtime_ns for file in stopped.path.rglob("*")}
    assert cpfl.resume(stopped.path) == stopped
    assert {file: file.stat().st_mtime_ns for file in stopped.path.rglob("*")} == before
    again = cpfl.distill(stopped.path, device="cpu")
    assert again["student_accuracy"] == stopped.summary["student_accuracy"]


def test_a_run_is_stopped_at_the_end_of_a_phase(tmp_path: Path) -> None:
    """The stopping rule joint: all cohorts wait for an evaluation, of which the callback hears afterwards."""
    joint = {"stopping.rule": "joint", "stopping.eval_interval": 2, "stopping.min_gain": 0, "max_rounds": 20}
    stopped = run(tmp_path / "run", settings=joint, callback=Stopper(8))  # the second round of the last cohort
    assert {line["stop"] for line in last_records(stopped)} == {"callback"}
    assert max(line["round"] for line in stopped.rounds) <= 4
    assert stopped.summary["student_accuracy"] > 0


def test_all_calls_in_their_order(tmp_path: Path) -> None:
    recorder = Recorder()
    finished = run(tmp_path / "run", settings={"max_rounds": 2}, callback=recorder)
    kinds = [kind for kind, _ in recorder.calls]
    assert kinds == ["start", *["round"] * 8, "epoch", "epoch", "end"]
    assert recorder.calls[0][1] == [0] * 4
    rounds = [(line["cohort"], line["round"]) for line in finished.rounds]
    assert sorted(facts for kind, facts in recorder.calls if kind == "round") == rounds
    assert recorder.calls[-1][1] == finished.summary


def test_the_end_of_an_interrupted_run_has_no_summary(tmp_path: Path, interrupter: Any) -> None:
    recorder = Recorder()
    with pytest.raises(interrupter.Enough):
        run(tmp_path / "run", callback=CallbackList(recorder, interrupter(6)))
    assert recorder.calls[-1] == ("end", None)
    resumed = Recorder()
    cpfl.resume(tmp_path / "run", device="cpu", callback=resumed)
    assert sum(resumed.calls[0][1]) == 6
    assert resumed.calls[-1][0] == "end"


def test_all_callbacks_of_a_list_see_a_round_that_one_of_them_stops(tmp_path: Path) -> None:
    first, second = Recorder(), Recorder()
    stopped = run(tmp_path / "run", callback=CallbackList(first, Stopper(5), second))
    assert first.calls == second.calls
    assert {line["stop"] for line in last_records(stopped)} == {"callback"}


class Wrapping(cpfl.Engine):
    """Lets another engine do the work, and counts rounds."""

    name = "wrapping"

    def __init__(self) -> None:
        self.rounds, self.closed = 0, False

    def prepare(self, task: Task, device: torch.device) -> None:
        self._engine, self.device = ReferenceEngine(task, device), device.type

    def train_cohorts(self, sessions: Sequence[Session], on_round: OnRound) -> None:
        def counted(session: Session, closed: ClosedRound) -> None:
            self.rounds += 1
            on_round(session, closed)

        self._engine.train_cohorts(sessions, counted)

    def close(self) -> None:
        self.closed = True


class Lazy(ReferenceEngine):
    """Learns its task when the run starts."""

    name = "lazy"

    def __init__(self) -> None:
        pass

    def prepare(self, task: Task, device: torch.device) -> None:
        super().__init__(task, device)


def test_an_engine_of_the_user_equals_the_one_it_is_made_of(tmp_path: Path) -> None:
    expected, wrapping = run(tmp_path / "reference"), Wrapping()
    for engine in (wrapping, Lazy()):
        own = run(tmp_path / engine.name, engine)
        assert own.summary["engine"] == engine.name
        assert comparable(own) == comparable(expected)
        assert own.rounds == expected.rounds
        assert all(value.equal(own.model[name]) for name, value in expected.model.items())
    assert (wrapping.rounds, wrapping.closed) == (expected.summary["rounds"], True)


def test_a_run_with_an_engine_of_the_user_is_resumed_with_it(tmp_path: Path, interrupter: Any) -> None:
    expected = run(tmp_path / "whole")
    with pytest.raises(interrupter.Enough):
        run(tmp_path / "killed", Wrapping(), callback=interrupter(6))
    with pytest.raises(cpfl.CpflError, match="wrapping"):
        cpfl.resume(tmp_path / "killed", device="cpu")
    resumed = cpfl.resume(tmp_path / "killed", device="cpu", engine=Wrapping())
    assert comparable(resumed) == comparable(expected)
    assert resumed.rounds == expected.rounds
