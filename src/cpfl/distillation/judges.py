"""What the cohorts' models are worth together, before anything is distilled: the judges of the stopping rule `joint`.

ensemble  the clients' own validation samples, answered by the joined prediction that a student would be taught
public    no client and no label: two halves of the cohorts, joined each, and how often they agree on public samples

A judge is a class here with a name in JUDGES; it sees models, tells a value in per cent and what asking it costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from cpfl import models
from cpfl.distillation.targets import Chunks, Numbers, joined, teacher_modules
from cpfl.distillation.weights import class_weights
from cpfl.errors import CpflError
from cpfl.experiment import Distillation
from cpfl.federation import selection
from cpfl.federation.joint import Cost, asking_clients, asking_servers
from cpfl.models import State
from cpfl.problem import Problem
from cpfl.randomness import stream

MOST_PUBLIC = 10_000  # public samples that are looked at: by chance half a point off
DIVERGED = "what the cohorts' models say together is no longer a number: lower federation.lr or federation.server_lr"


@dataclass(frozen=True)
class Look:
    """What a judge saw: a value in per cent, and a loss where there are labels."""

    value: float
    loss: float | None


class Judge(Protocol):
    """Somebody who can tell how good the cohorts' models are together."""

    def look(self, teachers: Sequence[State]) -> Look:
        """The cohorts' current models, all of them, in order."""

    def cost(self) -> Cost:
        """What one look takes, always the same."""


class Ensemble:
    """Accuracy and loss of the joined prediction on what the clients held back, every sample counting alike."""

    def __init__(self, problem: Problem, settings: Distillation, device: torch.device) -> None:
        self._problem, self._join = problem, Join(problem, settings, device)
        data, experiment = problem.data, problem.experiment
        assert data.train.y is not None
        able = np.flatnonzero(data.clients.validation_sizes)
        count = max(1, math.ceil(experiment.stopping.asked * len(able) - 1e-9))
        self._clients = np.sort(stream(experiment.seed, "asked").permutation(able)[:count])
        held, owner = data.clients.held_out()
        rows = held[np.isin(owner, self._clients)]
        x = torch.as_tensor(data.train.x[rows]).to(device)
        self._y = torch.as_tensor(data.train.y[rows]).to(device)
        self._inputs = Chunks(len(rows), lambda part: data.transform(x[part]), self._join.numbers)

    def look(self, teachers: Sequence[State]) -> Look:
        """Clean images, whatever the clients' rounds see."""
        joint_TC = self._join(teachers, range(len(teachers)), self._inputs)
        right = joint_TC.argmax(dim=1).eq(self._y).double().mean().item()
        return Look(100 * right, functional.nll_loss(self._join.log_probabilities(joint_TC), self._y).item())

    def cost(self) -> Cost:
        """Models by way of the global server to the clients that are asked, and their forward passes."""
        problem, asked, n = self._problem, self._clients, len(self._problem.plan)
        bytes_N = [problem.of(cohort).model_bytes for cohort in range(n)]
        own = np.zeros(problem.experiment.clients, np.int64)  # what a client has already
        for size, members in zip(bytes_N, problem.plan, strict=True):
            if self._known(len(members)):
                own[np.asarray(members)] = size
        samples = problem.data.clients.validation_sizes[asked]
        down = asking_clients(problem.fleet, asked, samples, n, sum(bytes_N) - own[asked])
        up = asking_servers(sum(bytes_N) if n > 1 else 0)
        return Cost(down.seconds, down.cpu_seconds, up.bytes + down.bytes)

    def _known(self, members: int) -> bool:
        """Whether the clients of a cohort have the model that is judged: who trains alone has; others have the newest
        one if all took part in the round, for they validate it, but never an average of several."""
        experiment = self._problem.experiment
        everybody = selection.size(experiment.federation, members) == members
        return members == 1 or (everybody and experiment.stopping.keep != "average")


class Public:
    """How often the even and the odd cohorts, each half joined for itself, give a public sample the same class.

    The halves have learnt from different clients: where they are unsure, they differ. So their agreement rises with
    their accuracy, on the samples that the student will be taught with; but a mistake that both make counts as right.
    """

    def __init__(self, problem: Problem, settings: Distillation, device: torch.device) -> None:
        self._problem, self._join = problem, Join(problem, settings, device)
        data = problem.data
        count = min(MOST_PUBLIC, len(data.public))
        rows = np.arange(count) * len(data.public) // count  # spread evenly: sets may be sorted
        x = torch.as_tensor(data.public.x[rows]).to(device)
        self._inputs = Chunks(count, lambda part: data.public_transform(x[part], None), self._join.numbers)

    def look(self, teachers: Sequence[State]) -> Look:
        """One plain view of each sample."""
        halves = (range(first, len(teachers), 2) for first in (0, 1))
        even, odd = (self._join(teachers, half, self._inputs).argmax(dim=1) for half in halves)
        return Look(100 * even.eq(odd).double().mean().item(), None)

    def cost(self) -> Cost:
        """Every cohort's model to the global server."""
        return asking_servers(sum(self._problem.of(i).model_bytes for i in range(len(self._problem.plan))))


class Join:
    """The joined prediction of some cohorts' models, as the settings of the distillation say."""

    def __init__(self, problem: Problem, settings: Distillation, device: torch.device) -> None:
        self._settings = settings
        self._counts_NC: NDArray[np.int64] = problem.label_counts
        self._state = problem.start
        models.choose_arithmetic(problem.experiment.precision)  # whoever drives a cluster has no engine that did
        self.numbers = Numbers(device, problem.experiment.precision)
        self._modules = teacher_modules(problem, range(len(problem.plan)), self.numbers)

    def __call__(self, teachers: Sequence[State], cohorts: Sequence[int], inputs: Chunks) -> Tensor:
        """(T, C), of the kind that a student would be taught."""
        weights_NC = class_weights(self._counts_NC, self._settings.weights, cohorts)
        with models.threads_for(self._state):
            joint_TC = joined(
                [self._modules[i] for i in cohorts],
                (teachers[i] for i in cohorts),
                weights_NC,
                [inputs],
                self._settings,
            )
        if not torch.isfinite(joint_TC).all():  # rounds in which nobody validates may have hidden it until now
            raise CpflError(DIVERGED)
        return joint_TC

    def log_probabilities(self, joint_TC: Tensor) -> Tensor:
        """What the joined prediction says of each class."""
        if self._settings.join != "probabilities":
            return functional.log_softmax(joint_TC, dim=1)
        return joint_TC.clamp_min(torch.finfo(joint_TC.dtype).tiny).log()


JUDGES: dict[str, type[Ensemble] | type[Public]] = {"ensemble": Ensemble, "public": Public}
