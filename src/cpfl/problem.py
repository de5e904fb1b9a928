"""The learning problem: everything that is settled before a cohort trains, checked before anything is written."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cpfl import models
from cpfl.availability import availability
from cpfl.cohorts import CohortPlan
from cpfl.data import federated
from cpfl.data.federated import FederatedData, Given
from cpfl.devices import Fleet
from cpfl.devices import fleet as fleet_of
from cpfl.errors import ModelError, SettingError
from cpfl.experiment import Distillation, Experiment, Model, Stopping
from cpfl.federation.session import Session
from cpfl.models import ModelFactory, State
from cpfl.planning import plan_cohorts
from cpfl.population import Population, settled
from cpfl.privacy.counts import cohort_counts


@dataclass(frozen=True)
class Architecture:
    """A model that some cohorts train instead of the experiment's."""

    build: ModelFactory
    start: State
    model_bytes: int


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
    label_counts: NDArray[np.int64]  # of cohorts, (N, C); a row of HIDDEN: not known
    others: dict[int, Architecture] = field(default_factory=dict)  # by cohort, of those with a model of their own

    def of(self, cohort: int) -> Problem:
        """The problem as a cohort has it: with the model that it trains."""
        own = self.others.get(cohort)
        if own is None:
            return self
        return replace(self, build=own.build, start=own.start, model_bytes=own.model_bytes, others={})

    def session(self, cohort: int, kind: type[Session] = Session) -> Session:
        """A cohort's session, as it begins."""
        own, sizes = self.of(cohort), self.data.clients.training_sizes
        return kind(cohort, self.plan[cohort], self.experiment, self.fleet, own.model_bytes, own.start, sizes)

    def fingerprint(self) -> dict[str, str]:
        """Checksums of the data, of who holds them, and of the devices: what a resumed run must find again."""
        speeds = hashlib.sha256()
        for column in (self.fleet.compute_ms, self.fleet.network_kbps):
            speeds.update(np.ascontiguousarray(column).data)
        if self.fleet.availability is not None:
            speeds.update(self.fleet.availability.known.encode())
        return {**self.data.fingerprint(), "clients'": self.data.clients.fingerprint(), "device": speeds.hexdigest()}


OwnModel = nn.Module | Callable[[], nn.Module]


def prepare(
    experiment: Experiment,
    roots: Sequence[Path],
    given: Given,
    model: OwnModel | None = None,
    plan: CohortPlan | None = None,  # of a run that began with it
    population: Population | None = None,  # if it is settled already
) -> Problem:
    """Settle and check everything; what is wrong is told here, before a run folder exists."""
    devices = _devices(experiment, roots) if population is None else population.fleet
    data = federated.load(experiment, roots, given, None if population is None else population.clients)
    check_judge(data, experiment.stopping)
    check_views(data, experiment.distillation)
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
    if population is None:
        plan = plan_cohorts(experiment, data, devices, size) if plan is None else plan
        population = settled(data.clients, devices, plan)
        data = replace(data, clients=population.clients)
    made: dict[str, Architecture] = {}
    for cohort, name in experiment.cohorting.models.items():
        if name not in made:
            made[name] = _architecture(name, f"cohorting.models.{cohort}", experiment, data, x)
    others = {int(cohort): made[name] for cohort, name in experiment.cohorting.models.items()}
    fleet, plan, counts = population.fleet, population.plan, population.label_counts
    if counts is None:
        counts = cohort_counts(data.label_table, plan, experiment.privacy, experiment.seed)
    return Problem(experiment, data, build, build_student, fleet, plan, state, size, counts, others)


def _devices(experiment: Experiment, roots: Sequence[Path]) -> Fleet:
    devices = fleet_of(experiment.devices, experiment.clients, experiment.seed, roots)
    spells = availability(experiment.devices, experiment.clients, experiment.seed, roots)
    return devices if spells is None else replace(devices, availability=spells)


def _architecture(name: str, key: str, experiment: Experiment, data: FederatedData, x: torch.Tensor) -> Architecture:
    settings = models.named(experiment.model, name)
    build = models.factory(settings, data.train.shape, data.classes, key)
    start = models.fresh(build, experiment.seed, "init", data.transform.dtype)
    models.check(start, x, data.classes)
    state = models.state_of(start)
    return Architecture(build, state, models.wire_bytes(settings, state))


def check_judge(data: FederatedData, settings: Stopping) -> None:
    """Somebody must have samples to judge by."""
    if settings.rule == "joint" and settings.judge == "ensemble" and not data.clients.validation_sizes.any():
        raise SettingError(
            'stopping.judge = "ensemble" needs validation samples, and no client keeps any: '
            "lower data.validation_minimum or raise data.validation"
        )


def check_views(data: FederatedData, settings: Distillation) -> None:
    """Only images can be cropped and mirrored."""
    public = data.public
    if settings.augment in ("cut-mix", "crop-flip", "mirror") and (
        len(public.shape) != 3 or public.x.dtype != np.uint8
    ):
        raise SettingError(
            f"distillation.augment = {settings.augment!r} is for images (uint8, channels first), not for samples of "
            f"shape {public.shape}; allowed here: auto, training, none"
        )


def own_factory(model: OwnModel) -> ModelFactory:
    """A factory from what the user gave: a class or function that builds a model, or a model to copy afresh."""
    if not isinstance(model, nn.Module):
        if not callable(model):
            raise ModelError(f"model takes an nn.Module, a class or a function that builds one, not {model!r}")
        return models.guarded(getattr(model, "__name__", "given"), model)

    def rebuild() -> nn.Module:
        module = copy.deepcopy(model)
        for part in module.modules():  # a fresh start, not the given weights; what is frozen is meant as it is
            reset = getattr(part, "reset_parameters", None)
            if callable(reset) and all(value.requires_grad for value in part.parameters()):
                reset()
        return module

    return rebuild
