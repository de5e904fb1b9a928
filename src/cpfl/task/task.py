"""A task: data, model, devices and cohorts of one experiment, built once and checked before anything is written."""

import copy
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

from cpfl import models
from cpfl.cohorts.base import Cohorts
from cpfl.data import federated
from cpfl.data.federated import FederatedData
from cpfl.data.given import Given
from cpfl.devices.availability import availability
from cpfl.devices.fleet import Fleet
from cpfl.devices.fleet import fleet as fleet_of
from cpfl.errors import ModelError, SettingError
from cpfl.federation.session import Session
from cpfl.models import ModelFactory, State, batch_norm
from cpfl.models.adapter import adapted
from cpfl.privacy.label_counts import cohort_counts
from cpfl.settings import Distillation, Experiment, Federation, Model, Stopping
from cpfl.task.population import Population, assign_cohorts, memory_mapped


@dataclass(frozen=True)
class CohortModel:
    """A model that some cohorts train instead of the experiment's."""

    build: ModelFactory
    start: State
    model_bytes: int


@dataclass(frozen=True)
class Task:
    """Data, model, devices and cohorts of one experiment."""

    experiment: Experiment
    data: FederatedData
    build: ModelFactory
    build_student: ModelFactory
    fleet: Fleet
    cohorts: Cohorts
    start: State  # the initial model of all cohorts
    model_bytes: int
    label_counts: NDArray[np.int64]  # by cohort and class, (N, C); a row of HIDDEN: not reported
    cohort_models: dict[int, CohortModel] = field(default_factory=dict)  # of cohorts that train another model

    def for_cohort(self, cohort: int) -> "Task":
        """The task with the model that a cohort trains."""
        own = self.cohort_models.get(cohort)
        if own is None:
            return self
        return replace(self, build=own.build, start=own.start, model_bytes=own.model_bytes, cohort_models={})

    def session(self, cohort: int, kind: type[Session] = Session) -> Session:
        """A new session of a cohort."""
        own, sizes = self.for_cohort(cohort), self.data.clients.training_sizes
        return kind(cohort, self.cohorts[cohort], self.experiment, self.fleet, own.model_bytes, own.start, sizes)

    def fingerprint(self) -> dict[str, str]:
        """Checksums of the data, of who holds them, and of the devices, which a resumed run must find again."""
        speeds = hashlib.sha256()
        for column in (self.fleet.compute_ms, self.fleet.network_kbps):
            speeds.update(np.ascontiguousarray(column).data)
        if self.fleet.availability is not None:
            speeds.update(self.fleet.availability.fingerprint.encode())
        sets = {name: getattr(self.data, name).fingerprint() for name in ("train", "test", "public")}
        return {**sets, "clients'": self.data.clients.fingerprint(), "device": speeds.hexdigest()}


UserModel = nn.Module | Callable[[], nn.Module]


def build_task(
    experiment: Experiment,
    roots: Sequence[Path],
    given: Given,
    model: UserModel | None = None,
    cohorts: Cohorts | None = None,  # of a run that is resumed
    population: Population | None = None,  # if it is known already
) -> Task:
    """Load and check everything; what is wrong is refused here, before a run folder exists."""
    data = federated.load(experiment, roots, given, None if population is None else population.clients)
    devices = _devices(experiment, roots) if population is None else population.fleet  # of no more clients than samples
    check_evaluation(data, experiment.stopping)
    check_views(data, experiment.distillation)
    shape, outputs, seed, expected = data.train.shape, data.outputs, experiment.seed, data.answer
    x = data.inputs(2)
    named = models.factory(experiment.model, shape, outputs) if model is None else user_model_factory(model)
    build = adapted(named, x)
    dtype = data.transform.dtype
    start, size = models.initial(build, experiment.model, seed, x, expected, dtype)
    build_student = build
    if other := experiment.distillation.student:
        build_student = adapted(models.factory(Model(name=other), shape, outputs, "distillation.student"), x)
        models.check(models.fresh(build_student, seed, "student", dtype), x, expected)
    if population is None:
        cohorts = assign_cohorts(experiment, data, devices, size) if cohorts is None else cohorts
        population = memory_mapped(data.clients, devices, cohorts)
        data = replace(data, clients=population.clients)
    made: dict[str, CohortModel] = {}
    for cohort, name in experiment.model.by_cohort.items():
        if name not in made:
            settings = models.named(experiment.model, name)
            own = adapted(models.factory(settings, shape, outputs, f"model.by_cohort.{cohort}"), x)
            made[name] = CohortModel(own, *models.initial(own, settings, seed, x, expected, dtype))
    builds = [build, *(one.build for one in made.values())]
    check_batch_stats(experiment.federation, [models.fresh(one, seed, "init", dtype) for one in builds])
    others = {int(cohort): made[name] for cohort, name in experiment.model.by_cohort.items()}
    fleet, cohorts, counts = population.fleet, population.cohorts, population.label_counts
    if counts is None:
        counts = cohort_counts(data.label_counts, data.classes, cohorts, experiment.privacy, seed, data.sensitivity)
    return Task(experiment, data, build, build_student, fleet, cohorts, start, size, counts, others)


def _devices(experiment: Experiment, roots: Sequence[Path]) -> Fleet:
    devices = fleet_of(experiment.devices, experiment.clients, experiment.seed, roots)
    schedules = availability(experiment.devices, experiment.clients, experiment.seed, roots)
    return devices if schedules is None else replace(devices, availability=schedules)


def check_evaluation(data: FederatedData, settings: Stopping) -> None:
    """Refuse an evaluation on validation samples that no client has."""
    if settings.rule == "joint" and settings.metric == "ensemble-accuracy" and not data.clients.validation_sizes.any():
        raise SettingError(
            'stopping.metric = "ensemble-accuracy" needs validation samples, and no client keeps any: '
            "lower data.validation_min_samples or raise data.validation"
        )


def check_views(data: FederatedData, settings: Distillation) -> None:
    """Refuse to crop and flip what is no image, or what has labels at its places."""
    public = data.public
    moves = data.augmented or settings.augment not in ("auto", "training", "none")
    if moves and data.objective.has_positions:
        raise SettingError(
            "augmentation moves the places of an image, and model.objective = per-position has labels there: set "
            "data.augment = none and leave out distillation.augment"
        )
    if settings.augment in ("cutmix", "crop-flip", "flip") and (len(public.shape) != 3 or public.x.dtype != np.uint8):
        raise SettingError(
            f"distillation.augment = {settings.augment!r} is for images (uint8, channels first), not for samples of "
            f"shape {public.shape}; allowed here: auto, training, none"
        )


def check_batch_stats(settings: Federation, modules: Sequence[nn.Module]) -> None:
    """Refuse to keep BatchNorm layers with clients where no model of a cohort has any."""
    if settings.batch_stats == "local" and not any(map(batch_norm.names, modules)):
        key = 'federation.batch_stats = "local"'
        raise SettingError(f"{key} has no effect here: it needs a model with BatchNorm layers")


def user_model_factory(model: UserModel) -> ModelFactory:
    """A factory from what the user gave: a class or function that builds a model, or a model to copy afresh."""
    if not isinstance(model, nn.Module):
        if not callable(model):
            raise ModelError(f"model takes an nn.Module, a class or a function that builds one, not {model!r}")
        return models.guarded(getattr(model, "__name__", "given"), model)

    def rebuild() -> nn.Module:
        module = copy.deepcopy(model)
        for part in module.modules():  # fresh weights, not the given ones; frozen parameters stay
            reset = getattr(part, "reset_parameters", None)
            if callable(reset) and all(value.requires_grad for value in part.parameters()):
                reset()
        return module

    return rebuild
