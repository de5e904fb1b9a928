"""A population in columns: who holds which samples, on which device, in which cohort.

Columns of a large population are in a memory-mapped file: the kernel may drop and read its pages again, and forked
workers share them.
"""

import contextlib
import copy
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpfl.cohorts.base import Cohorts, Members
from cpfl.data.catalogue import cache_folder
from cpfl.data.split import Clients
from cpfl.devices.fleet import Fleet

LARGE = 2**26  # bytes: below, a file is not worth it
ALIGNED = 64  # bytes: where a column of the file may begin

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
