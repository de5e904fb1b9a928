"""What a session and an engine exchange: a round to be done, and its results."""

from dataclasses import dataclass, field

from cpfl.federation.optimizers.state import AlgorithmState
from cpfl.models import State


@dataclass(frozen=True)
class Origin:
    """From where a client began that did not begin with this round: the earlier round and its model."""

    round: int
    model: State


@dataclass(frozen=True)
class RoundRequest:
    """A round to be done: who trains, from which model."""

    cohort: int
    round: int  # counted from 1
    participants: list[int]
    model: State
    algorithm_state: AlgorithmState = field(default_factory=AlgorithmState)  # of the optimizers, from earlier rounds
    cohort_size: int = 1  # all clients of the cohort, whoever takes part
    steps: dict[int, int] = field(default_factory=dict)  # of clients that do only so many of theirs, the first ones
    origins: dict[int, Origin] = field(default_factory=dict)  # of clients that began in an earlier round
    aggregation: str = "mean"  # mean: by the server optimizer alone; refl, fedbuff: first by staleness.py
    squared_losses: bool = False  # clients report the sum of their squared sample losses

    def origin(self, client: int) -> Origin:
        """From where a client begins; its batches are those of that round."""
        return self.origins.get(client) or Origin(self.round, self.model)


@dataclass(frozen=True)
class ClientResult:
    """What a participant reports beside its model."""

    client: int
    samples: int  # trained on in this round
    steps: int
    loss: float  # mean training loss over the steps
    validation: float | None  # loss of the cohort's new model on the client's validation set
    compute_seconds: float | None = None  # measured seconds of training; None: what the fleet says
    total_seconds: float | None = None  # measured seconds from the request to the result
    squared_losses: float | None = None  # sum over the samples trained on, where the selection needs it


@dataclass(frozen=True)
class RoundResult:
    """A round that was done: the aggregated model and the participants' reports."""

    model: State
    results: list[ClientResult]
    seconds: float | None = None  # measured length of the round; None: what the fleet says
    bytes: int | None = None  # measured traffic
    excluded: dict[int, str] = field(default_factory=dict)  # participants whose work is not in the model, and why
    algorithm_state: AlgorithmState = field(default_factory=AlgorithmState)  # what the round changed of it
