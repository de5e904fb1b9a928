"""What goes into a session and what comes out of it: rounds to train, their results, costs, records and snapshots."""

from dataclasses import dataclass, field

from cpfl.models import State

CLIENT_STATE_MEAN = "client_state_mean"  # over all clients, beside the buffers that the server optimizer names


@dataclass(frozen=True)
class AlgorithmState:
    """What is remembered from round to round beside the model: momenta, control variates, clients' own BatchNorm.

    Parameters by name, of the cohort's buffers and of single clients; what is missing has not begun.
    """

    cohort: dict[str, State] = field(default_factory=dict)
    clients: dict[int, State] = field(default_factory=dict)

    def updated(self, news: "AlgorithmState") -> "AlgorithmState":
        """A copy with what a round changed."""
        return AlgorithmState({**self.cohort, **news.cohort}, {**self.clients, **news.clients})

    def states(self) -> dict[str, State]:
        """For a checkpoint."""
        cohort = {f"cohort:{name}": state for name, state in self.cohort.items()}
        return cohort | {f"client:{client}": state for client, state in self.clients.items()}

    @classmethod
    def from_states(cls, states: dict[str, State]) -> "AlgorithmState":
        """From a checkpoint, which holds other things too."""
        named = [(*key.partition(":")[::2], state) for key, state in states.items()]
        return cls(
            {name: state for kind, name, state in named if kind == "cohort"},
            {int(name): state for kind, name, state in named if kind == "client"},
        )


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
    algorithm_state: AlgorithmState = field(default_factory=AlgorithmState)  # from earlier rounds
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


@dataclass(frozen=True)
class Cost:
    """What something takes: virtual seconds until it ends, CPU seconds and bytes of all clients."""

    seconds: float
    cpu_seconds: float
    bytes: int

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.seconds + other.seconds, self.cpu_seconds + other.cpu_seconds, self.bytes + other.bytes)


NOTHING = Cost(0.0, 0.0, 0)


@dataclass(frozen=True)
class RoundCost(Cost):
    """What a round takes, with what is wasted on work that is discarded; the fields of its record."""

    slowest: int  # the client that all others waited for
    repeats: int = 0  # attempts that returned too few results
    wasted_cpu_seconds: float = 0.0
    wasted_bytes: int = 0


@dataclass(frozen=True)
class RoundRecord:
    """A closed round: one line of a cohort's records."""

    cohort: int
    round: int
    participants: list[int]
    loss: float  # plain mean over participants
    validation: float | None  # plain mean over reporting participants
    reporting: int
    moving_average: float | None  # moving average of `validation`
    best: bool  # its model is the best so far
    seconds: float  # virtual length of the round
    clock: float  # the cohort's virtual seconds after it
    slowest: int  # the client that all others waited for
    cpu_seconds: float
    bytes: int
    samples: int
    stop: str  # why the cohort stopped with this round; empty: it did not
    excluded: dict[int, str] = field(default_factory=dict)  # participants whose work is not in the model, and why
    repeats: int = 0  # earlier attempts that returned too few results; their cost is in this record
    stale: int = 0  # participants that had begun in an earlier round
    wasted_cpu_seconds: float = 0.0  # of cpu_seconds, for work that was discarded
    wasted_bytes: int = 0


@dataclass(frozen=True)
class Snapshot:
    """A cohort's model as it was after `round`, at `clock` virtual seconds."""

    cohort: int
    round: int
    clock: float
    model: State


@dataclass(frozen=True)
class ClosedRound:
    """What closing a round yields: its record, and the snapshots that are due with it."""

    record: RoundRecord
    snapshots: list[Snapshot]
