"""From an experiment's data and devices to its cohorts: build the rule, show it what it needs, check its answer."""

from collections.abc import Sequence

import numpy as np

from cpfl.cohorts.base import ClientView, CohortAssignment, Cohorts, as_cohorts
from cpfl.data.federated import FederatedData
from cpfl.devices.fleet import Fleet
from cpfl.errors import CpflError, SettingError, first_line
from cpfl.federation.selection.base import round_seconds
from cpfl.settings import Assignment, Experiment
from cpfl.settings.choices import ASSIGNMENT_RULES

NEEDS = ("labels", "seconds", "column")  # what a rule may be shown of single clients


def assign_cohorts(experiment: Experiment, data: FederatedData, fleet: Fleet, model_bytes: int) -> Cohorts:
    """The cohorts that the experiment's rule gives; the same for the same seed."""
    name, rule, sizes = experiment.assignment.rule, assignment_rule(experiment.assignment), data.clients.training_sizes
    clients = ClientView(
        experiment.clients,
        experiment.seed,
        labels=data.counts if "labels" in rule.needs else None,
        seconds=round_seconds(experiment.federation, fleet, sizes, model_bytes) if "seconds" in rule.needs else None,
        column=client_values(data, rule.column) if "column" in rule.needs else None,
    )
    try:
        cohort_of = rule.assign(clients, experiment.cohorts)
        return as_cohorts(name, cohort_of, experiment.clients, experiment.cohorts)
    except CpflError:
        raise
    except Exception as error:  # a user's rule can fail in any way
        raise SettingError(f"assignment.rule = {name!r} cannot assign: {first_line(error)}") from None


def assignment_rule(settings: Assignment) -> CohortAssignment:
    """The rule that the settings name, built from its own arguments."""
    name = settings.rule
    rule = ASSIGNMENT_RULES.build(name, settings.rule_args)
    if not set(rule.needs) <= set(NEEDS):
        raise SettingError(f"assignment.rule = {name!r} needs {rule.needs!r}: a tuple of {', '.join(NEEDS)} is allowed")
    return rule


def client_values(data: FederatedData, column: str) -> Sequence[str]:
    """Every client's value in a column of the training data, which all its samples must share."""
    key = f"assignment.rule_args.column = {column!r}"
    if column not in data.train.columns:
        known = ", ".join(data.train.columns) or "none"
        raise SettingError(f"{key} is no column of the training set; its columns: {known}")
    values, codes = np.unique(data.train.columns[column], return_inverse=True)
    lowest, highest = data.clients.value_range(codes)
    several = np.flatnonzero(lowest != highest)
    if len(several):
        one, other = values[lowest[several[0]]], values[highest[several[0]]]
        raise SettingError(
            f"{key} is not the same in all samples of a client (client {several[0]} has {one!s} and {other!s}): "
            "assignment needs one value for each client"
        )
    return [str(value) for value in values[lowest]]
