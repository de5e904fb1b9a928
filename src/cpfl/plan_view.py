"""A plan of cohorts as it is looked at before a run: sizes, samples, label skew, and how long a round will take."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cpfl.cohorts.measures import expected_longest, skews
from cpfl.federation import selection
from cpfl.planning import reveals, round_seconds
from cpfl.problem import Problem


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
class PlanView:
    """A whole plan."""

    plan: str
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

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def look(problem: Problem) -> PlanView:
    """The plan of a problem that is ready to run."""
    experiment, data = problem.experiment, problem.data
    counts_NC = np.stack([data.counts[clients].sum(axis=0) for clients in problem.plan])
    whole_C = data.counts.sum(axis=0)
    skew_N = skews(counts_NC.astype(np.float64), whole_C.astype(np.float64))
    # One client alone sends nothing; others send the model that their cohort trains.
    bytes_N = [problem.of(i).model_bytes if len(clients) > 1 else 0 for i, clients in enumerate(problem.plan)]
    hours_by_bytes = {size: round_seconds(experiment, data, problem.fleet, size) / 3600 for size in set(bytes_N)}
    rows = []
    for cohort, clients in enumerate(problem.plan):
        hours = hours_by_bytes[bytes_N[cohort]][clients]
        slowest = int(hours.argmax())
        rows.append(
            CohortRow(
                cohort=cohort,
                clients=len(clients),
                samples=int(counts_NC[cohort].sum()),
                labels=counts_NC[cohort].tolist(),
                skew=float(skew_N[cohort]),
                hours_per_round=expected_longest(hours, selection.size(experiment.federation, len(clients))),
                slowest=clients[slowest],
                slowest_hours=float(hours[slowest]),
            )
        )
    each = [row.hours_per_round for row in rows]
    return PlanView(
        plan=experiment.cohorting.plan,
        reveals=reveals(experiment.cohorting),
        cohorts=len(rows),
        clients=experiment.clients,
        samples=int(whole_C.sum()),
        labels=whole_C.tolist(),
        skew=float(skew_N.mean()),
        skew_worst=float(skew_N.max()),
        hours_per_round=float(np.mean(each)),
        hours_per_round_longest=max(each),
        by_cohort=rows,
    )
