"""What a round will be, settled before it is trained: whose results count, how long it lasts, what comes to nothing.

Engines train only what counts; waste is accounted, not computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from cpfl.federation.fates import Fate
from cpfl.federation.reports import ClientResult
from cpfl.models import State

MOST = 1000  # attempts at a round, after which it is given up


@dataclass(frozen=True)
class Waste:
    """What clients spent to no avail."""

    cpu_seconds: float = 0.0
    bytes: int = 0

    def __add__(self, other: Waste) -> Waste:
        return Waste(self.cpu_seconds + other.cpu_seconds, self.bytes + other.bytes)


@dataclass(frozen=True)
class Timing:
    """How long a round lasts, and for whom; CPU seconds and bytes are all that is spent in it, the waste too."""

    seconds: float
    slowest: int
    cpu_seconds: float
    bytes: int
    waste: Waste
    repeats: int  # attempts that brought too few results


@dataclass(frozen=True)
class Begun:
    """Work that outlasts the round in which it was begun."""

    round: int  # from whose model
    began: float  # on the cohort's clock
    fate: Fate

    @property
    def ends(self) -> float:
        """When it arrives or is lost."""
        return self.began + self.fate.lasts

    def as_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return asdict(self)

    @classmethod
    def of(cls, tree: dict[str, Any]) -> Begun:
        """From a checkpoint."""
        return cls(tree["round"], tree["began"], Fate(**tree["fate"]))


@dataclass(frozen=True)
class Plan:
    """One round: whose results count, in client order."""

    participants: list[int]
    steps: dict[int, int] = field(default_factory=dict)  # of those who do not do all of theirs
    stale: dict[int, int] = field(default_factory=dict)  # of those who began earlier: in which round
    timing: Timing | None = None  # None: all goes to plan, and the results tell
    after: list[Begun] = field(default_factory=list)  # what is under way when it ends


class Planner(Protocol):
    """Plans a cohort's rounds one after the other."""

    ahead: bool  # the next round can be planned before the last is closed
    squares: bool  # clients report squared losses
    rule: str  # how results become a model: mean, refl or fedbuff (staleness.py)

    def plan(self, number: int, clock: float) -> Plan:
        """The round of this number that begins at this moment: always the same until a round is closed."""

    def close(
        self, plan: Plan, number: int, model: State, results: Sequence[ClientResult], seconds: float, clock: float
    ) -> None:
        """A round that began with this model and lasted so many seconds is over at this moment."""

    def model(self, number: int) -> State:
        """The model with which an earlier round began, as long as work from it is under way."""

    def under_way(self, clock: float) -> Waste:
        """What is lost if the cohort ends now."""

    def state(self) -> tuple[dict[int, State], dict[str, Any]]:
        """Models and numbers from which it goes on."""

    def restore(self, models: dict[int, State], numbers: dict[str, Any]) -> None:
        """Go on from a checkpoint."""


class UnderWay:
    """Work that outlasts its round, with the models it began from."""

    def __init__(self, model_bytes: int) -> None:
        self.begun: list[Begun] = []
        self._models: dict[int, State] = {}
        self._bytes = model_bytes  # 0 for a cohort without traffic

    def close(self, number: int, model: State, begun: list[Begun]) -> None:
        """After a round that began with this model, this is under way."""
        self.begun = begun
        models = {**self._models, number: model}
        self._models = {one.round: models[one.round] for one in begun}

    def model(self, number: int) -> State:
        """The model with which that round began."""
        return self._models[number]

    def lost(self, clock: float) -> Waste:
        """All of it, as far as it has come: every one was sent the model, those that have arrived sent theirs back."""
        waste = Waste()
        for one in self.begun:
            back = one.fate.arrives and one.ends <= clock
            waste += Waste(one.fate.spent(clock - one.began), self._bytes * (1 + back))
        return waste

    def state(self) -> tuple[dict[int, State], dict[str, Any]]:
        """For a checkpoint."""
        return dict(self._models), {"begun": [one.as_dict() for one in self.begun]}

    def restore(self, models: dict[int, State], numbers: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._models, self.begun = dict(models), [Begun.of(tree) for tree in numbers["begun"]]


class Outlasting:
    """A planner whose clients may still be under way when a round ends."""

    def __init__(self, model_bytes: int) -> None:
        self._bytes, self._under_way = model_bytes, UnderWay(model_bytes)

    def model(self, number: int) -> State:
        """The model with which an earlier round began."""
        return self._under_way.model(number)

    def under_way(self, clock: float) -> Waste:
        """What is lost if the cohort ends now."""
        return self._under_way.lost(clock)
