"""The engine of a CPU: every core trains clients, of any cohort, with no barrier between cohorts.

Results do not depend on the number of workers: a client's arithmetic is its own, and models are added up in the order
of the clients, whichever worker ends first.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

from cpfl import models
from cpfl.engines.aggregation import RoundAggregator
from cpfl.engines.base import Engine, OnRound
from cpfl.engines.workers.model_rows import ModelRow, worker_layout
from cpfl.engines.workers.pool import WorkerPool, can_fork, cores
from cpfl.engines.workers.trainer import Job
from cpfl.errors import DivergedError
from cpfl.federation import local_training, optimizers
from cpfl.federation.messages import CLIENT_STATE_MEAN, AlgorithmState
from cpfl.federation.session import ClientResult, RoundResult, Session
from cpfl.models import State
from cpfl.models.layout import Layout
from cpfl.task.task import Task

JOB_SAMPLES = 512  # validation samples of one job, where a model looks at each sample alone


class WorkerEngine(Engine):
    """Trains clients on all cores, or on `workers` of them."""

    name = "workers"

    def __init__(self, task: Task, workers: int = 0) -> None:
        self.task, data = task, task.data
        module = models.fresh(task.build, task.experiment.seed, "init", data.transform.dtype).eval()
        x = data.transform(torch.as_tensor(data.train.x[:4]))
        self.job_samples = 1 if models.looks_at_batches(module, x) else JOB_SAMPLES
        self.layout, self.stale_layout = worker_layout(task), Layout.from_module(module)
        self.server = optimizers.server_optimizer(task.experiment.federation)
        self.client = optimizers.client_optimizer(task.experiment.federation)
        count = min(workers or cores(), task.experiment.clients)
        self.pool = WorkerPool(task, count if can_fork() else 1, self.layout)

    def train_cohorts(self, sessions: Sequence[Session], on_round: OnRound) -> None:
        """Do all rounds of all sessions."""
        self.pool.waiting.clear()
        rounds = {session.cohort: Round(self, session) for session in sessions if not session.idle}

        def prepare(job: Job, row: ModelRow) -> None:
            if job.kind == "train":
                rounds[job.cohort].prepare(job.clients[0], row)

        def on_done(job: Job, answer: Any, row: ModelRow) -> None:
            round = rounds[job.cohort]
            if job.kind == "train":
                round.trained(job.clients[0], answer, row)
            else:
                round.evaluated(job.clients, answer)
            if round.complete:
                session = round.session
                on_round(session, session.close_round(round.result()))
                if not session.idle:
                    rounds[session.cohort] = Round(self, session)

        self.pool.work(prepare, on_done)


class Round:
    """The open round of one cohort: first its clients train, then they evaluate the new model."""

    def __init__(self, engine: WorkerEngine, session: Session) -> None:
        self.session, self._waiting, self._job_samples = session, engine.pool.waiting, engine.job_samples
        self._settings, self._clients = engine.task.experiment.federation, engine.task.data.clients
        self._request = request = session.open_round()
        self._cohort_model = engine.pool.models[session.cohort]
        self._cohort_model.write(request.model)
        self._cohort_model.write_state(request.algorithm_state.cohort.get(CLIENT_STATE_MEAN))
        self._mean = request.aggregation == "mean"
        layout, cpu = engine.layout if self._mean else engine.stale_layout, torch.device("cpu")
        self._aggregator = RoundAggregator(layout, engine.server, request, cpu, engine.client)
        self._model, self._algorithm_state = State(), AlgorithmState()
        self._losses: dict[int, tuple[float, float | None]] = {}  # of training, and of their squares
        self._validation: dict[int, float] = {}
        self._evaluations = 0  # jobs that are not done yet
        self._order = list(request.participants)  # clients whose models are still to be added, in this order
        self._early: dict[int, ModelRow] = {}  # models that came before their predecessors
        longest_first = sorted(request.participants, key=lambda client: -self._steps(client))
        self._waiting.extend(self._job(client) for client in longest_first)

    def _job(self, client: int) -> Job:
        request, number = self._request, self._request.origin(client).round
        how = (request.steps.get(client), request.squared_losses, client in request.origins)
        return Job("train", request.cohort, (client,), number, *how)

    def prepare(self, client: int, row: ModelRow) -> None:
        """Write what a client starts with, besides its cohort's model, into the row of its result."""
        if client in self._request.origins:
            row.write(self._request.origins[client].model)
        row.write_state(self._request.algorithm_state.clients.get(client))

    @property
    def complete(self) -> bool:
        """All clients have trained and evaluated."""
        return not self._order and self._evaluations == 0

    def trained(self, client: int, losses: tuple[float, float | None], model: ModelRow) -> None:
        """A client has trained; the last one completes the cohort's new model."""
        self._check(client, losses[0])
        self._losses[client], self._early[client] = losses, model
        while self._order and self._order[0] in self._early:
            first = self._order.pop(0)
            self._add(first, self._early.pop(first))
        if client in self._early:  # its row is needed for others
            self._early[client] = model.clone()
        if not self._order:
            self._model, self._algorithm_state = self._aggregator.result()
            self._cohort_model.write(self._model)
            self._evaluate()

    def _add(self, client: int, model: ModelRow) -> None:
        request, row_P = self._request, model.parameters_P if self._mean else None
        self._aggregator.add(model.tensors, self._size(client), self._steps(client), request.origins.get(client), row_P)
        if len(model.state_P):
            before_P = self._aggregator.row(request.algorithm_state.clients.get(client))
            self._aggregator.add_client_state(client, before_P, model.state_P.clone())

    def _evaluate(self) -> None:
        group, samples, jobs = list[int](), 0, list[Job]()
        for client in self._request.participants:
            held = int(self._clients.validation_sizes[client])
            if held:
                group.append(client)
                samples += held
            if group and (samples >= self._job_samples or client == self._request.participants[-1]):
                jobs.append(Job("evaluate", self.session.cohort, tuple(group), self._request.round))
                group, samples = [], 0
        self._evaluations = len(jobs)
        self._waiting.extendleft(reversed(jobs))  # first: a cohort waits for them

    def evaluated(self, clients: Sequence[int], losses: Sequence[float]) -> None:
        """Some clients have evaluated the new model."""
        for client, loss in zip(clients, losses, strict=True):
            self._check(client, loss)
            self._validation[client] = loss
        self._evaluations -= 1

    def result(self) -> RoundResult:
        """The new model, and what the clients report."""
        results = []
        for client in self._request.participants:
            steps, (loss, squared) = self._steps(client), self._losses[client]
            samples = local_training.samples_in_steps(self._settings, self._size(client), steps)
            validation = self._validation.get(client)
            results.append(ClientResult(client, samples, steps, loss, validation, squared_losses=squared))
        return RoundResult(self._model, results, algorithm_state=self._algorithm_state)

    def _check(self, client: int, loss: float) -> None:
        if not math.isfinite(loss):
            raise DivergedError(self.session.cohort, client, self._request.round, loss)

    def _size(self, client: int) -> int:
        return int(self._clients.training_sizes[client])

    def _steps(self, client: int) -> int:
        return self._request.steps.get(client) or local_training.steps(self._settings, self._size(client))
