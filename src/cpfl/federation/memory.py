"""What a cohort and its clients remember from round to round beside the model: momenta, control variates."""

from __future__ import annotations

from dataclasses import dataclass, field

from cpfl.models import State


@dataclass(frozen=True)
class Memory:
    """Rows by what they are for, as parameters by name; what is missing has not begun."""

    cohort: dict[str, State] = field(default_factory=dict)
    clients: dict[int, State] = field(default_factory=dict)

    def after(self, news: Memory) -> Memory:
        """With what a round changed."""
        return Memory({**self.cohort, **news.cohort}, {**self.clients, **news.clients})

    def states(self) -> dict[str, State]:
        """For a checkpoint."""
        cohort = {f"cohort:{name}": state for name, state in self.cohort.items()}
        return cohort | {f"client:{client}": state for client, state in self.clients.items()}

    @classmethod
    def of(cls, states: dict[str, State]) -> Memory:
        """From a checkpoint, which holds other things too."""
        named = [(*kind.partition(":")[::2], state) for kind, state in states.items()]
        return cls(
            {name: state for kind, name, state in named if kind == "cohort"},
            {int(name): state for kind, name, state in named if kind == "client"},
        )


ROWS = "rows"  # the cohort's mean of its clients' rows, beside what its server part names
