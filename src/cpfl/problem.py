"""The learning problem: everything that is settled before a cohort trains, checked before anything is written."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from cpfl import models
from cpfl.availability import availability
from cpfl.cohorts import CohortPlan, random_plan
from cpfl.data import federated
from cpfl.data.federated import FederatedData, Given
from cpfl.devices import Fleet, fleet
from cpfl.errors import ModelError, SettingError
from cpfl.experiment import Experiment, Model
from cpfl.models import ModelFactory, State


@dataclass(frozen=True)
class Problem:
    """Data, model, devices and plan of one experiment."""

    experiment: Experiment
    data: FederatedData
    build: ModelFactory
    build_student: ModelFactory
    fleet: Fleet
    plan: CohortPlan
    start: State  # all cohorts start from the same weights
    model_bytes: int

    def fingerprint(self) -> dict[str, str]:
        """Checksums of the data, of who holds them, and of the devices: what a resumed run must find again."""
        speeds = hashlib.sha256(self.fleet.compute_ms.tobytes() + self.fleet.network_kbps.tobytes())
        if self.fleet.availability is not None:
            speeds.update(self.fleet.availability.known.encode())
        return {**self.data.fingerprint(), "clients'": self.data.clients.fingerprint(), "device": speeds.hexdigest()}


OwnModel = nn.Module | Callable[[], nn.Module]


def prepare(experiment: Experiment, roots: Sequence[Path], given: Given, model: OwnModel | None = None) -> Problem:
    """Settle and check everything; what is wrong is told here, before a run folder exists."""
    plan = random_plan(experiment.clients, experiment.cohorts, experiment.seed)
    devices = fleet(experiment.devices, experiment.clients, experiment.seed, roots)
    spells = availability(experiment.devices, experiment.clients, experiment.seed, roots)
    if spells is not None:
        devices = replace(devices, availability=spells)
    data = federated.load(experiment, roots, given)
    stopping = experiment.stopping
    if stopping.rule == "joint" and stopping.judge == "ensemble" and not data.clients.validation_sizes.any():
        raise SettingError(
            'stopping.judge = "ensemble" needs validation samples, and no client keeps any: '
            "lower data.validation_minimum or raise data.validation"
        )
    shape, classes = data.train.shape, data.classes
    build = models.factory(experiment.model, shape, classes) if model is None else own_factory(model)
    other = experiment.distillation.student
    build_student = models.factory(Model(name=other), shape, classes, "distillation.student") if other else build
    dtype = data.transform.dtype
    start = models.fresh(build, experiment.seed, "init", dtype)
    x = data.transform(torch.as_tensor(data.train.x[:2]))
    models.check(start, x, classes)
    if other:
        models.check(models.fresh(build_student, experiment.seed, "student", dtype), x, classes)
    state = models.state_of(start)
    size = models.wire_bytes(experiment.model, state)
    return Problem(experiment, data, build, build_student, devices, plan, state, size)


def own_factory(model: OwnModel) -> ModelFactory:
    """A factory from what the user gave: a class or function that builds a model, or a model to copy afresh."""
    if not isinstance(model, nn.Module):
        if not callable(model):
            raise ModelError(f"model takes an nn.Module, a class or a function that builds one, not {model!r}")
        return models.guarded(getattr(model, "__name__", "given"), model)

    def rebuild() -> nn.Module:
        module = copy.deepcopy(model)
        for part in module.modules():  # a fresh start, not the given weights
            reset = getattr(part, "reset_parameters", None)
            if callable(reset):
                reset()
        return module

    return rebuild
