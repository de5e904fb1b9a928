"""An assignment of clients to cohorts, as shown before a run: sizes, samples, label skew, and hours a round."""

from dataclasses import dataclass

import numpy as np

from cpfl.cohorts.base import expected_longest, skews
from cpfl.federation.selection.base import participants_per_round, round_seconds
from cpfl.task.population import assignment_rule
from cpfl.task.task import Task


@dataclass(frozen=True)
class CohortRow:
    """One cohort."""

    cohort: int
    clients: int
    samples: int  # to train on
    labels: list[int]  # how many of each class
    skew: float  # distance of its labels' distribution to the whole's, 0 to 1
    hours_per_round: float  # expected, participants drawn at random
    slowest: int  # its slowest client
    slowest_hours: float  # what a round takes with that one


@dataclass(frozen=True)
class AssignmentView:
    """All cohorts."""

    rule: str
    reveals: str
    cohorts: int
    clients: int
    samples: int
    labels: list[int]
    skew: float  # mean over cohorts
    skew_worst: float
    hours_per_round: float  # mean over cohorts
    hours_per_round_longest: float
    by_cohort: list[CohortRow]


def assignment_view(task: Task) -> AssignmentView:
    """Describe the cohorts of a task that is ready to run."""
    experiment, data = task.experiment, task.data
    counts_NC = np.stack([data.counts[clients].sum(axis=0) for clients in task.cohorts])
    whole_C = data.counts.sum(axis=0)
    skew_N = skews(counts_NC.astype(np.float64), whole_C.astype(np.float64))
    # One client alone sends nothing; others send the model that their cohort trains.
    bytes_N = [task.for_cohort(i).model_bytes if len(clients) > 1 else 0 for i, clients in enumerate(task.cohorts)]
    hours_by_bytes = {
        size: round_seconds(experiment.federation, task.fleet, data.clients.training_sizes, size) / 3600
        for size in set(bytes_N)
    }
    rows = []
    for cohort, clients in enumerate(task.cohorts):
        hours = hours_by_bytes[bytes_N[cohort]][clients]
        slowest = int(hours.argmax())
        rows.append(
            CohortRow(
                cohort=cohort,
                clients=len(clients),
                samples=int(data.clients.training_sizes[clients].sum()),
                labels=counts_NC[cohort].tolist(),
                skew=float(skew_N[cohort]),
                hours_per_round=expected_longest(hours, participants_per_round(experiment.federation, len(clients))),
                slowest=clients[slowest],
                slowest_hours=float(hours[slowest]),
            )
        )
    each = [row.hours_per_round for row in rows]
    return AssignmentView(
        rule=experiment.assignment.rule,
        reveals=assignment_rule(experiment.assignment).reveals,
        cohorts=len(rows),
        clients=experiment.clients,
        samples=int(data.clients.training_sizes.sum()),
        labels=whole_C.tolist(),
        skew=float(skew_N.mean()),
        skew_worst=float(skew_N.max()),
        hours_per_round=float(np.mean(each)),
        hours_per_round_longest=max(each),
        by_cohort=rows,
    )
