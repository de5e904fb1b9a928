"""The engine of a CPU: every core trains clients, of any cohort, with no barrier between cohorts.

Results do not depend on the number of workers: a client's arithmetic is its own, and models are added up in the order
of the clients, whoever ends first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cpfl import models
from cpfl.engines.base import OnRound
from cpfl.engines.lanes.stack import Layout
from cpfl.engines.workers.crew import Crew, Job, can_fork, cores
from cpfl.engines.workers.form import Form
from cpfl.engines.workers.trainer import models_form, places_of
from cpfl.errors import DivergedError
from cpfl.federation import local, parts, server
from cpfl.federation.memory import ROWS, Memory
from cpfl.federation.server_part import Joining
from cpfl.federation.session import ClientResult, Outcome, Session
from cpfl.problem import Problem

TOGETHER = 512  # validation samples that are judged in one job


class WorkerEngine:
    """Trains clients on all cores, or on `workers` of them."""

    name = "workers"

    def __init__(self, problem: Problem, workers: int = 0) -> None:
        self._problem = problem
        wanted = min(workers or cores(), problem.experiment.clients)
        self._anatomy = Anatomy.of(problem)
        self._crew = Crew(problem, wanted if can_fork() else 1, self._anatomy.parameters)

    def federate(self, sessions: Sequence[Session], on_round: OnRound) -> None:
        """Do all rounds of all sessions."""
        crew = self._crew
        crew.waiting.clear()
        rounds = {
            session.cohort: Round(self._problem, self._anatomy, crew, session)
            for session in sessions
            if not session.idle
        }

        def on_done(job: Job, answer: float | list[float], slot: int) -> None:
            round = rounds[job.place]
            if job.kind == "train":
                assert isinstance(answer, float)
                round.trained(job.clients[0], answer, slot)
            else:
                assert isinstance(answer, list)
                round.judged(job.clients, answer)
            if round.complete:
                session = round.session
                on_round(session, session.close_round(round.outcome()))
                if not session.idle:
                    rounds[session.cohort] = Round(self._problem, self._anatomy, crew, session)

        crew.work(on_done)


@dataclass(frozen=True)
class Anatomy:
    """Which numbers of a model are learnt: the server part's business; buffers are averaged."""

    parameters: Form
    places: Tensor | None  # where they lie among a row's floats; None: they are all there is
    ties: dict[str, str]  # second names of a parameter, and its first

    @classmethod
    def of(cls, problem: Problem) -> Anatomy:
        """Of the problem's model."""
        dtype, form = problem.data.transform.dtype, models_form(problem)
        layout = Layout.of(models.fresh(problem.build, problem.experiment.seed, "init", dtype))
        return cls(form.only(layout.names), places_of(form.floats, set(layout.names)), layout.ties)

    def learnt(self, floats_P: Tensor) -> Tensor:
        """The parameters of a row."""
        return floats_P if self.places is None else floats_P[self.places]


class Round:
    """A round of one cohort that is under way: first its clients train, then they judge what came of it."""

    def __init__(self, problem: Problem, anatomy: Anatomy, crew: Crew, session: Session) -> None:
        self.session, self._problem, self._crew, self._anatomy = session, problem, crew, anatomy
        self._settings, self._clients = problem.experiment.federation, problem.data.clients
        self._local, self._server = parts.local_part(self._settings), parts.server_part(self._settings)
        self._work = session.open_round()
        crew.places.put(session.cohort, self._work.model)
        self._losses: dict[int, float] = {}
        self._validation: dict[int, float] = {}
        self._to_judge = 0
        self._joining = Joining(self._server, anatomy.learnt(crew.places.floats_KP[session.cohort]).clone())
        self._sum: Tensor | None = None  # of floats that are not learnt, and what lies between them
        self._wholes: Tensor | None = None
        self._weight = 0.0
        self._recall()
        self._order = list(self._work.participants)  # clients whose models are still to be added, in this order
        self._early: dict[int, tuple[Tensor, ...]] = {}  # models that came before their turn
        longest_first = sorted(self._work.participants, key=lambda client: -self._size(client))
        crew.waiting.extend(Job("train", session.cohort, (c,), self._work.round) for c in longest_first)

    def _recall(self) -> None:
        """What the parts remember from earlier rounds, or how it begins."""
        known, names, form = self._work.memory, self._server.memory, self._anatomy.parameters
        self._memory = form.rows(len(names))
        for k, name in enumerate(names):
            self._memory.floats_KP[k].fill_(self._server.first(name))
            if name in known.cohort:
                self._memory.put(k, known.cohort[name])
        if kept := self._crew.kept:
            self._moved = torch.zeros_like(kept.cohorts.floats_KP[0])  # the sum of the changes of clients' rows
            asked = [(kept.cohorts, self.session.cohort, known.cohort.get(ROWS))]
            asked += [(kept.clients, client, known.clients.get(client)) for client in self._work.participants]
            for rows, row, state in asked:
                rows.floats_KP[row].zero_()
                if state is not None:
                    rows.put(row, state)

    @property
    def complete(self) -> bool:
        """All have trained and judged."""
        return not self._order and self._to_judge == 0

    def trained(self, client: int, loss: float, slot: int) -> None:
        """A client's model lies in a slot; the last one makes the cohort's new model."""
        self._check(client, loss)
        self._losses[client] = loss
        slots, kept = self._crew.slots, self._crew.kept
        self._early[client] = (slots.floats_KP[slot], slots.wholes_KQ[slot])
        if kept:
            self._early[client] += (kept.leaving.floats_KP[slot],)
        while self._order and self._order[0] in self._early:
            self._add(self._order[0], *self._early.pop(self._order.pop(0)))
        if client in self._early:  # the slot is needed for others
            self._early[client] = tuple(part.clone() for part in self._early[client])
        if not self._order:
            self._aggregate()

    def _add(self, client: int, floats_P: Tensor, wholes_Q: Tensor, left_P: Tensor | None = None) -> None:
        size = self._size(client)
        self._joining.add(self._anatomy.learnt(floats_P), self._server.weight(size, local.steps(self._settings, size)))
        weight = server.weight(self._settings.weights, size)
        if self._wholes is None:
            self._wholes = wholes_Q.clone()  # counters stay the first client's
        if self._anatomy.places is not None:
            self._sum = floats_P * weight if self._sum is None else self._sum.add_(floats_P, alpha=weight)
        self._weight += weight
        if left_P is not None and self._crew.kept:
            before_P = self._crew.kept.clients.floats_KP[client]
            self._moved += left_P - before_P
            before_P.copy_(left_P)

    def _aggregate(self) -> None:
        assert self._wholes is not None
        places, cohort, memory = self._crew.places, self.session.cohort, self._memory
        sizes = [(size, local.steps(self._settings, size)) for size in map(self._size, self._work.participants)]
        rows = dict(zip(self._server.memory, memory.floats_KP, strict=True))
        model_P = self._joining.result(self._server.pace(sizes), rows)
        if kept := self._crew.kept:
            mean_P = kept.cohorts.floats_KP[cohort].add_(self._moved / self._work.size)
            model_P = self._local.settle(model_P, mean_P)
        if self._sum is None:
            places.floats_KP[cohort].copy_(model_P)
        else:
            assert self._anatomy.places is not None
            places.floats_KP[cohort].copy_(self._sum / self._weight).index_copy_(0, self._anatomy.places, model_P)
            named = places.views(cohort)
            for name, first in self._anatomy.ties.items():
                named[name].copy_(named[first])
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
            size = self._size(client)
            samples, steps = local.samples(self._settings, size), local.steps(self._settings, size)
            results.append(ClientResult(client, samples, steps, self._losses[client], self._validation.get(client)))
        return Outcome(model, results, memory=self._remembered())

    def _remembered(self) -> Memory:
        like, kept = self._work.model, self._crew.kept
        cohort = {name: self._memory.get(k, like) for k, name in enumerate(self._server.memory)}
        if not kept:
            return Memory(cohort)
        cohort[ROWS] = kept.cohorts.get(self.session.cohort, like)
        return Memory(cohort, {client: kept.clients.get(client, like) for client in self._work.participants})

    def _check(self, client: int, loss: float) -> None:
        if not math.isfinite(loss):
            raise DivergedError(self.session.cohort, client, self._work.round, loss)

    def _size(self, client: int) -> int:
        return int(self._clients.training_sizes[client])
