"""A population in columns: who holds which samples, on which device, in which cohort.

Columns of a large population are in a memory-mapped Arrow file: the kernel may drop and read its pages again, and
forked workers share them. numpy reads Arrow's buffers without a copy.
"""

import contextlib
import copy
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cpfl.cohorts.base import Cohorts, Members
from cpfl.data.decoded import cache_folder
from cpfl.data.split import Clients
from cpfl.devices.fleet import Fleet

LARGE = 2**26  # bytes: below, a file is not worth it

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

    def with_columns(self, columns: Columns) -> "Population":
        """The same population, from these."""
        clients = copy.copy(self.clients)
        vars(clients).update({name: columns[name] for name in vars(clients)})
        fleet = replace(self.fleet, compute_ms=columns["compute_ms"], network_kbps=columns["network_kbps"])
        cohorts = [Members(columns[f"cohort {cohort}"]) for cohort in range(len(self.cohorts))]
        return replace(self, clients=clients, fleet=fleet, cohorts=cohorts)


def memory_mapped(clients: Clients, fleet: Fleet, plan: Cohorts) -> Population:
    """A population whose columns are memory-mapped if they are large, and in memory if the disk has no space."""
    population = Population(clients, fleet, [Members(members) for members in plan])
    columns = population.columns()
    if sum(column.nbytes for column in columns.values()) < LARGE:
        return population
    with contextlib.suppress(OSError, pa.ArrowException):
        return population.with_columns(mapped(columns, cache_folder()))
    return population


def mapped(columns: Columns, folder: Path) -> dict[str, NDArray[Any]]:
    """The same columns, read-only, in an unnamed Arrow file, which is freed with the last process that has it open."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix="population-", suffix=".arrow") as file:
        lists = [_one_row(column) for column in columns.values()]  # lengths differ: each column is one list
        batch = pa.record_batch(lists, names=list(columns))
        with pa.OSFile(file.name, "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        found = pa.ipc.open_file(pa.memory_map(file.name)).get_batch(0)
    return {
        name: found.column(name).values.to_numpy(zero_copy_only=True).view(column.dtype)
        for name, column in columns.items()
    }


def _one_row(column: NDArray[Any]) -> pa.Array:
    flat = column.view(np.uint8) if column.dtype == np.bool_ else column  # Arrow would have bits
    return pa.LargeListArray.from_arrays(pa.array([0, len(flat)], pa.int64()), pa.array(flat))
