"""How much of its work a run has done, and how much is expected still. Work is counted in training samples."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from cpfl.dashboard.follow import Followed
from cpfl.reports.reading import CohortHistory, RunFacts
from cpfl.settings import Experiment
from cpfl.terminal.progress import Expected, expected_rounds, rounds_left, total


class Work(NamedTuple):
    """Samples that a run has trained on, and those that it still trains on."""

    done: float
    left: Expected

    @property
    def whole(self) -> float:
        """All of it."""
        return self.done + self.left.amount


def work_of(run: Followed, ended: Sequence[int] = ()) -> Work | None:
    """The work of a run; None: it cannot be told yet.

    `ended` holds the rounds of cohorts of comparable runs, of those that have stopped.
    """
    facts = run.facts
    if facts.summary is not None:
        samples = facts.summary.get("samples", sum(history.samples for history in run.histories))
        return Work(samples, Expected(0.0, sure=True))
    own = [history.rounds for history in run.histories if history.stop]
    left = samples_left(facts.experiment, facts.about["cohorts"], run.histories, _cpu_budgets(facts), [*own, *ended])
    return None if left is None else Work(sum(history.samples for history in run.histories), left)


def samples_left(
    experiment: Experiment,
    cohorts: Sequence[Sequence[int]],
    histories: Sequence[CohortHistory],
    cpu_budgets: Mapping[int, float],
    ended: Sequence[int],
) -> Expected | None:
    """The samples that all cohorts together still train on; None: a cohort has not closed a round yet.

    `cpu_budgets` holds CPU seconds by cohort, where an evaluation has set them; `ended` is as in `work_of`.
    """
    training = {cohort: history for cohort, history in enumerate(histories) if not history.stop}
    if not all(history.rounds for history in training.values()):
        return None
    limit = experiment.stopping.max_cpu_hours * 3600 or math.inf
    parts = []
    for cohort, h in training.items():
        budget = cpu_budgets.get(cohort, limit * len(cohorts[cohort]) / experiment.clients)
        left = rounds_left(experiment, h.rounds, h.clock, h.cpu_seconds, budget, h.best_round)
        parts.append(expected_rounds(left, h.rounds, ended).times(h.samples / h.rounds))
    return total(parts)


def ended_rounds(runs: Iterable[Followed]) -> list[int]:
    """The rounds of all cohorts of these runs that have stopped."""
    return [cohort.rounds for run in runs for cohort in run.facts.cohorts if cohort.stop]


def _cpu_budgets(facts: RunFacts) -> dict[int, float]:
    """The CPU seconds that the latest evaluation allows each cohort, if there is one and a limit."""
    last = facts.evaluations[-1] if facts.evaluations else {}
    return dict(zip(last.get("cohorts", ()), last.get("cpu_budgets", ()), strict=False))
