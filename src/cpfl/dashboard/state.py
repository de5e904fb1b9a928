"""What state a run and its cohorts are in, as numbers and in words."""

import math
from collections.abc import Sequence

from cpfl.dashboard.follow import Followed
from cpfl.reports.content import Tree
from cpfl.reports.reading import CohortHistory, RunFacts
from cpfl.terminal.progress import duration, rounds_left

QUIET = 60.0  # seconds without a record after which a run may have been interrupted
CHIPS = 48  # cohorts of a run whose patience is shown, those that may stop first


def state_of(run: Followed, now: float) -> tuple[str, str]:
    """Done, training, distilling or quiet; and the same in words."""
    if run.finished:
        return "done", "finished"
    if now - run.modified > QUIET:
        return "quiet", f"quiet for {duration(now - run.modified)}; if it was interrupted, cpfl resume continues it"
    if run.epoch or all(history.stop for history in run.histories):
        epochs = run.facts.experiment.distillation.epochs
        return "distilling", f"distilling, epoch {run.epoch} of {epochs}" if run.epoch else "distilling"
    return "training", "training" if any(history.rounds for history in run.histories) else "in its first round"


def clock(facts: RunFacts) -> str:
    """What the hours of a run are: those of a simulation, or those of a real fleet."""
    return "real" if facts.about["engine"] == "flower" else "virtual"


def patience(facts: RunFacts, histories: Sequence[CohortHistory]) -> Tree:
    """For every cohort that trains, the rounds until its stopping rule may end it; the nearest first."""
    chips = []
    for cohort, history in enumerate(histories):
        if history.rounds and not history.stop:
            chips.append({"cohort": cohort, **_until(facts, history)})
    chips.sort(key=lambda chip: (chip["left"], chip["cohort"]))
    rule, stopping = facts.experiment.stopping.rule, facts.experiment.stopping
    what = {
        "plateau": f"A cohort stops after {stopping.patience} rounds without a new minimum of its validation loss",
        "joint": f"All cohorts are evaluated every {stopping.eval_interval} rounds, and may stop then",
    }.get(rule, f"The stopping rule is {rule}")
    return {"rule": what, "chips": chips[:CHIPS], "more": max(0, len(chips) - CHIPS)}


def _until(facts: RunFacts, h: CohortHistory) -> Tree:
    """How much of its patience a cohort has used, and the rounds that are left; a limit may come before."""
    stopping = facts.experiment.stopping
    least, most = rounds_left(facts.experiment, h.rounds, h.clock, h.cpu_seconds, math.inf, h.best_round)
    gone, whole = h.rounds, h.rounds + least
    if stopping.rule == "plateau":
        gone, whole = h.rounds - h.best_round, stopping.patience
    elif stopping.rule == "joint":
        gone, whole = h.rounds % stopping.eval_interval, stopping.eval_interval
    limit = ", by a limit" if least == most < whole - gone else ""
    return {"gone": gone, "whole": whole, "left": least, "text": f"{least:,} round{'s' if least != 1 else ''}{limit}"}
