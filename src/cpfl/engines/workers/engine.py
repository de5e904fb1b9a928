"""The engine of a CPU: every core trains clients, of any cohort, with no barrier between cohorts.

Results do not depend on the number of workers: a client's arithmetic is its own, and models are added up in the order
of the clients, whoever ends first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from cpfl.engines.base import OnRound
from cpfl.engines.workers.crew import Crew, Job, can_fork, cores
from cpfl.engines.workers.form import Rows
from cpfl.errors import DivergedError
from cpfl.federation import fates, local, server, staleness
from cpfl.federation.session import ClientResult, Outcome, Session
from cpfl.problem import Problem

TOGETHER = 512  # validation samples that are judged in one job


class WorkerEngine:
    """Trains clients on all cores, or on `workers` of them."""

    name = "workers"

    def __init__(self, problem: Problem, workers: int = 0) -> None:
        self._problem = problem
        wanted = min(workers or cores(), problem.experiment.clients)
        self._crew = Crew(problem, wanted if can_fork() else 1)

    def federate(self, sessions: Sequence[Session], on_round: OnRound) -> None:
        """Do all rounds of all sessions."""
        crew = self._crew
        crew.waiting.clear()
        rounds = {session.cohort: Round(self._problem, crew, session) for session in sessions if not session.idle}

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
                    rounds[session.cohort] = Round(self._problem, crew, session)

        crew.work(on_done)


class Round:
    """A round of one cohort that is under way: first its clients train, then they judge what came of it."""

    def __init__(self, problem: Problem, crew: Crew, session: Session) -> None:
        self.session, self._problem, self._crew = session, problem, crew
        self._settings, self._clients = problem.experiment.federation, problem.data.clients
        self._work = session.open_round()
        crew.places.put(session.cohort, self._work.model)
        self._losses: dict[int, float] = {}
        self._squares: dict[int, float | None] = {}
        self._arrived: list[staleness.Arrived] = []  # where age counts, all models are needed
        self._validation: dict[int, float] = {}
        self._to_judge = 0
        self._sum: Tensor | None = None
        self._wholes: Tensor | None = None
        self._weight = 0.0
        self._order = list(self._work.participants)  # clients whose models are still to be added, in this order
        self._early: dict[int, tuple[Tensor, Tensor]] = {}  # models that came before their turn
        longest_first = sorted(self._work.participants, key=lambda client: -self._size(client))
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
        self._early[client] = (self._crew.slots.floats_KP[slot], self._crew.slots.wholes_KQ[slot])
        while self._order and self._order[0] in self._early:
            self._add(self._order[0], *self._early.pop(self._order.pop(0)))
        if client in self._early:  # the slot is needed for others
            self._early[client] = tuple(part.clone() for part in self._early[client])  # type: ignore[assignment]
        if not self._order:
            self._aggregate()

    def _add(self, client: int, floats_P: Tensor, wholes_Q: Tensor) -> None:
        weight = server.weight(self._settings.weights, self._size(client))
        if self._work.rule != "mean":
            origin = self._work.origin(client)
            row = Rows(self._crew.slots.form, floats_P[None], wholes_Q[None])
            model = row.get(0, self._work.model)
            self._arrived.append(staleness.Arrived(model, origin.model, self._work.round - origin.round, weight))
        elif self._sum is None:
            self._sum, self._wholes = floats_P * weight, wholes_Q.clone()  # counters stay the first client's
        else:
            self._sum.add_(floats_P, alpha=weight)
        self._weight += weight

    def _aggregate(self) -> None:
        places, cohort = self._crew.places, self.session.cohort
        if self._arrived:
            places.put(cohort, staleness.merged(self._work.rule, self._work.model, self._arrived))
        else:
            assert self._sum is not None
            assert self._wholes is not None
            places.floats_KP[cohort].copy_(self._sum / self._weight)
            places.wholes_KQ[cohort].copy_(self._wholes)
        group, samples, jobs = list[int](), 0, list[Job]()
        for client in self._work.participants:
            held = int(self._clients.validation_sizes[client])
            if held:
                group.append(client)
                samples += held
            if group and (samples >= TOGETHER or client == self._work.participants[-1]):
                jobs.append(Job("judge", cohort, tuple(group), self._work.round))
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
            size, loss, value = self._size(client), self._losses[client], self._validation.get(client)
            steps = self._work.steps.get(client, local.steps(self._settings, size))
            samples = fates.visited(self._settings, size, steps)
            results.append(ClientResult(client, samples, steps, loss, value, self._squares[client]))
        return Outcome(model, results)

    def _check(self, client: int, loss: float) -> None:
        if not math.isfinite(loss):
            raise DivergedError(self.session.cohort, client, self._work.round, loss)

    def _size(self, client: int) -> int:
        return int(self._clients.training_sizes[client])
