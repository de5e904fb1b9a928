"""One of C classes: for each sample, or at each of its positions. And what all objectives with classes share."""

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from cpfl.errors import DataError
from cpfl.objectives.base import NOT_COUNTED, Labels, Objective
from cpfl.objectives.links import SOFTMAX

SURELY = 1000  # classes that a set may have, however few its samples are
LARGEST = 100_000  # as data.classes


class Counted(Objective):
    """Labels are classes that can be counted, and an answer is right or wrong for each item of a sample."""

    has_classes = True

    def column_names(self, classes: int) -> list[str]:
        """The numbers of the classes."""
        return [str(k) for k in range(classes)]

    def right(self, answers: Tensor, y: Tensor) -> Tensor:
        """Which items are right, (S, J)."""
        return self.predicted(answers).eq(y).reshape(len(y), math.prod(y.shape[1:]))

    def score(self, answers: Tensor, y: Tensor) -> float:
        """The share of items that are right, in per cent."""
        known = torch.from_numpy(self.counted(y.cpu().numpy()) != NOT_COUNTED).to(answers.device)
        return 100 * self.right(answers, y)[known].double().mean().item()

    def scores_by_class(self, answers: Tensor, y: Tensor, classes: int) -> list[float | None]:
        """Of the items of each class."""
        right, held = self._hits(answers, y, self.counted(y.cpu().numpy()), classes)
        return [100 * float(r / h) if h else None for r, h in zip(right, held, strict=True)]

    def scores_by_group(self, answers: Tensor, y: Tensor, owner: NDArray[np.int64], groups: int) -> list[float | None]:
        """Of the items of each group."""
        counted = self.counted(y.cpu().numpy())
        of = np.where(counted == NOT_COUNTED, NOT_COUNTED, owner[:, None])
        right, held = self._hits(answers, y, of, groups)
        return [float(100 * r / h) if h else None for r, h in zip(right, held, strict=True)]

    def _hits(self, answers: Tensor, y: Tensor, of: NDArray[np.int64], count: int) -> tuple[Labels, Labels]:
        """How many items are right, and how many there are, by the number that each item has in `of`."""
        known = of != NOT_COUNTED
        right = self.right(answers, y).cpu().numpy()[known]
        return np.bincount(of[known], right, count), np.bincount(of[known], minlength=count)


class Classification(Counted):
    """One class for each sample; cross-entropy, and the accuracy of the most probable class."""

    metric = "accuracy"
    answer = "one logit for each class (data.classes sets their number)"
    link = SOFTMAX
    ignored = -100  # a label that is left out: torch's own default, and no label of a whole sample is negative

    def losses(self, answers: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy."""
        return functional.cross_entropy(answers, y, reduction="none")

    def loss(self, answers: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
        """In one operation."""
        if type(self).losses is not Classification.losses:
            return super().loss(answers, y, reduction)
        return functional.cross_entropy(answers, y, reduction=reduction)

    def predicted(self, answers: Tensor) -> Tensor:
        """The class of the highest logit."""
        return answers.argmax(dim=-1)

    def target_loss(self, targets: Tensor, probabilities: bool, y: Tensor) -> Tensor:
        """Cross-entropy, from log-probabilities where targets are probabilities."""
        tiny = torch.finfo(targets.dtype).tiny
        logs = targets.clamp_min(tiny).log() if probabilities else torch.log_softmax(targets, dim=-1)
        return functional.nll_loss(logs.flatten(0, -2), y.flatten(), ignore_index=self.ignored)

    def labels(self, y: Labels, name: str, dtype: str = "float32") -> Labels:
        """Integers from 0, one for each sample."""
        if y.ndim != 1 or y.dtype.kind not in "iub":
            raise self._refused(y, name, "integers, one for each sample")
        return y.astype(np.int64)

    def classes(self, sets: Mapping[str, Labels], given: int) -> int:
        """The setting, or what the training labels give."""
        classes, allowed_by = given, f"data.classes = {given} allows" if given else "the training set's are"
        for name, labels in sets.items():
            y = labels[labels != self.ignored] if self.leaves_out else labels
            if len(y) == 0:
                raise DataError(f"the {name} set has no label that is counted")
            if y.min() < 0:
                raise DataError(f"a label of the {name} set is {y.min()}: labels count from 0")
            if not classes and y.max() >= max(len(y), SURELY):
                raise DataError(
                    f"a label of the {name} set is {y.max()}, and it has {len(y)} samples: labels number the "
                    f"classes from 0; if there are so many classes, set data.classes (at most {LARGEST:,})"
                )
            classes = classes or int(y.max()) + 1
            if y.max() >= classes:
                remedy = "" if allowed_by.startswith("data") else "; data.classes sets how many classes there are"
                raise DataError(f"a label of the {name} set is {y.max()}: {allowed_by} 0 to {classes - 1}{remedy}")
        return classes

    def counted(self, y: Labels) -> NDArray[np.int64]:
        """The class."""
        return y[:, None]


class PerPosition(Classification):
    """A class at every position of a sample, such as the next character at every character, or a class a pixel.

    A sample's loss is the mean over its positions, but those whose label is `ignore`.
    """

    metric = "accuracy of positions"
    leaves_out = has_positions = True
    answer = "a logit for each class at every position, classes last (data.classes sets their number)"

    def __init__(self, ignore: int = -100) -> None:
        self.ignored = ignore

    def losses(self, answers: Tensor, y: Tensor) -> Tensor:
        """The mean cross-entropy of the positions of each sample."""
        labels = y.flatten(1)
        each = functional.cross_entropy(
            answers.flatten(0, -2), y.flatten(), ignore_index=self.ignored, reduction="none"
        ).view(labels.shape)
        return each.sum(1) / labels.ne(self.ignored).sum(1).clamp(min=1)

    def labels(self, y: Labels, name: str, dtype: str = "float32") -> Labels:
        """Integers, one for each position."""
        if y.ndim < 2 or 0 in y.shape[1:] or y.dtype.kind not in "iub":
            raise self._refused(y, name, "integers of shape (samples, positions)")
        return y.astype(np.int64)

    def classes(self, sets: Mapping[str, Labels], given: int) -> int:
        """All sets have the same positions."""
        if len(shapes := {y.shape[1:] for y in sets.values()}) > 1:
            raise DataError(f"the sets have labels of different shapes: {', '.join(map(str, sorted(shapes)))}")
        return super().classes(sets, given)

    def answer_shape(self, label_shape: tuple[int, ...], classes: int) -> tuple[int, ...]:
        """Classes at every position."""
        return (*label_shape, classes)

    def counted(self, y: Labels) -> NDArray[np.int64]:
        """The class of every position."""
        flat = y.reshape(len(y), math.prod(y.shape[1:]))
        return np.where(flat == self.ignored, NOT_COUNTED, flat)

    def sensitivity(self, label_shape: tuple[int, ...]) -> float:
        """All positions may have the same class."""
        return float(math.prod(label_shape))
