"""A worker's replica of a session: the driver closes the same rounds from its messages, wherever a cohort continues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from cpfl import method
from cpfl.data.given import Given
from cpfl.engines.base import Engine
from cpfl.engines.lanes import LaneEngine
from cpfl.engines.ray import messages
from cpfl.engines.ray.messages import MOVED, PAUSED, Message, Released, Replica, RoundDone, SessionState
from cpfl.engines.reference import ReferenceEngine
from cpfl.engines.workers import WorkerEngine
from cpfl.settings import experiment_file
from cpfl.task.task import Task, build_task

CPU = torch.device("cpu")
SETTINGS: dict[str, Any] = {
    "clients": 8, "cohorts": 3, "max_rounds": 6, "precision": "float64", "data.train_limit": 200,
    "data.public_limit": 60, "model.args.hidden": 8,
}  # fmt: skip
ENGINES: dict[str, Callable[[Task], Engine]] = {
    "reference": lambda task: ReferenceEngine(task, CPU),
    "workers": lambda task: WorkerEngine(task, 1),
    "lanes": lambda task: LaneEngine(task, CPU, 4),
}


@pytest.fixture(scope="module")
def task() -> Task:
    experiment = experiment_file.with_settings(experiment_file.load("digits"), SETTINGS)
    return build_task(experiment, [], Given())


def replicas(task: Task, sessions: list[Any], send: Callable[[Message], None]) -> list[Replica]:
    found = []
    for session in sessions:
        replica = task.session(session.cohort, Replica)
        assert isinstance(replica, Replica)
        replica.send, replica.complete, replica.layout = send, True, task.layout(session.cohort)
        SessionState.from_session(session, replica.layout).restore(replica, replica.layout)
        found.append(replica)
    return found


@pytest.mark.parametrize("kind", ENGINES)
def test_a_cohort_that_is_released_between_rounds_continues_unchanged(task: Task, kind: str) -> None:
    straight: list[Any] = []
    whole = method.open_sessions(task)
    ENGINES[kind](task).train_cohorts(whole, lambda session, closed: straight.append(closed.record))

    sessions, received, released = method.open_sessions(task), list[Any](), list[int]()
    engine, copies = ENGINES[kind](task), list[Replica]()

    def send(message: Message) -> None:
        if isinstance(message, RoundDone):
            session = sessions[message.cohort]
            received.append(session.close_round(message.result(task.layout())).record)
            assert copies[message.cohort].round == session.round
            if message.cohort == 1 and session.round == 2:
                copies[1].request = MOVED
        elif isinstance(message, Released):
            released.append(message.cohort)

    copies += replicas(task, sessions, send)
    engine.train_cohorts(copies, lambda session, closed: None)
    for copy in copies:
        copy.resume()
    assert released == [1]
    assert sessions[0].stopped
    assert 2 <= sessions[1].round < 6
    copies[:] = [None, *replicas(task, [sessions[1]], send)]  # type: ignore[list-item]
    ENGINES[kind](task).train_cohorts(copies[1:], lambda session, closed: None)
    assert all(session.stopped == "max rounds" for session in sessions)
    key = lambda record: (record.cohort, record.round)  # noqa: E731
    for one, other in zip(sorted(straight, key=key), sorted(received, key=key), strict=True):
        assert one.participants == other.participants
        numbers = [
            [r.loss, r.validation, r.moving_average, r.clock, r.cpu_seconds, r.bytes, r.samples] for r in (one, other)
        ]
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-12)
    for one_session, other_session in zip(whole, sessions, strict=True):
        for name, value in one_session.teacher().items():
            torch.testing.assert_close(other_session.teacher()[name], value, rtol=1e-12, atol=1e-12)


def test_one_that_resumes_is_not_released(task: Task) -> None:
    """It pauses for new cohorts: it sends no message, and the same engine continues with it."""
    sessions, sent = method.open_sessions(task), list[Message]()
    (replica,) = replicas(task, sessions[:1], sent.append)
    replica.request = PAUSED
    engine = ENGINES["workers"](task)
    engine.train_cohorts([replica], lambda session, closed: None)
    assert replica.idle
    assert replica.round == 1
    replica.resume()
    assert not replica.idle
    engine.train_cohorts([replica], lambda session, closed: None)
    assert replica.stopped == "max rounds"
    assert [type(message) for message in sent] == [RoundDone] * 6


def test_finished_tensors_are_copied_beside_queued_steps(task: Task) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    state = {name: value.to(device) for name, value in task.start.items()}
    state["counter"] = torch.tensor(3)  # some of it may be on the host
    expected = messages.to_arrays(state)
    messages.copy_beside(state)  # allocates the pinned memory
    mark = None
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda._sleep(2_000_000_000)  # a second of work
        mark = torch.cuda.Event()
        mark.record()
    found = messages.copy_beside(state)
    assert mark is None or not mark.query()  # the copy did not wait for it
    assert found.keys() == expected.keys()
    for name, value in found.items():
        np.testing.assert_array_equal(value, expected[name])
