"""A plan of cohorts of the user's own: what it is asked, and what is checked of its answer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cpfl.cohorts import CohortPlan
from cpfl.cohorts.labels import Counts
from cpfl.cohorts.measures import Floats
from cpfl.cohorts.members import Members
from cpfl.errors import SettingError


class PlanPart:
    """A plan: subclass it, write `place`, and name it `module:Class` in cohorting.plan; it takes cohorting.plan_args.

    It is shown of single clients what `sees` names, and the run's record says that the global server learns it.
    """

    sees: tuple[str, ...] = ()  # of "labels" and "seconds"

    def place(
        self, clients: int, cohorts: int, rng: np.random.Generator, labels: Counts | None, seconds: Floats | None
    ) -> Sequence[int]:
        """The cohort of every client, from 0; none may stay empty. Rows of `labels` count a client's samples by label,
        `seconds` is how long its part in a round takes."""
        raise NotImplementedError


def checked(name: str, placed: Sequence[int], clients: int, cohorts: int) -> CohortPlan:
    """A part's answer as a plan."""
    found = np.asarray(placed)
    if found.shape != (clients,) or not np.array_equal(np.unique(found), np.arange(cohorts)):
        raise SettingError(
            f"cohorting.plan = {name!r} must place each of the {clients} clients in a cohort from 0 to {cohorts - 1} "
            "and leave none empty"
        )
    order = np.argsort(found, kind="stable")
    return [Members(part) for part in np.split(order, np.searchsorted(found[order], np.arange(1, cohorts)))]
