"""A task: data, model, devices and cohorts of one experiment, built once and checked before anything is written."""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
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
from cpfl.errors import FAILURES, ModelError, SettingError, first_line, quoted
from cpfl.federation.session import Session
from cpfl.models import ModelFactory, State, batch_norm
from cpfl.models.adapter import adapted
from cpfl.models.checks import check
from cpfl.models.given import copied, drawn_anew
from cpfl.models.layout import Layout
from cpfl.models.start import AS_GIVEN, FRESH, initial, reproducible, with_frozen_of
from cpfl.privacy.label_counts import cohort_counts
from cpfl.settings import Distillation, Experiment, Federation, Model, Stopping
from cpfl.task.population import Population, assign_cohorts, memory_mapped
from cpfl.user_files import expanded


@dataclass(frozen=True)
class CohortModel:
    """A model that some cohorts train instead of the experiment's."""

    build: ModelFactory
    start: State
    model_bytes: int


class Enrolled(Protocol):
    """What is known of the data of a node."""

    @property
    def training(self) -> int:
        """Its training samples."""


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
    enrolled: Mapping[int, Enrolled] = field(default_factory=dict)  # of a real fleet: its nodes, by client
    _layouts: dict[int, Layout] = field(default_factory=dict, init=False, compare=False)  # by the first such cohort

    def resolved(self, device: str) -> "Task":
        """The task with the arithmetic that precision = auto means on this kind of device."""
        return replace(self, experiment=self.experiment.resolved(device))

    def for_cohort(self, cohort: int) -> "Task":
        """The task with the model that a cohort trains."""
        own = self.cohort_models.get(cohort)
        if own is None:
            return self
        return replace(self, build=own.build, start=own.start, model_bytes=own.model_bytes, cohort_models={})

    def layout(self, cohort: int = 0) -> Layout:
        """What of a cohort's model is trained and what is frozen; made once for each model."""
        build = self.for_cohort(cohort).build
        key = next((one for one, own in self.cohort_models.items() if own.build is build), -1)
        if key not in self._layouts:
            module = models.fresh(build, self.experiment.seed, "init", self.data.transform.dtype)
            self._layouts[key] = Layout.from_module(module)
        return self._layouts[key]

    def twins(self, cohort: int) -> list[int]:
        """The cohorts that train the same model as this one."""
        builds = [own.build if (own := self.cohort_models.get(i)) else self.build for i in range(len(self.cohorts))]
        return [other for other, build in enumerate(builds) if build is builds[cohort]]

    def samples(self, cohort: int) -> int:
        """Training samples of a cohort's clients."""
        return self.samples_of(self.cohorts[cohort])

    def samples_of(self, clients: Sequence[int]) -> int:
        """Training samples of these clients; in a real fleet of those whose nodes have enrolled."""
        if self.enrolled:
            return sum(self.enrolled[client].training for client in clients if client in self.enrolled)
        return int(self.data.clients.training_sizes[np.asarray(clients)].sum())

    def regrouped(self, cohorts: Cohorts | None) -> "Task":
        """The same task with cohorts that were drawn anew, and their label counts; None: they never were."""
        if cohorts is None:
            return self
        data, e = self.data, self.experiment
        counts = cohort_counts(data.label_counts, data.classes, cohorts, e.privacy, e.seed, data.sensitivity)
        return replace(self, cohorts=cohorts, label_counts=counts)

    def starting_from(self, start: State, others: Mapping[int, State]) -> "Task":
        """The same task with other initial models, those of some cohorts by number; frozen parameters are theirs."""
        seed, dtype = self.experiment.seed, self.data.transform.dtype
        build = with_frozen_of(self.build, start, seed, dtype)
        own, built = dict[int, CohortModel](), {id(self.build): build}
        for cohort, one in self.cohort_models.items():
            if id(one.build) not in built:
                built[id(one.build)] = with_frozen_of(one.build, others[cohort], seed, dtype)
            own[cohort] = replace(one, build=built[id(one.build)], start=others[cohort])
        student = built.get(id(self.build_student), self.build_student)
        return replace(self, build=build, build_student=student, start=start, cohort_models=own)

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
    named, file = model_factory(experiment.model, model, shape, outputs), start_file(experiment.model, roots)
    dtype = data.transform.dtype
    build, start, size = initial(adapted(named, x), experiment.model, seed, x, expected, dtype, file)
    build_student, students = build, list[nn.Module]()
    if other := experiment.distillation.student:
        build_student = adapted(models.factory(Model(name=other), shape, outputs, "distillation.student"), x)
        students = [reproducible(build_student, seed, "student", dtype)]
        check(students[0], x, expected)
    if population is None:
        cohorts = assign_cohorts(experiment, data, devices, size) if cohorts is None else cohorts
        population = memory_mapped(data.clients, devices, cohorts)
        data = replace(data, clients=population.clients)
    made: dict[str, CohortModel] = {}
    for cohort, name in experiment.model.by_cohort.items():
        if name not in made:
            settings = models.named(experiment.model, name)
            own = adapted(models.factory(settings, shape, outputs, f"model.by_cohort.{cohort}"), x)
            made[name] = CohortModel(*initial(own, settings, seed, x, expected, dtype, start_file(settings, roots)))
    builds = [build, *(one.build for one in made.values())]
    modules = [models.fresh(one, seed, "init", dtype) for one in builds]
    check_batch_stats(experiment.federation, modules)
    check_integers(data, [*modules, *students])
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


@torch.no_grad()
def check_integers(data: FederatedData, modules: Sequence[nn.Module]) -> None:
    """Refuse samples that a model fails on, such as tokens that an embedding has no vector for."""
    if data.transform.kind == "pixels":
        return
    for name, samples in {"training": data.train, "test": data.test, "public": data.public}.items():
        if not len(rows := samples.extremes()):
            continue
        for module in modules:
            try:
                module.eval()(data.transform(torch.as_tensor(samples.x[rows])))
            except FAILURES as error:
                what = f"the smallest and the largest integers of the {name} set"
                raise ModelError(f"the model does not take {what}: {first_line(error)}") from None


def model_factory(settings: Model, model: UserModel | None, shape: tuple[int, ...], classes: int) -> ModelFactory:
    """What builds the model that is given, or else the one that the settings name."""
    if settings.start == AS_GIVEN and not isinstance(model, nn.Module):
        raise SettingError(
            'model.start = "given" needs a model object, given in Python: model=<an nn.Module>; a class or a function '
            "builds its weights itself"
        )
    if model is None:
        return models.factory(settings, shape, classes)
    return user_model_factory(model, settings.start != FRESH)


def start_file(settings: Model, roots: Sequence[Path]) -> Path | None:
    """The file that model.start names: a path, or a file below a data root."""
    if settings.start in (FRESH, AS_GIVEN):
        return None
    candidates = [expanded(Path(settings.start), "model.start"), *(root / settings.start for root in roots)]
    for path in candidates:
        if os.path.isfile(path):  # Path.is_file raises an error for a name that is too long
            return path
    raise SettingError(
        f"model.start = {quoted(settings.start)} is no file, nor one in a data folder; allowed: fresh, given, or a "
        "safetensors file"
    )


def user_model_factory(model: UserModel, keeps: bool = False) -> ModelFactory:
    """A factory from what the user gave: a class or function that builds a model, or a model to copy afresh.

    `keeps`: copies of the model keep its weights.
    """
    if not isinstance(model, nn.Module):
        if not callable(model):
            raise ModelError(f"model takes an nn.Module, a class or a function that builds one, not {model!r}")
        return models.guarded(getattr(model, "__name__", "given"), model)
    return models.guarded("given", lambda: copied(model) if keeps else drawn_anew(model))
