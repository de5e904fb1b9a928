"""Yes or no for each of L labels: several at once (multi-label), or one (binary).

No and yes are both counted, so that 2 L columns hold the counts: no and yes of the first label, of the second one, …
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from cpfl.errors import DataError
from cpfl.objectives.base import Labels, Objective
from cpfl.objectives.classes import Counted
from cpfl.objectives.links import SIGMOID
from cpfl.registry import require


class MultiLabel(Counted):
    """Labels 0 and 1 of shape (S, L); binary cross-entropy, the mean over labels.

    The metric is the share of labels that are right, or F1 of the yes (of all labels together).
    """

    metric = "accuracy of labels"
    answer = "one logit for each label"
    link = SIGMOID

    def __init__(self, metric: str = "accuracy") -> None:
        require("metric", metric, metric in ("accuracy", "f1"), "accuracy or f1")
        if metric == "f1":
            self.metric = "F1"

    def losses(self, answers: Tensor, y: Tensor) -> Tensor:
        """Binary cross-entropy, the mean over labels."""
        return functional.binary_cross_entropy_with_logits(answers, y.to(answers.dtype), reduction="none").mean(-1)

    def predicted(self, answers: Tensor) -> Tensor:
        """Yes where the logit is above 0."""
        return answers.gt(0).long()

    def score(self, answers: Tensor, y: Tensor) -> float:
        """Accuracy, or F1."""
        if self.metric != "F1":
            return super().score(answers, y)
        yes = self.predicted(answers)
        found, wrong = yes.mul(y).sum().item(), yes.ne(y).sum().item()
        return 100 * 2 * found / (2 * found + wrong) if found + wrong else float("nan")

    def scores_by_group(self, answers: Tensor, y: Tensor, owner: NDArray[np.int64], groups: int) -> list[float | None]:
        """Of the labels of each group."""
        kind = Objective if self.metric == "F1" else Counted
        return kind.scores_by_group(self, answers, y, owner, groups)

    def labels(self, y: Labels, name: str, dtype: str = "float32") -> Labels:
        """0 and 1, for each label of each sample."""
        if y.ndim not in (1, 2) or 0 in y.shape[1:] or y.dtype.kind not in "fiub" or not np.isin(y, (0, 1)).all():
            raise self._refused(y, name, "0 or 1, of shape (samples, labels)")
        return y.reshape(len(y), -1).astype(np.int64)

    def classes(self, sets: Mapping[str, Labels], given: int) -> int:
        """Refuse a test set that has no F1."""
        if self.metric == "F1" and not sets.get("test", np.ones(1)).any():
            raise DataError("no label of the test set is 1: F1 has no meaning there")
        return super().classes(sets, given)

    def columns(self, labels: int) -> int:
        """No and yes of every label."""
        return 2 * labels

    def column_names(self, classes: int) -> list[str]:
        """No and yes of every label."""
        return [f"{k}: {answer}" for k in range(classes // 2) for answer in ("no", "yes")]

    def outputs(self, classes: int) -> int:
        """A logit for each label."""
        return classes // 2

    def counted(self, y: Labels) -> NDArray[np.int64]:
        """No or yes of each label."""
        return y + 2 * np.arange(y.shape[1])

    def output_weights(self, weights_NC: NDArray[np.float64]) -> NDArray[np.float64]:
        """The mean of a teacher's share of the no and of the yes.

        By its share of the yes alone, a teacher that has seen hardly any no would count most.
        """
        by_answer = weights_NC.reshape(len(weights_NC), -1, 2)  # N × L × (no, yes)
        return (by_answer[..., 0] + by_answer[..., 1]) / 2


class Binary(MultiLabel):
    """One label, 0 or 1, and one logit; binary cross-entropy and accuracy."""

    metric = "accuracy"
    answer = "one logit"

    def __init__(self) -> None:
        super().__init__()

    def column_names(self, classes: int) -> list[str]:
        """The two answers."""
        return ["0", "1"]

    def labels(self, y: Labels, name: str, dtype: str = "float32") -> Labels:
        """0 or 1 for each sample, or false and true."""
        if y.shape[1:] not in ((), (1,)) or not np.isin(y, (0, 1)).all():
            raise self._refused(y, name, "0 or 1, one for each sample")
        return super().labels(y, name, dtype)
