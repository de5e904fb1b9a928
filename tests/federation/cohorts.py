"""A small cohort with round numbers: a step of one sample takes 3 s on a device of 1000 ms, 128 bytes take 1 s."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cpfl import experiment_file
from cpfl.availability import Trace, Week
from cpfl.devices import Fleet
from cpfl.experiment import Experiment
from cpfl.federation.reports import ClientResult
from cpfl.federation.selection import Cohort
from cpfl.federation.session import Closed, Outcome, Session

MODEL_BYTES = 128


def experiment(clients: int, **changes: Any) -> Experiment:
    base = {"clients": clients, "cohorts": 1, "federation.batch_size": 1, "stopping.patience": 1000, "max_rounds": 500}
    return experiment_file.with_settings(Experiment(), base | {k.replace("__", "."): v for k, v in changes.items()})


def fleet(compute: list[float], weeks: list[Week] | None = None) -> Fleet:
    there = None if weeks is None else Trace.of(weeks, range(len(weeks)))
    return Fleet(np.array(compute), np.ones(len(compute)), there)


def cohort(samples: list[int], compute: list[float], weeks: list[Week] | None = None, **changes: Any) -> Cohort:
    clients = list(range(len(samples)))
    settings = experiment(len(samples), **changes).federation
    return Cohort(0, clients, settings, fleet(compute, weeks), MODEL_BYTES, np.array(samples))


def session(samples: list[int], compute: list[float], weeks: list[Week] | None = None, **changes: Any) -> Session:
    clients = list(range(len(samples)))
    start = {"w": torch.tensor([0.0])}
    made = experiment(len(samples), **changes)
    return Session(0, clients, made, fleet(compute, weeks), MODEL_BYTES, start, np.array(samples))


def results(one: Session, samples: list[int]) -> Outcome:
    """What the round's participants would report, and a model named after it."""
    work = one.open_round()
    told = []
    for client in work.participants:
        steps = work.steps.get(client, samples[client])
        squares = float(10 * (client + 1) * steps / work.round)
        told.append(ClientResult(client, steps, steps, 1.0 + client / work.round, 1.0, squares=squares))
    return Outcome({"w": torch.tensor([float(work.round)])}, told)


def close(one: Session, samples: list[int]) -> Closed:
    return one.close_round(results(one, samples))
