"""A client's round as small integers, made on the host: which sample in which step, and how it is augmented.

Axes: S steps, B batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpfl.federation import local
from cpfl.problem import Problem

EMPTY = -1  # in place of a sample: nothing here


@dataclass(frozen=True)
class Task:
    """One client's work in one round of its cohort."""

    cohort: int
    client: int
    round: int
    steps: int


def plan_task(problem: Problem, task: Task, rows_SB: NDArray[np.int32], plan_SB5: NDArray[np.int8] | None) -> None:
    """Write the rows of the training set, empty where a batch is short, and the augmentation, batch by batch."""
    experiment, data = problem.experiment, problem.data
    own = data.clients[task.client].training
    rows_SB[: task.steps] = EMPTY
    batches = local.batches(experiment.federation, len(own), experiment.seed, task.client, task.round)
    for step, batch in enumerate(batches[: task.steps]):  # fewer than all where a deadline cuts them
        rows_SB[step, : len(batch)] = own[batch]
    if plan_SB5 is not None:
        count = local.samples(experiment.federation, len(own))
        plan = local.augmentation(count, data.train.shape, experiment.seed, task.client, task.round)
        filled = rows_SB[: task.steps] != EMPTY
        plan_SB5[: task.steps][filled] = plan[: np.count_nonzero(filled)]  # both in batch order
