"""Batch schedules drawn by other processes are those of the main process, and no run depends on them."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest
import torch

from cpfl.data.given import Given
from cpfl.engines.lanes import LaneEngine
from cpfl.engines.lanes.batch_schedule import (
    EMPTY,
    MAX_REQUESTS,
    ClientRound,
    ScheduleWorkers,
    Source,
    draw,
    lay_out,
)
from cpfl.federation import local_training
from cpfl.federation.session import ClosedRound, Session
from cpfl.method import open_sessions
from cpfl.settings import experiment_file
from cpfl.task.task import Task, build_task


def task(**settings: Any) -> Task:
    tree = {"precision": "float64", "max_rounds": 6, **{key.replace("__", "."): v for key, v in settings.items()}}
    return build_task(experiment_file.with_settings(experiment_file.load("digits", []), tree), [], Given())


def records(made: Task, engine: LaneEngine, after: Any = lambda count: None) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []

    def on_round(session: Session, closed: ClosedRound) -> None:
        lines.append(vars(closed.record))
        after(len(lines))

    engine.train_cohorts(open_sessions(made), on_round)
    return lines


@pytest.mark.parametrize(
    "settings", [{}, {"local_epochs": 2}, {"local_steps": 3}, {"batch_size": 64}, {"local_steps": 2, "batch_size": 500}]
)
@pytest.mark.parametrize("missing", [0, 1], ids=["whole", "partial"])
def test_a_schedule_is_laid_out_as_the_batches_are(settings: dict[str, Any], missing: int) -> None:
    federation = task(**{f"federation__{key}": value for key, value in settings.items()}).experiment.federation
    own = np.arange(1000, 1047)
    steps, size = max(1, local_training.steps(federation, len(own)) - missing), federation.batch_size
    rows, augmentation = np.full((steps + 2, size), 7, np.int32), np.zeros((steps + 2, size, 5), np.int8)
    lay_out(own, draw(federation, 90, (3, 24, 24), len(own), 4, 2), steps, rows, augmentation)
    whole = local_training.batches(federation, len(own), 90, 4, 2)
    batches = whole[:steps]
    assert [row[row != EMPTY].tolist() for row in rows[:steps]] == [own[batch].tolist() for batch in batches]
    assert (rows[steps:] == 7).all()
    drawn = local_training.augmentation(sum(map(len, whole)), (3, 24, 24), 90, 4, 2)[: sum(map(len, batches))]
    assert np.array_equal(augmentation[:steps][rows[:steps] != EMPTY], drawn)


def test_workers_draw_the_same_schedules_in_any_order() -> None:
    made = task()
    sizes = made.data.clients.training_sizes.tolist()

    def work(client: int, round: int) -> ClientRound:
        return ClientRound(0, client, round, sizes[client], steps=1)

    workers = ScheduleWorkers(2)
    workers.add(0, Source.of(made))
    try:
        client_rounds = [work(client, round) for round in (1, 2) for client in range(20)]
        workers.request(client_rounds)
        for one in reversed(client_rounds):
            found = workers.take(one)
            assert found is not None
            right = draw(made.experiment.federation, 90, None, one.samples, one.client, one.round)
            assert np.array_equal(found[0], right[0])
            assert found[1] is None
        assert workers.take(client_rounds[0]) is None  # taken
        workers.request([work(3, 9), work(4, 9)])
        workers.forget(work(3, 9))
        assert workers.take(work(3, 9)) is None
        assert workers.take(work(4, 9)) is not None
        workers.request([work(0, round) for round in range(3 * MAX_REQUESTS)])
        assert workers.take(work(0, 3 * MAX_REQUESTS - 1)) is None  # too many at once: the main process draws it
    finally:
        workers.end()


def test_a_run_with_schedule_workers_equals_one_without() -> None:
    made, device = task(stopping__patience=3, stopping__window=2), torch.device("cpu")
    assert records(made, LaneEngine(made, device, schedule_workers=2)) == records(made, LaneEngine(made, device))


def test_a_worker_that_dies_is_not_missed() -> None:
    made, device = task(), torch.device("cpu")
    engine = LaneEngine(made, device, schedule_workers=1)
    (worker,) = engine.schedules.workers

    def kill(count: int) -> None:
        if count == 5:
            os.kill(worker._process.pid, signal.SIGKILL)

    assert records(made, engine, kill) == records(made, LaneEngine(made, device))
