"""Means of model states: over models as they arrive, and over a model's own past."""

import torch

from cpfl.models import State


class RunningMean:
    """A weighted mean, streamed: memory does not grow with the number of models."""

    def __init__(self) -> None:
        self._sum: State = {}
        self._weight = 0.0

    def add(self, state: State, weight: float) -> None:
        """Add one model; it is not kept."""
        for name, value in state.items():
            if name not in self._sum:
                self._sum[name] = value * weight if value.is_floating_point() else value.clone()
            elif value.is_floating_point():  # counters, such as BatchNorm's, stay those of the first model
                self._sum[name].add_(value, alpha=weight)
        self._weight += weight

    def result(self) -> State:
        """The mean of what was added."""
        return {n: v / self._weight if v.is_floating_point() else v for n, v in self._sum.items()}


def ema(average: State, model: State, share: float) -> State:
    """An exponential moving average with `share` of the new model: steps of constant length end around a minimum, their
    mean nearer to it. It is a new state, because others may still hold the old one."""
    if share >= 1:
        return model
    names = [name for name, value in model.items() if value.is_floating_point()]  # counters are the newest model's
    olds = [average[name].to(model[name].device) for name in names]
    news = torch._foreach_lerp(olds, [model[name] for name in names], share)
    return model | dict(zip(names, news, strict=True))
