"""What a meeting rule is, and the mean. A rule makes the models of the cohorts into the one that all continue from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from cpfl.models import State
from cpfl.registry import require
from cpfl.settings.choices import MEETING_RULES

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

    Keyword arguments after `task` and `device` are meetings.rule_args.
    """

    def __init__(self, task: Task, device: torch.device) -> None:
        self.task, self.device = task, device

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
