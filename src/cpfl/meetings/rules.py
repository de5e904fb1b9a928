"""What a meeting rule is, and the mean. A rule makes the models of the cohorts into the one that all continue from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from cpfl.models import State
from cpfl.registry import require
from cpfl.settings.choices import MEETING_RULES
from cpfl.settings.types import FLOAT32

if TYPE_CHECKING:
    from cpfl.task.task import Task

WEIGHTS = ("equal", "samples", "work")


@dataclass(frozen=True)
class Contribution:
    """What a cohort brings to a meeting."""

    cohort: int
    model: State  # its newest model: what is trained of it, and its buffers
    samples: int  # training samples of its clients
    work: int  # samples that it has trained on since the last meeting


class MeetingRule:
    """Makes one model of the cohorts' models. Subclass it, write `merge`, and name it `module:Class` in meetings.rule.

    Keyword arguments after `task` and `device` are meetings.rule_args. What `state` holds after a merge, tensors by
    name, it holds before the next one, also after a kill.
    """

    def __init__(self, task: Task, device: torch.device) -> None:
        self.task, self.device = task, device
        self.state: State = {}

    def merge(self, contributions: Sequence[Contribution], start: State, number: int) -> State:
        """The model that cohorts continue from.

        Parameters
        ----------
        contributions
            Those of all cohorts in their order, also of those that have stopped. Tensors are in host memory.
        start
            The model that the cohorts began with at the last meeting, or at the start.
        number
            That of the meeting, counted from 1.
        """
        raise NotImplementedError

    def merge_differing(self, contributions: Sequence[Contribution], number: int) -> dict[int, State]:
        """Where cohorts train different models (model.by_cohort): what each of them continues from, by cohort."""
        raise NotImplementedError


class NoMeetings(MeetingRule):
    """The paper: cohorts train apart until they stop."""


class Mean(MeetingRule):
    """The weighted mean: x = Σ_i w_i x_i / Σ_i w_i, as of the edge servers in hierarchical FedAvg (Liu et al. 2020,
    Client-Edge-Cloud Hierarchical Federated Learning, equation 6).

    `weights` are those of the cohorts: equal, by the samples of their clients, or by the work since the last meeting.
    """

    def __init__(self, task: Task, device: torch.device, weights: str = "equal") -> None:
        super().__init__(task, device)
        require("weights", weights, weights in WEIGHTS, "equal, samples or work")
        self.weights = weights

    def merge(self, contributions: Sequence[Contribution], start: State, number: int) -> State:
        """Their mean."""
        return weighted_mean([one.model for one in contributions], cohort_weights(self.weights, contributions))


class Outer(MeetingRule):
    """DiLoCo (Douillard et al. 2023, algorithm 1): an outer SGD with Nesterov momentum over the cohorts' mean update,
    with its authors' defaults. HALoS (Kim et al. 2025) has such a momentum at its global server.

    Δ = x − Σ_i w_i x_i / Σ_i w_i,  v ← μ v + Δ,  x ← x − η (Δ + μ v); without `nesterov` x ← x − η v. `lr` is η,
    `momentum` is μ, `weights` are those of Mean. Running statistics, which have no gradient, are averaged.
    """

    def __init__(
        self,
        task: Task,
        device: torch.device,
        weights: str = "equal",
        lr: float = 0.7,
        momentum: float = 0.9,
        nesterov: bool = True,
    ) -> None:
        super().__init__(task, device)
        require("weights", weights, weights in WEIGHTS, "equal, samples or work")
        require("lr", lr, 0 < lr <= FLOAT32, f"above 0, at most {FLOAT32:g}")
        require("momentum", momentum, 0 <= momentum < 1, "0 or more, below 1")
        require("nesterov", nesterov, not nesterov or momentum > 0, "momentum must be above 0")
        self.weights, self.lr, self.momentum, self.nesterov = weights, lr, momentum, nesterov

    def merge(self, contributions: Sequence[Contribution], start: State, number: int) -> State:
        """A step from the last meeting's model."""
        mean = weighted_mean([one.model for one in contributions], cohort_weights(self.weights, contributions))
        found, before, self.state = dict(mean), self.state, {}
        for name in self.task.layout().shapes:
            gradient = start[name].double() - mean[name].double()
            velocity = self.momentum * before[name].double() + gradient if name in before else gradient
            step = gradient + self.momentum * velocity if self.nesterov else velocity
            self.state[name] = velocity.to(mean[name].dtype)
            found[name] = (start[name].double() - self.lr * step).to(mean[name].dtype)
        return found


def cohort_weights(kind: str, contributions: Sequence[Contribution]) -> list[float]:
    """The weight of every contribution, by one of WEIGHTS."""
    return [1.0 if kind == "equal" else float(getattr(one, kind)) for one in contributions]


def weighted_mean(models: Iterable[State], weights: Sequence[float]) -> State:
    """Of floating-point tensors, in double precision, one model after the other; counters, such as BatchNorm's, are the
    first model's."""
    first: State = {}
    sums: State = {}
    for model, weight in zip(models, weights, strict=True):
        first = first or dict(model)
        for name, value in model.items():
            if value.is_floating_point():
                sums[name] = sums.get(name, 0) + value.double() * weight
    total = sum(weights)
    return first | {name: (value / total).to(first[name].dtype) for name, value in sums.items()}


def meeting_rule(task: Task, device: torch.device) -> MeetingRule:
    """The rule that an experiment names; arguments that it does not take are refused."""
    settings = task.experiment.meetings
    return MEETING_RULES.build(settings.rule, settings.rule_args, task, device)
