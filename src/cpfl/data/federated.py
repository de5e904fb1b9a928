"""The experiment's data, complete and checked: training samples with their owners, test set, public set."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cpfl.data import sources
from cpfl.data.given import Given
from cpfl.data.samples import Array, Samples
from cpfl.data.split import Clients, split
from cpfl.data.tables import Roles
from cpfl.data.transform import HOLE, PAD, Transform, kind_of
from cpfl.errors import DataError, SettingError
from cpfl.objectives.base import Answer, Objective, check_losses
from cpfl.objectives.base import objective as objective_of
from cpfl.randomness import stream
from cpfl.settings import Experiment

MIN_SIDE = HOLE + 2 * PAD  # of an image of which augmentation leaves something to see


@dataclass(frozen=True)
class FederatedData:
    """Who holds what, and what everybody may see."""

    train: Samples
    test: Samples
    public: Samples
    objective: Objective
    classes: int  # columns of label counts
    clients: Clients
    transform: Transform
    public_transform: Transform
    augmented: bool
    class_names: tuple[str, ...] = ()  # where labels were given as names

    @property
    def answer(self) -> Answer:
        """What a model must answer one sample with."""
        return Answer(self.objective.answer_shape(self.label_shape, self.classes), self.objective.answer)

    @property
    def outputs(self) -> int:
        """The length of the last axis of a model's answer."""
        return self.objective.outputs(self.classes)

    @property
    def sensitivity(self) -> float:
        """How far a client's label counts move at most with one sample more or less."""
        return self.objective.sensitivity(self.label_shape)

    def can_count(self, total: int, samples: int) -> bool:
        """Whether so many samples can add up to this total of label counts; positions may be left out."""
        most = samples * math.prod(self.label_shape)
        return total == most or (self.objective.leaves_out and total < most)

    @property
    def label_shape(self) -> tuple[int, ...]:
        """The shape of one sample's label; () if it is one class."""
        assert self.test.y is not None, "test labels were checked"
        return self.test.y.shape[1:]

    def inputs(self, count: int) -> Any:
        """Model inputs of the first samples, in memory of their own; a server has only public ones."""
        some, transform = (self.train, self.transform) if len(self.train) else (self.public, self.public_transform)
        return transform(torch.as_tensor(some.x[:count].copy()))

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Training labels by client and class, (M, C); large for a large population, so computed on demand."""
        return self.label_counts(np.arange(len(self.clients)))

    def label_counts(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Training labels of some clients by client and class, (K, C)."""
        assert self.train.y is not None
        return self.clients.label_counts(self.objective, self.train.y, self.classes, clients)


def transforms(experiment: Experiment, samples: Samples) -> tuple[Transform, Transform]:
    """How training samples and public ones, all like these, become a model's inputs."""
    data, dtype = experiment.data, getattr(torch, experiment.dtype)
    mean = data.mean if data.public_mean is None else data.public_mean
    std = data.std if data.public_std is None else data.public_std
    kind = kind_of(samples.x.dtype, samples.shape) if data.inputs == "auto" else data.inputs
    if samples.fields and data.inputs != "auto":
        raise SettingError(
            f"data.inputs = {data.inputs!r} is for samples of one array; these have {len(samples.fields)}"
        )
    if kind == "integers" and samples.x.dtype.kind not in "iub":
        raise SettingError(f"data.inputs = 'integers' needs integers; these samples are {samples.x.dtype}")
    if kind == "pixels" and samples.x.dtype != np.uint8:
        raise SettingError(f"data.inputs = 'pixels' needs bytes (uint8); these samples are {samples.x.dtype}")
    if (mean or data.mean) and (samples.fields or kind == "integers"):
        raise SettingError("data.mean normalizes one array of pixels or numbers; these samples have integers or fields")
    more = (dtype, kind, samples.fields)
    return Transform(data.mean, data.std, *more), Transform(mean, std, *more)


NO_PUBLIC = "none"
"""What data.public says where there is no public set: the cohort models are merged, not distilled."""


def load(experiment: Experiment, roots: Sequence[Path], given: Given, clients: Clients | None = None) -> FederatedData:
    """Read, check, fit and split, unless it is known already which client holds what."""
    data, train, test, public = experiment.data, given.train, given.test, given.public
    roles = _roles(experiment)
    if train is None:
        test = sources.load(data.train, "test", roots, roles=roles) if test is None else test
        whole = test is None  # the test set is held out of it
        train = sources.load(data.train, "train", roots, limit=0 if whole else data.train_limit, roles=roles)
    if public is None and data.public != NO_PUBLIC:
        public = sources.load(data.public, "public", roots, data.public_splits, data.public_limit, roles)
    assert train is not None, "only a test set may be missing"
    if test is None:
        train, test = _hold_out_test(train, data.column if data.split == "column" else "")
    train = _limited(train, data.train_limit)
    has_public = public is not None
    public = train.take(np.arange(0)) if public is None else _limited(public, data.public_limit)
    if 0 < len(train) < experiment.clients:
        limit = f" (data.train_limit = {data.train_limit})" if data.train_limit else ""
        raise DataError(
            f"clients = {experiment.clients} is more than the {len(train)} training samples{limit}: each needs one"
        )
    for name, samples in (("training", train), ("test", test), ("public", public)):
        if samples.x.dtype.kind == "f" and not np.isfinite(samples.x).all():
            raise DataError(f"the {name} set has values that are not finite numbers")
    objective = objective_of(experiment.model)
    if given.class_names and not objective.has_classes:
        raise DataError(f"labels are texts: model.objective = {experiment.model.objective!r} needs numbers")
    train, test = labelled(objective, train, "training", experiment), labelled(objective, test, "test", experiment)
    assert train.y is not None, "labels were checked"
    assert test.y is not None, "labels were checked"
    sets, count = {"training": train.y, "test": test.y}, data.classes or len(given.class_names)
    classes = objective.classes(sets, count)
    check_losses(objective, test.y, classes)
    public = fit(public, train, data.public_fit, experiment.seed)
    test, public = test.like(train), public.like(train)
    for name, samples in [("test", test), *([("public", public)] if has_public else [])]:
        check_alike(name, samples, train, data.inputs)
    augmented = data.augment != "none"
    if augmented and (len(train.shape) != 3 or train.x.dtype != np.uint8):
        raise DataError(
            f"data.augment = {data.augment!r} is for images (uint8, channels first); these samples are {train.shape}"
        )
    if augmented and min(train.shape[1:]) < MIN_SIDE:
        raise DataError(
            f"data.augment = {data.augment!r} cuts holes of {HOLE}×{HOLE} and needs images of {MIN_SIDE}×{MIN_SIDE} or "
            f"more; these are {train.shape[1]}×{train.shape[2]}"
        )
    transform, public_transform = transforms(experiment, train)
    for key, means in (("data.mean", transform.mean), ("data.public_mean", public_transform.mean)):
        if means and len(means) not in (1, train.shape[0]):
            raise DataError(f"{key} has {len(means)} channels, the samples have {train.shape[0]}")
    clients = split(experiment, train) if clients is None else clients
    transforms_ = (transform, public_transform, augmented)
    return FederatedData(train, test, public, objective, classes, clients, *transforms_, given.class_names)


def labelled(objective: Objective, samples: Samples, name: str, experiment: Experiment) -> Samples:
    """The set called `name` with its labels as the objective takes them."""
    if samples.y is None:
        raise DataError(f"the {name} set has no labels")
    if len(samples) == 0:
        raise DataError(f"the {name} set is empty")
    return replace(samples, y=objective.labels(samples.y, name, experiment.dtype))


def _roles(experiment: Experiment) -> Roles:
    """The columns of a table that the experiment names: none of them is an input."""
    data, region = experiment.data, experiment.assignment.rule_args.get("column")
    ids = (data.column if data.split == "column" else "", region if isinstance(region, str) else "")
    return Roles(data.label, tuple(dict.fromkeys(filter(None, ids))), objective_of(experiment.model).has_classes)


def _limited(samples: Samples, limit: int) -> Samples:
    """The first samples, copied: the others need no memory any more."""
    return samples.take(np.arange(min(limit, len(samples)))) if limit else samples


def _hold_out_test(train: Samples, column: str) -> tuple[Samples, Samples]:
    """A tenth of the samples, the same for all seeds, where a source has no test set of its own.

    No value of the id column, if clients have one, is left without samples: its first one is not held out.
    """
    order = stream(0, "test").permutation(len(train))
    held = len(train) // 10
    if column in train.columns:
        owner = np.unique(train.columns[column], return_inverse=True)[1][order]
        trained = np.unique(owner[held:])
        held_out, places = np.unique(owner[:held], return_index=True)
        kept = places[~np.isin(held_out, trained)]
        order = np.concatenate([np.delete(order, kept), order[kept]])
        held -= len(kept)
    if held == 0:
        raise DataError(f"{len(train)} training samples are too few to hold out a test set: give a test set")
    return train.take(np.sort(order[held:])), train.take(np.sort(order[:held]))


def check_alike(name: str, samples: Samples, other: Samples, inputs: str, whose: str = "training") -> None:
    """Refuse a set whose samples are of another shape, type or names than those of the other set."""
    if samples.shape != other.shape and not (samples.names and other.names):
        hint = "; set data.public_fit=resize or crop for images" if name == "public" and len(other.shape) == 3 else ""
        raise DataError(f"the {name} set's samples have shape {samples.shape}, the {whose} set's {other.shape}{hint}")
    if samples.fields != other.fields:
        raise DataError(f"the {name} set's inputs are {_described(samples)}, the {whose} set's {_described(other)}")
    if samples.names != other.names:
        raise DataError(
            f"the {name} set's columns are {', '.join(samples.names) or 'not named'}, the {whose} set's "
            f"{', '.join(other.names) or 'not named'}: the same in the same order are needed"
        )
    kinds = [_kind(one, inputs) for one in (samples, other)]
    if kinds[0] != kinds[1]:
        raise DataError(
            f"the {name} set's samples are {samples.x.dtype}, the {whose} set's {other.x.dtype}: "
            "both must be pixels (uint8), both integers or both numbers"
        )
    if len(samples) == 0:
        raise DataError(f"the {name} set is empty")


def _kind(samples: Samples, inputs: str) -> str:
    """What the samples are to a model: with data.inputs, bytes of any shape are pixels, or integers."""
    if samples.x.dtype == np.uint8 and inputs in ("pixels", "integers"):
        return inputs
    return kind_of(samples.x.dtype, samples.shape)


def _described(samples: Samples) -> str:
    named = (f"{one.name} {one.dtype} {one.shape}" for one in samples.fields)
    return ", ".join(named) or f"one array of {samples.x.dtype} {samples.shape}"


def fit(public: Samples, train: Samples, how: str, seed: int) -> Samples:
    """Give public images the training images' channels and size, if the experiment allows it."""
    if how == "exact" or public.shape == train.shape or len(public.shape) != 3 or len(train.shape) != 3:
        return public
    channels, height, width = train.shape
    # Some thousand images at a time: a public set may be larger than memory allows as floats.
    batches = (_recoloured(public.x[k : k + 4096], channels) for k in range(0, len(public), 4096))
    if how == "resize":
        return Samples(np.concatenate([_resized(x, height, width) for x in batches]))
    x = np.concatenate(list(batches))
    if x.shape[2] < height or x.shape[3] < width:
        raise DataError(
            f"public images of {x.shape[2]}×{x.shape[3]} are too small to crop to {height}×{width}: "
            "set data.public_fit=resize"
        )
    rng = stream(seed, "public-crop")
    top = rng.integers(0, x.shape[2] - height + 1, len(x))
    left = rng.integers(0, x.shape[3] - width + 1, len(x))
    windows = np.lib.stride_tricks.sliding_window_view(x, (height, width), axis=(2, 3))
    return Samples(np.ascontiguousarray(windows[np.arange(len(x)), :, top, left]))


def _recoloured(x: Array, channels: int) -> Array:
    if x.shape[1] == 3 and channels == 1:  # luma, ITU-R BT.601
        grey = np.tensordot(x.astype(np.float32), np.array([0.299, 0.587, 0.114], np.float32), axes=([1], [0]))
        return (np.rint(grey) if x.dtype == np.uint8 else grey)[:, None].astype(x.dtype)
    return np.repeat(x, 3, axis=1) if x.shape[1] == 1 and channels == 3 else x


def _resized(x: Array, height: int, width: int) -> Array:
    images = torch.from_numpy(np.ascontiguousarray(x)).float()
    sized = torch.nn.functional.interpolate(images, (height, width), mode="bilinear", antialias=True)
    return (sized.round().clamp(0, 255).to(torch.uint8) if x.dtype == np.uint8 else sized).numpy()
