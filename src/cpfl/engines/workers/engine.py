"""The engine of a CPU: every core trains clients, of any cohort, with no barrier between cohorts.

Results do not depend on the number of workers: a client's arithmetic is its own, and models are added up in the order
of the clients, whoever ends first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from cpfl import models
from cpfl.engines.base import OnRound
from cpfl.engines.workers.crew import Crew, Job, can_fork, cores
from cpfl.engines.workers.joining import Anatomy, Arrival, join
from cpfl.errors import DivergedError
from cpfl.federation import fates, local
from cpfl.federation.memory import Memory
from cpfl.federation.session import ClientResult, Outcome, Session
from cpfl.problem import Problem

TOGETHER = 512  # validation samples that are judged in one job, where they do not see each other


class WorkerEngine:
    """Trains clients on all cores, or on `workers` of them."""

    name = "workers"

    def __init__(self, problem: Problem, workers: int = 0) -> None:
        self._problem = problem
        wanted = min(workers or cores(), problem.experiment.clients)
        self._anatomy = Anatomy.of(problem)
        data = problem.data
        module = models.fresh(problem.build, problem.experiment.seed, "init", data.transform.dtype).eval()
        x = data.transform(torch.as_tensor(data.train.x[:4]))
        self._together = 1 if models.looks_at_batches(module, x) else TOGETHER
        self._crew = Crew(problem, wanted if can_fork() else 1, self._anatomy.parameters)

    def federate(self, sessions: Sequence[Session], on_round: OnRound) -> None:
        """Do all rounds of all sessions."""
        crew = self._crew
        crew.waiting.clear()
        rounds = {
            session.cohort: Round(self._problem, self._anatomy, crew, session, self._together)
            for session in sessions
            if not session.idle
        }

        def on_done(job: Job, answer: tuple[float, float | None] | list[float], slot: int) -> None:
            round = rounds[job.place]
            if job.kind == "train":
                assert isinstance(answer, tuple)
                round.trained(job.clients[0], *answer, slot)
            else:
                assert isinstance(answer, list)
                round.judged(job.clients, answer)
            if round.complete:
                session = round.session
                on_round(session, session.close_round(round.outcome()))
                if not session.idle:
                    rounds[session.cohort] = Round(self._problem, self._anatomy, crew, session, self._together)

        crew.work(on_done)


class Round:
    """A round of one cohort that is under way: first its clients train, then they judge what came of it."""

    def __init__(self, problem: Problem, anatomy: Anatomy, crew: Crew, session: Session, together: int) -> None:
        self.session, self._crew, self._together = session, crew, together
        self._settings, self._clients = problem.experiment.federation, problem.data.clients
        self._work = session.open_round()
        crew.places.put(session.cohort, self._work.model)
        self._losses: dict[int, float] = {}
        self._squares: dict[int, float | None] = {}
        self._validation: dict[int, float] = {}
        self._to_judge = 0
        self._join, self._memory = join(problem, anatomy, crew, self._work), Memory()
        self._order = list(self._work.participants)  # clients whose models are still to be added, in this order
        self._early: dict[int, Arrival] = {}  # models that came before their turn
        longest_first = sorted(self._work.participants, key=lambda client: -self._steps(client))
        crew.waiting.extend(self._job(client) for client in longest_first)

    def _job(self, client: int) -> Job:
        work, origin = self._work, self._work.origins.get(client)
        steps = work.steps.get(client)
        start = None if origin is None else {name: value.numpy() for name, value in origin.model.items()}
        return Job("train", work.cohort, (client,), work.origin(client).round, steps, work.squares, start)

    @property
    def complete(self) -> bool:
        """All have trained and judged."""
        return not self._order and self._to_judge == 0

    def trained(self, client: int, loss: float, squares: float | None, slot: int) -> None:
        """A client's model lies in a slot; the last one makes the cohort's new model."""
        self._check(client, loss)
        self._losses[client], self._squares[client] = loss, squares
        slots, kept = self._crew.slots, self._crew.kept
        left_P = kept.leaving.floats_KP[slot] if kept else None
        self._early[client] = Arrival(slots.floats_KP[slot], slots.wholes_KQ[slot], left_P)
        while self._order and self._order[0] in self._early:
            first = self._order.pop(0)
            self._join.add(first, self._size(first), self._steps(first), self._early.pop(first))
        if client in self._early:
            self._early[client] = self._early[client].kept()
        if not self._order:
            self._memory = self._join.finish()
            self._have_judged()

    def _have_judged(self) -> None:
        group, samples, jobs = list[int](), 0, list[Job]()
        for client in self._work.participants:
            held = int(self._clients.validation_sizes[client])
            if held:
                group.append(client)
                samples += held
            if group and (samples >= self._together or client == self._work.participants[-1]):
                jobs.append(Job("judge", self.session.cohort, tuple(group), self._work.round))
                group, samples = [], 0
        self._to_judge = len(jobs)
        self._crew.waiting.extendleft(reversed(jobs))  # first: a cohort waits for them

    def judged(self, clients: Sequence[int], losses: Sequence[float]) -> None:
        """Some clients have judged the new model."""
        for client, loss in zip(clients, losses, strict=True):
            self._check(client, loss)
            self._validation[client] = loss
        self._to_judge -= 1

    def outcome(self) -> Outcome:
        """What the session is told."""
        model = self._crew.places.get(self.session.cohort, self._work.model)
        results = []
        for client in self._work.participants:
            steps = self._steps(client)
            samples = fates.visited(self._settings, self._size(client), steps)
            loss, value = self._losses[client], self._validation.get(client)
            results.append(ClientResult(client, samples, steps, loss, value, squares=self._squares[client]))
        return Outcome(model, results, memory=self._memory)

    def _check(self, client: int, loss: float) -> None:
        if not math.isfinite(loss):
            raise DivergedError(self.session.cohort, client, self._work.round, loss)

    def _size(self, client: int) -> int:
        return int(self._clients.training_sizes[client])

    def _steps(self, client: int) -> int:
        return self._work.steps.get(client) or local.steps(self._settings, self._size(client))
