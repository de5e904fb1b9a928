"""A model's answers to inputs, as an array or in the form that people read: a class, labels, or numbers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cpfl.data import given
from cpfl.data.transform import kind_of
from cpfl.errors import DataError
from cpfl.models.adapter import Inputs, part, size
from cpfl.objectives.base import Objective

BATCH = 256  # samples that are answered at a time


def predicted(
    module: Callable[[Inputs], Tensor], objective: Objective, about: Mapping[str, Any], x: object
) -> NDArray[np.generic]:
    """What a run's global model predicts for a user's arrays; `about` is run.json, which has the form of its inputs."""
    inputs, found = _inputs(about, given.inputs(x)), list[Tensor]()
    with torch.no_grad():
        for start in range(0, size(inputs), BATCH):
            found.append(objective.predicted(module(part(inputs, slice(start, start + BATCH)))))
    array: NDArray[np.generic] = torch.cat(found).numpy() if found else np.empty(0, np.int64)
    return array


def _inputs(about: Mapping[str, Any], x: Any) -> Inputs:
    """Arrays as a model takes them, checked against the training set's."""
    fields = about.get("fields") or []
    if not fields:
        if isinstance(x, dict):
            raise DataError(f"the model takes one array, of samples of shape {tuple(about['shape'])}, not {len(x)}")
        return _tensor("the inputs", x, tuple(about["shape"]), about.get("inputs", "pixels"))
    names = [one["name"] for one in fields]
    if not isinstance(x, dict) or set(x) != set(names):
        have = f"has {', '.join(x)}" if isinstance(x, dict) else "is one array"
        raise DataError(f"the model takes the inputs {', '.join(names)}, and what is given {have}")
    found = {}
    for one in fields:
        name, shape = one["name"], tuple(one["shape"])
        kind = "booleans" if one["dtype"] == "bool" else kind_of(np.dtype(one["dtype"]), shape)
        found[name] = _tensor(f"the input {name!r}", x[name], shape, kind)
    return tuple(found.values()) if names[0].isdigit() else found


def _tensor(name: str, values: NDArray[Any], shape: tuple[int, ...], kind: str) -> Tensor:
    if values.shape[1:] != shape:
        raise DataError(f"{name} have samples of shape {values.shape[1:]}: the model was trained on {shape}")
    tensor = torch.from_numpy(values)
    if kind == "pixels":
        return tensor.float() / 255 if values.dtype == np.uint8 else tensor.float()
    if kind == "integers" and tensor.is_floating_point():
        raise DataError(f"{name} are {values.dtype}: the model was trained on integers")
    return tensor.float() if kind == "numbers" else tensor.bool() if kind == "booleans" else tensor.long()


def described(objective: Objective, answers: Tensor, names: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    """One entry for each sample: what is predicted, and how probable it is where the objective knows that."""
    link, predicted = objective.link, objective.predicted(answers)
    probabilities = link.probabilities(answers) if link.has_probabilities else None
    for k, answer in enumerate(predicted):
        if probabilities is None or answers.dim() > 2:
            yield {"answer": answer.tolist()}
        elif link.name == "sigmoid" and answers.shape[1] > 1:
            yield {"answer": answer.nonzero().flatten().tolist(), "probabilities": probabilities[k].tolist()}
        else:
            best = int(answer)
            sure = float(probabilities[k, 0] if best else 1 - probabilities[k, 0])
            probability = sure if link.name == "sigmoid" else float(probabilities[k, best])
            yield {"class": best, "name": names[best] if names else str(best), "probability": probability}
