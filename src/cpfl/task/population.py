"""A population in columns: who holds which samples, on which device, in which cohort, and how cohorts are assigned.

Columns of a large population are in a memory-mapped file: the kernel may drop and read its pages again, and forked
workers share them.
"""

import contextlib
import copy
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpfl.cohorts.base import ClientView, CohortAssignment, Cohorts, Members, as_cohorts
from cpfl.data.catalogue import cache_folder
from cpfl.data.federated import FederatedData
from cpfl.data.split import Clients
from cpfl.devices.fleet import Fleet
from cpfl.errors import FAILURES, CpflError, SettingError, first_line
from cpfl.federation.selection.base import round_seconds
from cpfl.settings import Assignment, Experiment
from cpfl.settings.choices import ASSIGNMENT_RULES

LARGE = 2**26  # bytes: below, a file is not worth it
ALIGNED = 64  # bytes: where a column of the file may begin
NEEDS = ("labels", "seconds", "column")  # what an assignment rule may be shown of single clients

Columns = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Population:
    """Clients, their devices and their cohorts."""

    clients: Clients
    fleet: Fleet
    cohorts: Cohorts
    label_counts: NDArray[np.int64] | None = None  # by cohort and class, (N, C), where they are known already

    def columns(self) -> Columns:
        """Everything that grows with the number of clients."""
        return {
            **vars(self.clients),
            "compute_ms": self.fleet.compute_ms,
            "network_kbps": self.fleet.network_kbps,
            **{f"cohort {cohort}": np.asarray(members) for cohort, members in enumerate(self.cohorts)},
        }


def memory_mapped(clients: Clients, fleet: Fleet, cohorts: Cohorts) -> Population:
    """A population whose columns are memory-mapped if they are large, and in memory if the disk has no space."""
    population = Population(clients, fleet, [Members(members) for members in cohorts])
    columns = population.columns()
    if sum(column.nbytes for column in columns.values()) < LARGE:
        return population
    with contextlib.suppress(OSError):
        columns = mapped(columns, cache_folder())
        own = copy.copy(clients)
        vars(own).update({name: columns[name] for name in vars(own)})
        speeds = replace(fleet, compute_ms=columns["compute_ms"], network_kbps=columns["network_kbps"])
        return Population(own, speeds, [Members(columns[f"cohort {cohort}"]) for cohort in range(len(cohorts))])
    return population


def mapped(columns: Columns, folder: Path) -> dict[str, NDArray[Any]]:
    """The same columns, read-only, in an unnamed file, which is freed with the last process that has it open."""
    folder.mkdir(parents=True, exist_ok=True)
    starts = {}
    with tempfile.TemporaryFile(dir=folder) as file:
        for name, column in columns.items():
            starts[name] = file.seek(-(-file.tell() // ALIGNED) * ALIGNED)
            file.write(np.ascontiguousarray(column).data)
        file.flush()
        found = np.asarray(np.memmap(file, np.uint8, "r"))
    return {
        name: found[starts[name] : starts[name] + column.nbytes].view(column.dtype) for name, column in columns.items()
    }


def assign_cohorts(experiment: Experiment, data: FederatedData, fleet: Fleet, model_bytes: int) -> Cohorts:
    """The cohorts that the experiment's rule gives; the same for the same seed."""
    name, rule, sizes = experiment.assignment.rule, assignment_rule(experiment.assignment), data.clients.training_sizes
    if "labels" in rule.needs and not data.objective.has_classes:
        raise SettingError(
            f"assignment.rule = {name!r} balances classes, and model.objective = {experiment.model.objective!r} has "
            "none: choose another rule"
        )
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
    except FAILURES as error:  # a user's rule can fail in any way
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
