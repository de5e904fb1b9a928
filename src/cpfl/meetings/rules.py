"""What a meeting rule is, and the mean. A rule makes the models of the cohorts into the one that all continue from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from cpfl.errors import SettingError
from cpfl.federation.optimizers import client_optimizer
from cpfl.models import State
from cpfl.registry import require
from cpfl.settings.choices import MEETING_RULES
from cpfl.settings.types import FLOAT32, MOST

if TYPE_CHECKING:
    from cpfl.task.task import Task

WEIGHTS = ("equal", "samples", "work")


@dataclass(frozen=True)
class Contribution:
    """What a cohort brings to a meeting."""

    cohort: int
    model: State  # its newest model: what is trained of it, and its buffers
    samples: int  # training samples of its clients
    work: int  # samples that it has trained on since its last meeting
    began: State = field(default_factory=dict)  # of cohorts that come one by one: the model that it began with
    missed: int = 0  # and how many others were merged since


class MeetingRule:
    """Makes one model of the cohorts' models. Subclass it, write `merge`, and name it `module:Class` in meetings.rule.

    Keyword arguments after `task` and `device` are meetings.rule_args. What `state` holds after a merge, tensors by
    name, it holds before the next one, also after a kill.
    """

    together = True  # False: cohorts do not wait, each brings its model alone when it is ready

    def __init__(self, task: Task, device: torch.device) -> None:
        self.task, self.device = task, device
        self.state: State = {}

    def merge(self, contributions: Sequence[Contribution], start: State, number: int) -> State:
        """The model that cohorts continue from.

        Parameters
        ----------
        contributions
            Those of all cohorts in their order, also of those that have stopped; not `together`: that of one cohort.
            Tensors are in host memory.
        start
            The model of the last meeting, or the initial one.
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


class Asynchronous(MeetingRule):
    """A cohort meets the global model x when it is ready: v ← μ v + ρ w Δ, x ← x − η v. Local servers of HALoS (Kim et
    al. 2025) meet a global one with a momentum so, and HeLoCo (Al Asif et al. 2026) treats what is stale of it.

    Δ is what the cohort began with less what it brings. w is its share: 1/n, or that of its clients in all `samples`,
    so that one update of every cohort is their mean. `lr` is η, `momentum` is μ. ρ = (1 + s)^−`damping` damps what is
    stale, a polynomial as in FedAsync (Xie et al. 2019). s counts the updates of others since the cohort began, beyond
    the n − 1 of cohorts that are as fast: only slower ones are damped. Running statistics move by −η ρ w Δ.
    """

    together = False

    def __init__(
        self,
        task: Task,
        device: torch.device,
        weights: str = "equal",
        lr: float = 1.0,
        momentum: float = 0.0,
        damping: float = 0.5,
    ) -> None:
        super().__init__(task, device)
        require("weights", weights, weights in ("equal", "samples"), "equal or samples")
        require("lr", lr, 0 < lr <= FLOAT32, f"above 0, at most {FLOAT32:g}")
        require("momentum", momentum, 0 <= momentum < 1, "0 or more, below 1")
        require("damping", damping, 0 <= damping <= MOST, f"0 or more, at most {MOST:,}")
        self.weights, self.lr, self.momentum, self.damping = weights, lr, momentum, damping

    def merge(self, contributions: Sequence[Contribution], start: State, number: int) -> State:
        """A step of the global model."""
        (one,), n = contributions, len(self.task.cohorts)
        share = 1 / n
        if self.weights == "samples":
            share = one.samples / sum(map(self.task.samples, range(n)))
        share *= (1 + max(0, one.missed - (n - 1))) ** -self.damping
        found, before, self.state = dict(one.model), self.state, {}
        for name, value in start.items():
            if not value.is_floating_point():
                continue
            step = share * (one.began[name].double() - one.model[name].double())
            if self.momentum and name in self.task.layout().shapes:
                step += self.momentum * before[name].double() if name in before else 0
                self.state[name] = step.to(value.dtype)
            found[name] = (value.double() - self.lr * step).to(value.dtype)
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
    experiment = task.experiment
    settings = experiment.meetings
    rule = MEETING_RULES.build(settings.rule, settings.rule_args, task, device)
    client = experiment.federation.client
    if settings.redraw and client_optimizer(experiment.federation).has_client_state:
        raise SettingError(
            f"meetings.redraw = true needs clients that keep nothing, and federation.client = {client!r} does"
        )
    if settings.redraw and not rule.together:
        raise SettingError(
            f"meetings.redraw = true needs cohorts that meet together: not meetings.rule = {settings.rule!r}"
        )
    if experiment.meets and not rule.together:
        alone = f"meetings.rule = {settings.rule!r} lets every cohort come alone"
        if experiment.stopping.rule == "joint":
            raise SettingError(f'stopping.rule = "joint" evaluates all cohorts at once, and {alone}')
        if settings.server_state == "average":
            raise SettingError(f'meetings.server_state = "average" needs the state of all servers, and {alone}')
    return rule
