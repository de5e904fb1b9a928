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
from cpfl.engines.workers.pool import WorkerPool, can_fork, cores
from cpfl.engines.workers.trainer import Job, ModelRow, worker_layout
from cpfl.errors import DivergedError
from cpfl.federation import local_training, optimizers
from cpfl.federation.messages import CLIENT_STATE_MEAN
from cpfl.federation.session import ClientResult, RoundResult, Session
from cpfl.models import batch_norm
from cpfl.models.layout import Layout
from cpfl.task.task import Task

JOB_SAMPLES = 512  # validation samples of one job, where a model looks at each sample alone


class WorkerEngine(Engine):
    """Trains clients on all cores, on `workers` of them, or with a pool that other runs share."""

    name = "workers"

    def __init__(self, task: Task, workers: int = 0, pool: WorkerPool | None = None) -> None:
        self.task, data = task, task.data
        module = models.fresh(task.build, task.experiment.seed, "init", data.transform.dtype).eval()
        x = data.inputs(4)
        self.job_samples = 1 if models.looks_at_batches(module, x) else JOB_SAMPLES
        self.layout, self.stale_layout = worker_layout(task), Layout.from_module(module)
        self.local = batch_norm.local_names(task.experiment.federation, module)
        self.server = optimizers.server_optimizer(task.experiment.federation)
        self.client = optimizers.client_optimizer(task.experiment.federation)
        if pool is None:
            pool = WorkerPool(min(workers or cores(), task.experiment.clients) if can_fork() else 1)
        self.pool, self.run = pool, pool.add(task, self.layout)

    def train_cohorts(self, sessions: Sequence[Session], on_round: OnRound) -> None:
        """Do all rounds of all sessions."""
        self.begin(sessions, on_round)
        try:
            with self.pool.kept_in_memory():
                while self.run.busy:
                    self.pool.work()
            if self.run.error is not None:
                raise self.run.error
        finally:
            self.run.forget()

    def begin(self, sessions: Sequence[Session], on_round: OnRound) -> None:
        """Queue the first rounds of all sessions; whatever is done for the pool's runs then leads to the next ones."""
        rounds: dict[int, Round] = {}

        def on_done(job: Job, answer: Any, row: ModelRow) -> None:
            result, session = rounds[job.cohort].done(job, answer, row), rounds[job.cohort].session
            if result is not None:
                on_round(session, session.close_round(result))
                if not session.idle:
                    rounds[session.cohort] = Round(self, session)

        self.run.begin(lambda job, row: rounds[job.cohort].prepare(job, row), on_done)
        rounds |= {session.cohort: Round(self, session) for session in sessions if not session.idle}


class Round:
    """The open round of one cohort: first its clients train, then they evaluate the new model."""

    def __init__(self, engine: WorkerEngine, session: Session) -> None:
        self.session, self._waiting, self._job_samples = session, engine.run.waiting, engine.job_samples
        self._settings, self._clients = engine.task.experiment.federation, engine.task.data.clients
        self._request = request = session.open_round()
        self._sizes = {client: int(self._clients.training_sizes[client]) for client in request.participants}
        self._steps = {
            client: request.steps.get(client) or local_training.steps(self._settings, size)
            for client, size in self._sizes.items()
        }
        self._model = engine.run.models[session.cohort]
        self._model.write(request.model)
        self._model.write_state(request.algorithm_state.cohort.get(CLIENT_STATE_MEAN))
        self._mean, self._local = request.aggregation == "mean", bool(engine.local)
        layout, cpu = engine.layout if self._mean else engine.stale_layout, torch.device("cpu")
        self._aggregator = RoundAggregator(layout, engine.server, request, cpu, engine.client, engine.local)
        self._losses: dict[int, tuple[float, float | None]] = {}  # of training, and of their squares
        self._validation: dict[int, float] = {}
        self._evaluations = 0  # jobs that are not done yet
        self._order = list(request.participants)  # clients whose models are still to be added, in this order
        self._early: dict[int, ModelRow] = {}  # models that came before their predecessors
        for client in sorted(request.participants, key=lambda client: -self._steps[client]):  # longest first
            how = (request.steps.get(client), request.squared_losses, self._starts_elsewhere(client))
            self._waiting.append(Job("train", request.cohort, (client,), request.origin(client).round, *how))

    def prepare(self, job: Job, row: ModelRow) -> None:
        """Write what a client starts with, besides its cohort's model, into the row of its result."""
        if job.kind == "train":
            if job.older:
                row.write(self._aggregator.start_of(job.clients[0]))
            row.write_state(self._aggregator.client_state(job.clients[0]))

    def _starts_elsewhere(self, client: int) -> bool:
        """From an older model than the cohort's newest, or with parts of its own."""
        own = self._local and client in self._request.algorithm_state.clients
        return own or client in self._request.origins

    def done(self, job: Job, answer: Any, row: ModelRow) -> RoundResult | None:
        """A client has trained, or some have evaluated the new model; the last one completes the round."""
        losses = answer if job.kind == "evaluate" else answer[:1]
        for client, loss in zip(job.clients, losses, strict=True):
            if not math.isfinite(loss):
                raise DivergedError(self.session.cohort, client, self._request.round, loss)
        if job.kind == "evaluate":
            self._validation.update(zip(job.clients, losses, strict=True))
            self._evaluations -= 1
        else:
            self._losses[job.clients[0]] = answer
            self._add(job.clients[0], row)
        return None if self._order or self._evaluations else self._result()

    def _add(self, client: int, row: ModelRow) -> None:
        """Add all models whose turn it is; the last one completes the cohort's new model."""
        request, self._early[client] = self._request, row
        while self._order and self._order[0] in self._early:
            first = self._order.pop(0)
            model, origin = self._early.pop(first), request.origins.get(first)
            params_P = model.parameters_P if self._mean else None
            self._aggregator.keep_local(first, model.layout.received(model.tensors))
            self._aggregator.add(model.tensors, self._sizes[first], self._steps[first], origin, params_P)
            if len(model.state_P):
                before_P = self._aggregator.row(self._aggregator.client_state(first))
                self._aggregator.add_client_state(first, before_P, model.state_P.clone())
        if client in self._early:  # its row is needed for others
            self._early[client] = row.clone()
        if not self._order:
            self._new_model, self._algorithm_state = self._aggregator.result()
            self._model.write(self._new_model)
            self._evaluate()

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

    def _result(self) -> RoundResult:
        results = []
        for client in self._request.participants:
            steps, (loss, squared) = self._steps[client], self._losses[client]
            samples = local_training.samples_in_steps(self._settings, self._sizes[client], steps)
            validation = self._validation.get(client)
            results.append(ClientResult(client, samples, steps, loss, validation, squared_losses=squared))
        return RoundResult(self._new_model, results, algorithm_state=self._algorithm_state)
