"""How a problem reaches the workers: through Ray's object store, once for each node, or from a folder that they see.

Arrays in the object store are memory that all workers of a node share; so are decoded images of a folder, which are
memory-mapped. But what an experiment makes of the images of a folder, each worker makes for itself: a training or
public set that a limit cuts, a test set that is held out, public images that are cropped or resized to fit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cpfl.data.federated import Given
from cpfl.data.sources import search_roots
from cpfl.engines.ray.letters import Arrays
from cpfl.errors import DataError, SettingError
from cpfl.experiment import GIVEN, Experiment
from cpfl.models import from_arrays, to_arrays
from cpfl.population import Population
from cpfl.problem import Problem, prepare


@dataclass(frozen=True)
class Recipe:
    """All that a worker needs to make the driver's problem from a folder of data sets."""

    folder: str
    experiment: Experiment
    population: Population
    start: Arrays
    starts: dict[int, Arrays]
    fingerprint: dict[str, str]


Shipped = Problem | Recipe


def packed(problem: Problem, folder: str) -> Shipped:
    """The problem itself, or how to make it where this folder is."""
    if not folder:
        return problem
    experiment = problem.experiment
    named: dict[str, Any] = {
        "model": experiment.model.name,
        "train": experiment.data.train,
        "public": experiment.data.public,
    }
    for key, name in named.items():
        if name == GIVEN:
            raise SettingError(f"--node-data {folder} cannot hold your own {key}, given in Python: leave it out")
    starts = {cohort: to_arrays(own.start) for cohort, own in problem.others.items()}
    population = Population(problem.data.clients, problem.fleet, problem.plan, problem.label_counts)
    return Recipe(folder, experiment, population, to_arrays(problem.start), starts, problem.fingerprint())


def unpacked(shipped: Shipped) -> Problem:
    """The driver's problem, whichever way it came."""
    if isinstance(shipped, Problem):
        return shipped
    roots = search_roots(Path(shipped.folder))
    problem = prepare(shipped.experiment, roots, Given(), population=shipped.population)
    found = problem.fingerprint()
    for name, digest in shipped.fingerprint.items():
        if found[name] != digest:
            raise DataError(f"the {name} data in --node-data {shipped.folder} are not the driver's: checksums differ")
    others = {cohort: replace(own, start=from_arrays(shipped.starts[cohort])) for cohort, own in problem.others.items()}
    return replace(problem, start=from_arrays(shipped.start), others=others)
