"""Which settings of different sections of an experiment go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpfl.robust_settings import shortage

if TYPE_CHECKING:
    from cpfl.experiment import Experiment


def discord(experiment: Experiment) -> str:
    """The first thing that is wrong, in one sentence; empty: nothing is."""
    cohorts, clients = experiment.cohorts, experiment.clients
    if cohorts > clients:
        return f"cohorts = {cohorts} is more than clients = {clients}: 1 to {clients}"
    return _models(experiment) or _federation(experiment) or _joint(experiment)


def _models(experiment: Experiment) -> str:
    named = experiment.cohorting.models
    if named and experiment.distillation.start == "mean":
        return 'distillation.start = "mean" needs one model for all cohorts: cohorting.models must be empty'
    for cohort in named:
        whole = cohort.isascii() and cohort.isdigit() and str(int(cohort)) == cohort
        if not (whole and int(cohort) < experiment.cohorts):
            return f"cohorting.models names cohort {cohort!r}: cohorts are 0 to {experiment.cohorts - 1}"
    return ""


def _federation(experiment: Experiment) -> str:
    federation = experiment.federation
    smallest = experiment.clients // experiment.cohorts  # or smaller: its session sees the plan, and asks again
    most = min(federation.participants or max(1, round(federation.participation * smallest)), smallest)
    if trouble := shortage(federation, most, "the smallest cohort has at most"):
        return trouble
    if federation.selection == "refl" and experiment.devices.availability == "always":
        return 'federation.selection = "refl" asks who will be there: set devices.availability'
    return ""


def _joint(experiment: Experiment) -> str:
    stopping = experiment.stopping
    if stopping.rule != "joint":
        return ""
    if experiment.federation.buffer:
        return 'federation.buffer knows no rounds to wait after: stopping.rule = "joint" needs them'
    if stopping.judge == "public" and experiment.cohorts < 2:
        return 'stopping.judge = "public" compares two halves of the cohorts: cohorts must be 2 or more'
    if stopping.judge == "ensemble" and not experiment.data.validation:
        return 'stopping.judge = "ensemble" needs validation samples: data.validation must be above 0'
    return ""
