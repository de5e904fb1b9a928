"""Evaluation of all cohort models together, before anything is distilled: the metrics of the stopping rule `joint`.

ensemble-accuracy  clients evaluate the ensemble that a student would learn from on their own validation samples; at a
                   meeting the merged model, one for every client instead of n
public-agreement   no client and no label: how often the ensembles of two halves of the cohorts agree on public samples
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from cpfl import models
from cpfl.cohorts.base import Cohorts
from cpfl.distillation.ensemble import Chunks, Ensemble, Precision
from cpfl.errors import CpflError
from cpfl.federation.messages import Cost
from cpfl.federation.selection.base import participants_per_round
from cpfl.federation.stopping import client_evaluation_cost, server_evaluation_cost
from cpfl.models import State
from cpfl.randomness import stream
from cpfl.settings import Distillation
from cpfl.task.task import Task

MAX_PUBLIC = 10_000  # public samples that are evaluated: the sampling error is half a point
DIVERGED = "the ensemble's prediction is no longer a number: lower federation.lr or the server's learning rate"


Score = tuple[float, float | None]
"""The result of an evaluation: the objective's metric (or agreement) in per cent, and a loss where there are labels."""


class Evaluator:
    """What both metrics have in common."""

    _inputs: Chunks
    cohorts: Cohorts  # their clients now

    def __init__(self, task: Task, device: torch.device) -> None:
        self._task, self.cohorts = task, task.cohorts
        models.choose_arithmetic(task.experiment.precision)  # the driver of a cluster has no engine that did
        self._precision = Precision(device, task.experiment.precision)

    def global_bytes(self, waiting: Sequence[int] = ()) -> int:
        """What the cohort servers and the global one exchange: every cohort's model. At a meeting, for which the
        cohorts of these numbers wait, models come to the global server anyway."""
        if self._task.experiment.meets:
            return 0
        return sum(self._task.for_cohort(cohort).model_bytes for cohort in range(len(self._task.cohorts)))

    def _targets(self, ensemble: Ensemble, teachers: Sequence[State]) -> Tensor:
        with models.threads_for(self._task.start):
            found_TC = ensemble((teachers[cohort] for cohort in ensemble.cohorts), self._inputs)
        if not torch.isfinite(found_TC).all():  # rounds in which nobody validates may have hidden it until now
            raise CpflError(DIVERGED)
        return found_TC


class EnsembleAccuracy(Evaluator):
    """Accuracy and loss of the ensemble on clients' validation samples, every sample with the same weight."""

    def __init__(self, task: Task, settings: Distillation, device: torch.device) -> None:
        super().__init__(task, device)
        data, experiment = task.data, task.experiment
        assert data.train.y is not None
        self._all = Ensemble(task, range(len(task.cohorts)), settings, self._precision)
        able = np.flatnonzero(data.clients.validation_sizes)
        count = max(1, math.ceil(experiment.stopping.client_fraction * len(able) - 1e-9))
        self._clients = np.sort(stream(experiment.seed, "asked").permutation(able)[:count])
        held, owner = data.clients.held_out()
        rows = held[np.isin(owner, self._clients)]
        x = torch.as_tensor(data.train.x[rows]).to(device)
        self._y = torch.as_tensor(data.train.y[rows]).to(device)
        self._inputs = Chunks(len(rows), lambda part: data.transform(x[part]), self._precision)

    def evaluate(self, teachers: Sequence[State]) -> Score:
        """The current models of all cohorts, in their order; on clean images, whatever the clients' rounds see."""
        targets_TC = self._targets(self._all, teachers)
        objective, aggregation = self._task.data.objective, self._all.aggregation
        loss = objective.target_loss(targets_TC, aggregation.probabilities, self._y)
        return _number(objective.score(aggregation.answers(targets_TC), self._y)), loss.item()

    def cost(self, waiting: Sequence[int] = ()) -> Cost:
        """All models to the evaluating clients by way of the global server, and their forward passes."""
        task, clients, n = self._task, self._clients, len(self._task.cohorts)
        bytes_N = [task.for_cohort(cohort).model_bytes for cohort in range(n)]
        own = np.zeros(task.experiment.clients, np.int64)  # what a client has already
        for size, members in zip(bytes_N, task.cohorts, strict=True):
            # A client that trains alone has the model that is evaluated. Others have the newest one if all took part in
            # the round, because they validate it, but never a moving average.
            everybody = participants_per_round(task.experiment.federation, len(members)) == len(members)
            if len(members) == 1 or (everybody and task.experiment.stopping.keep != "ema"):
                own[np.asarray(members)] = size
        samples = task.data.clients.validation_sizes[clients]
        down = client_evaluation_cost(task.fleet, clients, samples, n, sum(bytes_N) - own[clients])
        return down + server_evaluation_cost(self.global_bytes(waiting))

    def global_bytes(self, waiting: Sequence[int] = ()) -> int:
        """What cohort servers send to the global server; with one cohort they are the same."""
        return super().global_bytes(waiting) if len(self._task.cohorts) > 1 else 0


class MergedAccuracy(EnsembleAccuracy):
    """Accuracy and loss of the merged model of a meeting on clients' validation samples."""

    def __init__(self, task: Task, settings: Distillation, device: torch.device) -> None:
        super().__init__(task, settings, device)
        self._all = Ensemble(task, [0], settings, self._precision, np.ones((1, task.data.classes)))

    def cost(self, waiting: Sequence[int] = ()) -> Cost:
        """The merged model to the evaluating clients, and their forward passes; a client that trains alone is its
        cohort's server, which has it."""
        task, clients = self._task, self._clients
        sent = np.full(task.experiment.clients, task.model_bytes, np.int64)
        for members in self.cohorts:
            if len(members) == 1:
                sent[np.asarray(members)] = 0
        samples = task.data.clients.validation_sizes[clients]
        down = client_evaluation_cost(task.fleet, clients, samples, 1, sent[clients])
        return down + server_evaluation_cost(self.global_bytes(waiting))

    def global_bytes(self, waiting: Sequence[int] = ()) -> int:
        """The merged model to the servers of cohorts that have stopped, whose clients evaluate too: the others receive
        it at the meeting."""
        stopped = set(range(len(self.cohorts))) - set(waiting)
        return self._task.model_bytes * sum(bool(np.isin(self.cohorts[i], self._clients).any()) for i in stopped)


class PublicAgreement(Evaluator):
    """How often the ensembles of the even and of the odd cohorts predict the same class for a public sample.

    With another objective: its metric, with what one half predicts as the labels.

    The halves have learnt from different clients: where they are unsure, they differ. So their agreement rises with
    their accuracy on the samples that the student will see; but an error that both make counts as right.
    """

    def __init__(self, task: Task, settings: Distillation, device: torch.device) -> None:
        super().__init__(task, device)
        data = task.data
        halves = [range(first, len(task.cohorts), 2) for first in (0, 1)]
        self._ensembles = [Ensemble(task, half, settings, self._precision) for half in halves]
        count = min(MAX_PUBLIC, len(data.public))
        rows = np.arange(count) * len(data.public) // count  # spread evenly: sets may be sorted
        x = torch.as_tensor(data.public.x[rows]).to(device)
        self._inputs = Chunks(count, lambda part: data.public_transform(x[part], None), self._precision)

    def evaluate(self, teachers: Sequence[State]) -> Score:
        """On one plain view of each sample."""
        even, odd = (e.aggregation.answers(self._targets(e, teachers)) for e in self._ensembles)
        objective = self._task.data.objective
        return _number(objective.score(even, objective.predicted(odd))), None

    def cost(self, waiting: Sequence[int] = ()) -> Cost:
        """Every cohort's model to the global server."""
        return server_evaluation_cost(self.global_bytes(waiting))


def _number(score: float) -> float:
    """A score, or 0 where there is none, as where all predictions are the same."""
    return 0.0 if math.isnan(score) else score


EVALUATORS: dict[str, type[EnsembleAccuracy] | type[PublicAgreement]] = {
    "ensemble-accuracy": EnsembleAccuracy,
    "public-agreement": PublicAgreement,
}


def evaluates_merged(task: Task) -> bool:
    """Whether the merged model of a meeting is evaluated instead of the ensemble: there is one, and clients do it."""
    return task.experiment.meets and not task.cohort_models and task.experiment.stopping.metric == "ensemble-accuracy"


def evaluator(task: Task, device: torch.device) -> EnsembleAccuracy | PublicAgreement:
    """What evaluates the cohorts of an experiment."""
    kind = MergedAccuracy if evaluates_merged(task) else EVALUATORS[task.experiment.stopping.metric]
    return kind(task, task.experiment.distillation, device)
