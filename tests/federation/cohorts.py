"""A small cohort with round numbers: a step of one sample takes 3 s on a device of 1000 ms, 128 bytes take 1 s."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cpfl.devices.availability import AvailabilitySchedule, Trace
from cpfl.devices.fleet import Fleet
from cpfl.federation.messages import ClientResult
from cpfl.federation.selection.base import CohortInfo
from cpfl.federation.session import ClosedRound, RoundResult, Session
from cpfl.settings import Experiment, experiment_file

MODEL_BYTES = 128


def experiment(clients: int, **changes: Any) -> Experiment:
    base = {"clients": clients, "cohorts": 1, "federation.batch_size": 1, "stopping.patience": 1000, "max_rounds": 500}
    settings = base | {k.replace("__", "."): v for k, v in changes.items()}
    return experiment_file.with_settings(Experiment(), settings, strict=False)


def fleet(compute: list[float], weeks: list[AvailabilitySchedule] | None = None) -> Fleet:
    there = None if weeks is None else Trace.from_schedules(weeks, range(len(weeks)))
    return Fleet(np.array(compute), np.ones(len(compute)), there)


def cohort(
    samples: list[int], compute: list[float], weeks: list[AvailabilitySchedule] | None = None, **changes: Any
) -> CohortInfo:
    clients = list(range(len(samples)))
    settings = experiment(len(samples), **changes).federation
    return CohortInfo(0, clients, settings, fleet(compute, weeks), MODEL_BYTES, np.array(samples))


def session(
    samples: list[int], compute: list[float], weeks: list[AvailabilitySchedule] | None = None, **changes: Any
) -> Session:
    clients = list(range(len(samples)))
    start = {"w": torch.tensor([0.0])}
    absence = {} if weeks is None else {"devices__availability": "synthetic"}  # some settings have an effect only then
    made = experiment(len(samples), **absence | changes)
    return Session(0, clients, made, fleet(compute, weeks), MODEL_BYTES, start, np.array(samples))


def results(one: Session, samples: list[int]) -> RoundResult:
    """What the round's participants would report, and a model named after it."""
    work = one.open_round()
    reported = []
    for client in work.participants:
        steps = work.steps.get(client, samples[client])
        squared_losses = float(10 * (client + 1) * steps / work.round)
        reported.append(
            ClientResult(client, steps, steps, 1.0 + client / work.round, 1.0, squared_losses=squared_losses)
        )
    return RoundResult({"w": torch.tensor([float(work.round)])}, reported)


def close(one: Session, samples: list[int]) -> ClosedRound:
    return one.close_round(results(one, samples))
