"""What a cohort and its clients remember from round to round beside the model: momenta, control variates."""

from dataclasses import dataclass, field

from cpfl.models import State


@dataclass(frozen=True)
class AlgorithmState:
    """Buffers of the cohort and states of its clients, as parameters by name; what is missing has not begun."""

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


CLIENT_STATE_MEAN = "client_state_mean"  # over all clients, beside the buffers that the server optimizer names
