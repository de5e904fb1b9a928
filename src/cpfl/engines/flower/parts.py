"""What happens to a round's answers inside a cohort: who is asked, with what, and how their models become one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from flwr.app import ConfigRecord, RecordDict

from cpfl import models
from cpfl.engines.flower import letters
from cpfl.engines.flower.checks import Trained
from cpfl.engines.flower.letters import ARRAYS, CONFIG
from cpfl.engines.flower.roll import Roll
from cpfl.engines.gathering import Gathering
from cpfl.engines.lanes.stack import Layout
from cpfl.federation import parts
from cpfl.federation.memory import Memory
from cpfl.federation.session import Session, Work
from cpfl.models import State
from cpfl.problem import Problem

CPU = torch.device("cpu")


class Part(Protocol):
    """A federated algorithm, seen from the server."""

    least: int = 1  # answers without which there is no next model: the round is tried again
    memory: Memory = Memory()  # what its server step remembers since the last round that was closed

    def open(self, number: int, model: State, there: Mapping[int, int]) -> dict[int, RecordDict]:
        """Letters for round `number` by client; `there`: the cohort's clients that can be reached, and their nodes."""

    def close(self, number: int, answers: list[Trained]) -> State | None:
        """The cohort's next model from checked answers, in the order of the clients; None: there is none."""


class Own(Part):
    """CPFL's own: the session's selection and the experiment's server part, exactly as simulated."""

    def __init__(self, session: Session, problem: Problem, roll: Roll) -> None:
        self._session, self._roll, self.memory = session, roll, session.memory
        self._server = parts.server_part(problem.experiment.federation)
        self.least = self._server.least
        module = models.fresh(problem.build, problem.experiment.seed, "init", problem.data.transform.dtype)
        self._layout, self._start = Layout.of(module), session.model

    def open(self, number: int, model: State, there: Mapping[int, int]) -> dict[int, RecordDict]:
        """All that are selected, also those who are not there: the round names them."""
        self._start = model
        content = RecordDict({ARRAYS: letters.packed(model), CONFIG: ConfigRecord({})})
        return dict.fromkeys(self._session.participants(number), content)

    def close(self, number: int, answers: list[Trained]) -> State:
        """Weights come from what clients enrolled with, not from what they claim now."""
        work = Work(self._session.cohort, number, [], self._start, self.memory)
        gathering = Gathering(self._layout, self._server, work, CPU)
        for answer in answers:
            gathering.add(answer.model, self._roll.places[answer.result.client].training, answer.result.steps)
        model = gathering.model(gathering.result())
        self.memory = Memory({name: self._layout.views(row) for name, row in gathering.memory.items()})
        return model
