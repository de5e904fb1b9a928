"""Plans made by other processes are the plans that the main process would make, and nobody depends on them."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest
import torch

from cpfl import experiment_file
from cpfl.data.federated import Given
from cpfl.engines.lanes import LaneEngine
from cpfl.engines.lanes.planners import UNDER_WAY, Planners
from cpfl.engines.lanes.plans import EMPTY, Task, draw, lay_out
from cpfl.federation import local
from cpfl.federation.session import Closed, Session
from cpfl.method import plan
from cpfl.problem import Problem, prepare


def problem(**settings: Any) -> Problem:
    tree = {"precision": "float64", "max_rounds": 12, **{key.replace("__", "."): v for key, v in settings.items()}}
    return prepare(experiment_file.with_settings(experiment_file.load("digits", []), tree), [], Given())


def records(made: Problem, engine: LaneEngine, after: Any = lambda count: None) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []

    def on_round(session: Session, closed: Closed) -> None:
        lines.append(closed.record.as_dict())
        after(len(lines))

    engine.federate(plan(made), on_round)
    return lines


@pytest.mark.parametrize(
    "settings", [{}, {"local_epochs": 2}, {"local_steps": 3}, {"batch_size": 64}, {"local_steps": 2, "batch_size": 500}]
)
@pytest.mark.parametrize("cut", [0, 1], ids=["whole", "cut"])
def test_a_plan_is_laid_out_as_the_batches_are(settings: dict[str, Any], cut: int) -> None:
    federation = problem(**{f"federation__{key}": value for key, value in settings.items()}).experiment.federation
    own = np.arange(1000, 1047)
    steps, size = max(1, local.steps(federation, len(own)) - cut), federation.batch_size
    rows, augmentation = np.full((steps + 2, size), 7, np.int32), np.zeros((steps + 2, size, 5), np.int8)
    lay_out(federation, own, draw(federation, 90, (3, 24, 24), len(own), 4, 2), steps, rows, augmentation)
    whole = local.batches(federation, len(own), 90, 4, 2)
    batches = whole[:steps]
    assert [row[row != EMPTY].tolist() for row in rows[:steps]] == [own[batch].tolist() for batch in batches]
    assert (rows[steps:] == 7).all()
    drawn = local.augmentation(sum(map(len, whole)), (3, 24, 24), 90, 4, 2)[: sum(map(len, batches))]
    assert np.array_equal(augmentation[:steps][rows[:steps] != EMPTY], drawn)


def test_planners_make_the_same_plans_in_any_order() -> None:
    made = problem()
    sizes = made.data.clients.training_sizes.tolist()
    planners = Planners(made, 2)
    try:
        tasks = [Task(0, client, round, 1) for round in (1, 2) for client in range(20)]
        planners.ask(tasks, sizes)
        for task in reversed(tasks):
            found = planners.take(task)
            assert found is not None
            right = draw(made.experiment.federation, 90, None, sizes[task.client], task.client, task.round)
            assert np.array_equal(found[0], right[0])
            assert found[1] is None
        assert planners.take(tasks[0]) is None  # taken
        planners.ask([Task(0, 3, 9, 1), Task(0, 4, 9, 1)], sizes)
        planners.forget(Task(0, 3, 9, 1))
        assert planners.take(Task(0, 3, 9, 1)) is None
        assert planners.take(Task(0, 4, 9, 1)) is not None
        planners.ask([Task(0, 0, round, 1) for round in range(3 * UNDER_WAY)], sizes)
        assert planners.take(Task(0, 0, 3 * UNDER_WAY - 1, 1)) is None  # too many at once: whoever needs it makes it
    finally:
        planners.end()


def test_a_run_with_planners_is_the_run_without() -> None:
    made, device = problem(stopping__patience=3, stopping__window=2), torch.device("cpu")
    assert records(made, LaneEngine(made, device, planners=2)) == records(made, LaneEngine(made, device))


def test_a_planner_that_dies_is_not_missed() -> None:
    made, device = problem(), torch.device("cpu")
    engine = LaneEngine(made, device, planners=1)
    (planner,) = engine._planners._planners

    def kill(count: int) -> None:
        if count == 5:
            os.kill(planner._process.pid, signal.SIGKILL)

    assert records(made, engine, kill) == records(made, LaneEngine(made, device))
