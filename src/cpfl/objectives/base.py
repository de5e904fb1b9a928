"""What every objective defines: its labels, its loss, its metric, and what of its labels is counted.

Axes: S samples, B samples of a batch, J items of a sample that are counted, C columns of label counts, O outputs (the
last axis of a model's answer), N cohorts.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cpfl.errors import FAILURES, DataError, SettingError, first_line
from cpfl.objectives.links import NUMBERS, Link
from cpfl.settings import Model
from cpfl.settings.choices import OBJECTIVES

NOT_COUNTED = -1  # instead of a class: an item that has no label
LOWEST = -1e6  # of a score; a model that is worse is no different

Labels = NDArray[Any]


class Answer(NamedTuple):
    """What a model must answer one sample with: its shape, and what it is in words."""

    shape: tuple[int, ...]
    what: str


class Objective:
    """Subclass it, or one of its built-in children, and name it "module:Class" in model.objective.

    Two methods are needed: `losses` and `score`. The rest is that of numbers to predict: labels of shape (S,) or
    (S, O), as many outputs, and no classes. Then every sample counts once for every output, so that a teacher's weight
    is its share of the samples. Keyword arguments of the constructor are model.objective_args.
    """

    metric = "score"
    """The metric's name, as everything that people read gives it beside the number."""
    answer = "one number for each output"
    """What a model must answer with."""
    link: Link = NUMBERS
    """How answers become probabilities."""
    has_classes = False
    """Whether what is counted are classes: their distribution over clients can be skewed."""
    has_positions = False
    """Whether labels belong to places of a sample: augmentation would move the one without the other."""
    leaves_out = False
    """Whether some items of a sample may have no label."""

    def losses(self, answers: Tensor, y: Tensor) -> Tensor:
        """The loss of each sample, (B,), from a model's answers and the labels of a batch; runs under vmap too."""
        raise NotImplementedError

    def loss(self, answers: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
        """The mean of the losses, or their sum."""
        losses = self.losses(answers, y)
        return losses.sum() if reduction == "sum" else losses.mean()

    def score(self, answers: Tensor, y: Tensor) -> float:
        """The metric of a set of samples: higher is better, at most 100 (per cent). NaN: it has none."""
        raise NotImplementedError

    def labels(self, y: Labels, name: str, dtype: str = "float32") -> Labels:
        """The labels of the set called `name` in the form that `losses` takes; others are refused."""
        if y.dtype.kind not in "fiub" or y.ndim not in (1, 2) or 0 in y.shape[1:]:
            raise self._refused(y, name, "numbers of shape (samples,) or (samples, outputs)")
        with np.errstate(over="ignore"):  # infinity is refused below
            found = y.reshape(len(y), -1).astype(dtype)
        if not np.isfinite(found).all():
            raise DataError(f"labels of the {name} set contain values that are not finite numbers")
        return found

    def classes(self, sets: Mapping[str, Labels], given: int) -> int:
        """The number of columns of label counts, from the labels of all sets; `given` is data.classes."""
        found = {y.shape[1:] for y in sets.values()}
        if len(found) > 1:
            shapes = ", ".join(f"{name} {y.shape[1:]}" for name, y in sets.items())
            raise DataError(f"the sets have labels of different shapes: {shapes}")
        columns = self.columns(int(found.pop()[-1]))
        if given not in (0, columns):
            raise DataError(f"data.classes = {given} does not fit labels of shape {next(iter(sets.values())).shape}")
        return columns

    def columns(self, labels: int) -> int:
        """The number of columns of label counts, for so many numbers in a label."""
        return labels

    def column_names(self, classes: int) -> list[str]:
        """What each column of the label counts is called, where classes have no names."""
        return [f"output {k}" for k in range(classes)]

    def outputs(self, classes: int) -> int:
        """The length of the last axis of a model's answer."""
        return classes

    def answer_shape(self, label_shape: tuple[int, ...], classes: int) -> tuple[int, ...]:
        """The shape of a model's answer to one sample, whose label has this shape."""
        return (self.outputs(classes),)

    def counted(self, y: Labels) -> NDArray[np.int64]:
        """What each label adds to label counts: the columns of its items, (S, J), or NOT_COUNTED."""
        return np.broadcast_to(np.arange(y.shape[1]), y.shape)

    def sensitivity(self, label_shape: tuple[int, ...]) -> float:
        """How far the label counts of a client move at most with one sample more or less, in Euclidean distance."""
        return math.sqrt(math.prod(label_shape))

    def output_weights(self, weights_NC: NDArray[np.float64]) -> NDArray[np.float64]:
        """A teacher's weight for each output, (N, O), from its weight for each column of the label counts."""
        return weights_NC

    def predicted(self, answers: Tensor) -> Tensor:
        """The labels that these answers predict."""
        return answers

    def target_loss(self, targets: Tensor, probabilities: bool, y: Tensor) -> Tensor:
        """The mean loss of what teachers predict together: probabilities, or else answers."""
        return self.loss(self.link.answers(targets) if probabilities else targets, y)

    def scores_by_class(self, answers: Tensor, y: Tensor, classes: int) -> list[float | None]:
        """The metric of each output; None: it has none."""
        return [_known(self.score(answers[..., k : k + 1], y[..., k : k + 1])) for k in range(classes)]

    def scores_by_group(self, answers: Tensor, y: Tensor, owner: NDArray[np.int64], groups: int) -> list[float | None]:
        """The metric of the samples of each group; None: it has none, or no samples."""
        found: list[float | None] = [None] * groups
        for group in np.unique(owner).tolist():
            own = torch.from_numpy(np.flatnonzero(owner == group)).to(y.device)
            found[group] = _known(self.score(answers[own], y[own]))
        return found

    def _refused(self, y: Labels, name: str, needed: str) -> DataError:
        return DataError(
            f"labels of the {name} set are {needed}; these are {y.dtype} of shape {y.shape} (model.objective says what "
            "labels are)"
        )


def _known(score: float) -> float | None:
    return None if math.isnan(score) else score


def objective(settings: Model) -> Objective:
    """The objective that the settings name."""
    return OBJECTIVES.build(settings.objective, settings.objective_args)


def check_losses(own: Objective, y: Labels, classes: int) -> None:
    """Refuse an objective of the user's whose methods do not fit, before anything is trained."""
    labels = torch.from_numpy(np.ascontiguousarray(y[:2]))
    answers = torch.zeros(len(labels), *own.answer_shape(y.shape[1:], classes))
    name = f"model.objective = {type(own).__name__!r}"
    try:
        losses = own.losses(answers, labels)
        if not (isinstance(losses, Tensor) and losses.shape == (len(labels),)):
            shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise SettingError(f"{name}: losses must return one loss for each sample, ({len(labels)},), not {shape}")
        score = own.score(answers, labels)
        if not isinstance(score, float) or score > 100:
            raise SettingError(f"{name}: score must return a number of at most 100 (higher is better), not {score!r}")
    except SettingError:
        raise
    except FAILURES as error:  # a user's class can fail in any way
        shape = tuple(answers.shape)
        raise SettingError(f"{name} does not take answers of shape {shape}: {first_line(error)}") from None
