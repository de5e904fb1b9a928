"""kill -9 in rounds with crashes, stragglers or FedBuff: pending work and the state of selection rules survive."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import small_runs
import torch
from small_runs import Unbroken, made_by_hand

from cpfl import Selection, api
from cpfl.devices.fleet import Fleet
from cpfl.federation.session import ClientResult, RoundRequest, RoundResult, Session
from cpfl.runs import writer
from cpfl.settings import Experiment

CASES: dict[str, dict[str, Any]] = {
    "oort": {
        "clients": 12, "federation.selection": "oort", "federation.participants": 2, "federation.over_selection": 0.5,
        "devices.crash_rate": 0.2,
    },
    "refl, stale": {
        "clients": 12, "federation.selection": "refl", "federation.participants": 1, "federation.over_selection": 1,
        "federation.straggler_policy": "stale", "devices.availability": "synthetic",
    },
    "fedbuff": {"clients": 12, "federation.buffer_size": 2, "federation.concurrency": 3},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_killed_and_resumed(case: str, tmp_path: Path, unbroken: Unbroken) -> None:
    whole, path = unbroken(**CASES[case]), tmp_path / "run"
    words = small_runs.run_words(path, CASES[case])
    killed = small_runs.cpfl(*words, driver=("kill", "100"))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (path / "summary.json").exists()
    api.resume(path, device="cpu", workers=1)
    assert small_runs.differing(whole, path) == []


class Mutable(Selection):
    """Selects by the number of rounds seen; its state for a checkpoint is an object that it continues to change."""

    def __init__(self, cohort: Any) -> None:
        super().__init__(cohort)
        self.seen: dict[str, Any] = {"rounds": []}

    def select(
        self, available: Sequence[int], count: int, round: int, rng: np.random.Generator, clock: float
    ) -> Sequence[int]:
        return [available[len(self.seen["rounds"]) % len(available)]]

    def update(self, round: int, results: Sequence[ClientResult], seconds: float, clock: float) -> None:
        self.seen["rounds"].append(round)

    def state(self) -> dict[str, Any]:
        return self.seen

    def restore(self, state: dict[str, Any]) -> None:
        self.seen = state


def mutable_session() -> Session:
    experiment = Experiment(clients=4, cohorts=1, federation={"selection": f"{__name__}:Mutable"})
    fleet, sizes = Fleet(np.ones(4), np.ones(4)), np.ones(4, np.int64)
    return Session(0, range(4), experiment, fleet, 16, {"w": torch.zeros(4)}, sizes)


def result(work: RoundRequest) -> RoundResult:
    results = [ClientResult(client, 1, 1, 1.0, 1.0) for client in work.participants]
    return RoundResult({"w": torch.full((4,), float(work.round))}, results)


def close(one: Session) -> list[int]:
    work = one.open_round()
    one.close_round(result(work))
    return work.participants


def test_later_rounds_do_not_change_a_checkpoint() -> None:
    one = mutable_session()
    close(one)
    _, numbers = writer.capture(one, 0.0)
    text = json.dumps(numbers)
    close(one)
    assert json.dumps(numbers) == text


def test_a_checkpoint_holds_the_state_of_its_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written many rounds after it was captured; a session that is restored from it continues as the first."""
    folder, one, other = made_by_hand(tmp_path / "run"), mutable_session(), mutable_session()
    monkeypatch.setattr(writer, "PAUSE", 900)  # all is written at the end
    monkeypatch.setattr(writer, "time", SimpleNamespace(monotonic=lambda: float(one.round)))  # a round is a second
    with writer.RunWriter(folder, 3.0) as run_writer:
        chosen = []
        for _ in range(6):
            work = one.open_round()
            chosen.append(work.participants)
            run_writer.write(one, one.close_round(result(work)))
    assert [file.stem for file in folder.path.glob("checkpoints/*")] == ["cohort-0000-round-000004"]
    assert writer.restore(folder, other) == (4.0, [], 2)
    assert [close(other), close(other)] == chosen[4:]
    assert other.state()[1] == one.state()[1]


def test_restored_sessions_do_not_change_a_checkpoint() -> None:
    one = mutable_session()
    close(one)
    states, numbers = one.state()
    after = []
    for _ in range(2):
        other = mutable_session()
        other.restore(states, numbers)
        after.append([close(other), close(other)])
    assert after == [[[1], [2]]] * 2
