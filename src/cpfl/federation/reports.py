"""What a session and an engine tell each other: a round to be done, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from cpfl.federation.memory import Memory
from cpfl.models import State


@dataclass(frozen=True)
class Origin:
    """Where a client began that does not begin with this round: the round and its model."""

    round: int
    model: State


@dataclass(frozen=True)
class Work:
    """A round to be done: who trains, from which model."""

    cohort: int
    round: int  # counted from 1
    participants: list[int]
    model: State
    memory: Memory = field(default_factory=Memory)  # of the parts, from earlier rounds
    size: int = 1  # of the cohort, whoever takes part
    steps: dict[int, int] = field(default_factory=dict)  # of clients that do only so many of theirs, the first ones
    origins: dict[int, Origin] = field(default_factory=dict)  # of clients that began in an earlier round
    rule: str = "mean"  # how models become one: by the server part alone, or first as staleness.py says
    squares: bool = False  # clients report the sum of their squared sample losses

    def origin(self, client: int) -> Origin:
        """What a client begins from; its batches are those of that round."""
        return self.origins.get(client) or Origin(self.round, self.model)


@dataclass(frozen=True)
class ClientResult:
    """What a participant reports beside its model."""

    client: int
    samples: int  # trained on in this round
    steps: int
    loss: float  # mean training loss over the steps
    validation: float | None  # loss of the cohort's new model on the client's validation set
    computing: float | None = None  # measured seconds of training; None: what the fleet says
    lasting: float | None = None  # measured seconds from the call to the answer
    squares: float | None = None  # sum of the squared losses of the samples trained on, where selection asks for it


@dataclass(frozen=True)
class Outcome:
    """A round that was done: the aggregated model and the participants' reports."""

    model: State
    results: list[ClientResult]
    seconds: float | None = None  # measured length of the round; None: what the fleet says
    bytes: int | None = None  # measured traffic
    left_out: dict[int, str] = field(default_factory=dict)  # participants whose work is not in the model, and why
    memory: Memory = field(default_factory=Memory)  # what the round changed of it
