"""How workers' results become a cohort's next model, in memory that all share: added up as they come, or by age."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from cpfl import models
from cpfl.engines.gathering import Gathering
from cpfl.engines.lanes.stack import Layout
from cpfl.engines.workers.crew import Crew
from cpfl.engines.workers.form import Form, Rows
from cpfl.engines.workers.trainer import models_form, places_of
from cpfl.federation import parts, server
from cpfl.federation.local_part import LocalPart
from cpfl.federation.memory import ROWS, Memory
from cpfl.federation.reports import Work
from cpfl.federation.server_part import Joining, ServerPart
from cpfl.problem import Problem


@dataclass(frozen=True)
class Anatomy:
    """Which numbers of a model are learnt, and the parts whose business they are; buffers are averaged."""

    layout: Layout
    parameters: Form
    places: Tensor | None  # where they lie among a row's floats; None: they are all there is
    local: LocalPart
    server: ServerPart

    @classmethod
    def of(cls, problem: Problem) -> Anatomy:
        """Of the problem's model."""
        dtype, form = problem.data.transform.dtype, models_form(problem)
        layout = Layout.of(models.fresh(problem.build, problem.experiment.seed, "init", dtype))
        places, settings = places_of(form.floats, set(layout.names)), problem.experiment.federation
        return cls(layout, form.only(layout.names), places, parts.local_part(settings), parts.server_part(settings))

    def learnt(self, floats_P: Tensor) -> Tensor:
        """The parameters of a row."""
        return floats_P if self.places is None else floats_P[self.places]


@dataclass(frozen=True)
class Arrival:
    """A client's model as it lies in its slot, and the row that its local part leaves, if it keeps one."""

    floats_P: Tensor
    wholes_Q: Tensor
    left_P: Tensor | None

    def kept(self) -> Arrival:
        """A copy: the slot is needed for others."""
        left = None if self.left_P is None else self.left_P.clone()
        return Arrival(self.floats_P.clone(), self.wholes_Q.clone(), left)


class Join(Protocol):
    """A round's models on their way into the next."""

    def add(self, client: int, samples: int, steps: int, arrival: Arrival) -> None:
        """Clients come in their order."""

    def finish(self) -> Memory:
        """Put the cohort's new model in its place; what the parts remember from now on."""


def join(problem: Problem, anatomy: Anatomy, crew: Crew, work: Work) -> Join:
    """As the round's rule says."""
    return Streamed(problem, anatomy, crew, work) if work.rule == "mean" else Aged(anatomy, crew, work)


class Streamed:
    """Added up as they come: memory does not grow with the participants."""

    def __init__(self, problem: Problem, anatomy: Anatomy, crew: Crew, work: Work) -> None:
        self._crew, self._anatomy, self._work = crew, anatomy, work
        self._weights = problem.experiment.federation.weights
        self._local, self._server = anatomy.local, anatomy.server
        self._joining = Joining(self._server, anatomy.learnt(crew.places.floats_KP[work.cohort]).clone())
        self._sizes: list[tuple[int, int]] = []
        self._sum: Tensor | None = None  # of floats that are not learnt, and what lies between them
        self._wholes: Tensor | None = None
        self._weight = 0.0
        self._recall()

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
            asked = [(kept.cohorts, self._work.cohort, known.cohort.get(ROWS))]
            asked += [(kept.clients, client, known.clients.get(client)) for client in self._work.participants]
            for rows, row, state in asked:
                rows.floats_KP[row].zero_()
                if state is not None:
                    rows.put(row, state)

    def add(self, client: int, samples: int, steps: int, arrival: Arrival) -> None:
        """To the sum."""
        self._sizes.append((samples, steps))
        self._joining.add(self._anatomy.learnt(arrival.floats_P), self._server.weight(samples, steps))
        weight = server.weight(self._weights, samples)
        if self._wholes is None:
            self._wholes = arrival.wholes_Q.clone()  # counters stay the first client's
        if self._anatomy.places is not None:
            whole_P = arrival.floats_P
            self._sum = whole_P * weight if self._sum is None else self._sum.add_(whole_P, alpha=weight)
        self._weight += weight
        if arrival.left_P is not None and self._crew.kept:
            before_P = self._crew.kept.clients.floats_KP[client]
            self._moved += arrival.left_P - before_P
            before_P.copy_(arrival.left_P)

    def finish(self) -> Memory:
        """The server part's model, and the local part's last word on it."""
        assert self._wholes is not None
        places, cohort = self._crew.places, self._work.cohort
        rows = dict(zip(self._server.memory, self._memory.floats_KP, strict=True))
        model_P = self._joining.result(self._server.pace(self._sizes), rows)
        if kept := self._crew.kept:
            mean_P = kept.cohorts.floats_KP[cohort].add_(self._moved / self._work.size)
            model_P = self._local.settle(model_P, mean_P)
        if self._sum is None:
            places.floats_KP[cohort].copy_(model_P)
        else:
            assert self._anatomy.places is not None
            places.floats_KP[cohort].copy_(self._sum / self._weight).index_copy_(0, self._anatomy.places, model_P)
            named, layout = places.views(cohort), self._anatomy.layout
            for name, first in layout.ties.items():
                named[name].copy_(named[first])
            for name, value in layout.frozen.items():  # a mean of equals may round
                named[name].copy_(value)
        places.wholes_KQ[cohort].copy_(self._wholes)
        return self._remembered()

    def _remembered(self) -> Memory:
        like, kept = self._work.model, self._crew.kept
        cohort = {name: self._memory.get(k, like) for k, name in enumerate(self._server.memory)}
        if not kept:
            return Memory(cohort)
        cohort[ROWS] = kept.cohorts.get(self._work.cohort, like)
        return Memory(cohort, {client: kept.clients.get(client, like) for client in self._work.participants})


class Aged:
    """Updates of different age, of which all are needed."""

    def __init__(self, anatomy: Anatomy, crew: Crew, work: Work) -> None:
        self._crew, self._layout, self._work = crew, anatomy.layout, work
        self._gathering = Gathering(anatomy.layout, anatomy.server, work, torch.device("cpu"))

    def add(self, client: int, samples: int, steps: int, arrival: Arrival) -> None:
        """With what it began from."""
        row = Rows(self._crew.slots.form, arrival.floats_P[None], arrival.wholes_Q[None])
        self._gathering.add(row.get(0, self._work.model), samples, steps, self._work.origins.get(client))

    def finish(self) -> Memory:
        """As staleness.py and the server part say."""
        gathering = self._gathering
        self._crew.places.put(self._work.cohort, gathering.model(gathering.result()))
        return Memory({name: self._layout.views(row) for name, row in gathering.memory.items()})
