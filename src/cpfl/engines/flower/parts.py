"""What happens to a round's answers inside a cohort: who is asked, with what, and how their models become one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from flwr.app import ConfigRecord, RecordDict

from cpfl.engines.flower import letters
from cpfl.engines.flower.checks import Trained
from cpfl.engines.flower.letters import ARRAYS, CONFIG
from cpfl.engines.flower.roll import Roll
from cpfl.experiment import Federation
from cpfl.federation import server
from cpfl.federation.session import Session
from cpfl.models import State


class Part(Protocol):
    """A federated algorithm, seen from the server."""

    def open(self, number: int, model: State, there: Mapping[int, int]) -> dict[int, RecordDict]:
        """Letters for round `number` by client; `there`: the cohort's clients that can be reached, and their nodes."""

    def close(self, number: int, answers: list[Trained]) -> State | None:
        """The cohort's next model from checked answers, in the order of the clients; None: there is none."""


class Own(Part):
    """CPFL's own: the session's selection and weighted mean, exactly as simulated."""

    def __init__(self, session: Session, federation: Federation, roll: Roll) -> None:
        self._session, self._federation, self._roll = session, federation, roll

    def open(self, number: int, model: State, there: Mapping[int, int]) -> dict[int, RecordDict]:
        """All that are selected, also those who are not there: the round names them."""
        content = RecordDict({ARRAYS: letters.packed(model), CONFIG: ConfigRecord({})})
        return dict.fromkeys(self._session.participants(number), content)

    def close(self, number: int, answers: list[Trained]) -> State:
        """A weighted mean; weights come from what clients enrolled with, not from what they claim now."""
        mean = server.Mean()
        for answer in answers:
            samples = self._roll.places[answer.result.client].training
            mean.add(answer.model, server.weight(self._federation.weights, samples))
        return mean.result()
