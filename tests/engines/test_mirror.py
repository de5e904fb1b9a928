"""A worker's copy of a session: the driver that hears of its rounds closes the same, wherever it goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from cpfl import experiment_file, method
from cpfl.data.federated import Given
from cpfl.engines.base import Engine
from cpfl.engines.lanes import LaneEngine
from cpfl.engines.ray import letters
from cpfl.engines.ray.letters import Done, Left, Letter
from cpfl.engines.ray.mirror import Mirror
from cpfl.engines.reference import ReferenceEngine
from cpfl.engines.workers import WorkerEngine
from cpfl.problem import Problem, prepare

CPU = torch.device("cpu")
SETTINGS: dict[str, Any] = {
    "clients": 8, "cohorts": 3, "max_rounds": 6, "precision": "float64", "data.train_limit": 200,
    "data.public_limit": 60, "model.args.hidden": 8,
}  # fmt: skip
ENGINES: dict[str, Callable[[Problem], Engine]] = {
    "reference": lambda problem: ReferenceEngine(problem, CPU),
    "workers": lambda problem: WorkerEngine(problem, 1),
    "lanes": lambda problem: LaneEngine(problem, CPU, 4),
}


@pytest.fixture(scope="module")
def problem() -> Problem:
    experiment = experiment_file.with_settings(experiment_file.load("digits"), SETTINGS)
    return prepare(experiment, [], Given())


def mirrors(problem: Problem, sessions: list[Any], post: Callable[[Letter], None]) -> list[Mirror]:
    found = []
    for session in sessions:
        mirror = problem.session(session.cohort, Mirror)
        assert isinstance(mirror, Mirror)
        mirror.post, mirror.complete = post, True
        letters.put(letters.charge(session), mirror)
        found.append(mirror)
    return found


@pytest.mark.parametrize("kind", ENGINES)
def test_a_cohort_that_leaves_between_rounds_goes_on_as_it_would_have(problem: Problem, kind: str) -> None:
    straight: list[Any] = []
    whole = method.plan(problem)
    ENGINES[kind](problem).federate(whole, lambda session, closed: straight.append(closed.record))

    sessions, told, left = method.plan(problem), list[Any](), list[int]()
    engine, copies = ENGINES[kind](problem), list[Mirror]()

    def post(letter: Letter) -> None:
        if isinstance(letter, Done):
            session = sessions[letter.cohort]
            assert letter.round == session.round + 1
            told.append(session.close_round(letters.outcome(letter)).record)
            if letter.cohort == 1 and letter.round == 2:
                copies[1].leaving = True
        elif isinstance(letter, Left):
            left.append(letter.cohort)

    copies += mirrors(problem, sessions, post)
    engine.federate(copies, lambda session, closed: None)
    for copy in copies:
        copy.settle()
    assert left == [1]
    assert sessions[0].stopped
    assert 2 <= sessions[1].round < 6
    copies[:] = [None, *mirrors(problem, [sessions[1]], post)]  # type: ignore[list-item]
    ENGINES[kind](problem).federate(copies[1:], lambda session, closed: None)
    assert all(session.stopped == "max rounds" for session in sessions)
    key = lambda record: (record.cohort, record.round)  # noqa: E731
    for one, other in zip(sorted(straight, key=key), sorted(told, key=key), strict=True):
        assert one.participants == other.participants
        numbers = [[r.loss, r.validation, r.average, r.clock, r.cpu_seconds, r.bytes, r.samples] for r in (one, other)]
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-12)
    for one_session, other_session in zip(whole, sessions, strict=True):
        for name, value in one_session.teacher().items():
            torch.testing.assert_close(other_session.teacher()[name], value, rtol=1e-12, atol=1e-12)


def test_one_that_returns_does_not_leave(problem: Problem) -> None:
    """Paused for others to join: no letter of leaving, and its own engine goes on with it."""
    sessions, posted = method.plan(problem), list[Letter]()
    (mirror,) = mirrors(problem, sessions[:1], posted.append)
    mirror.leaving = mirror.returning = True
    engine = ENGINES["workers"](problem)
    engine.federate([mirror], lambda session, closed: None)
    assert mirror.idle
    assert mirror.round == 1
    mirror.settle()
    assert not mirror.idle
    engine.federate([mirror], lambda session, closed: None)
    assert mirror.stopped == "max rounds"
    assert [type(letter) for letter in posted] == [Done] * 6


def test_what_is_complete_is_fetched_beside_what_is_queued(problem: Problem) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    state = {name: value.to(device) for name, value in problem.start.items()}
    state["counter"] = torch.tensor(3)  # some of it may be on the host
    expected = letters.to_arrays(state)
    letters.beside(state)  # memory that the host and the device share is there from now on
    mark = None
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda._sleep(2_000_000_000)  # a second of work
        mark = torch.cuda.Event()
        mark.record()
    found = letters.beside(state)
    assert mark is None or not mark.query()  # nobody waited for it
    assert found.keys() == expected.keys()
    for name, value in found.items():
        np.testing.assert_array_equal(value, expected[name])
