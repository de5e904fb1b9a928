"""What is wanted: the limits, the goal, and what a trial's curve is worth for them."""

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cpfl.errors import SettingError, quoted
from cpfl.settings.types import MOST

COSTS = ("hours", "cpu_hours", "traffic_gb")
NAMES = {"hours": "hours", "cpu": "cpu_hours", "traffic": "traffic_gb"}  # as minimise takes them
WORDS = {"hours": "hours", "cpu_hours": "CPU hours", "traffic_gb": "GB of traffic"}
UNITS = {"MB": 1e-3, "GB": 1.0, "TB": 1e3}
ROUNDING = 1e-9


@dataclass(frozen=True)
class Point:
    """A moment of a trial: what it had cost by then, one evaluation included, and the accuracy of its models.

    Costs are virtual hours, CPU hours of all clients and GB of 10⁹ bytes that were sent; `accuracy` is the objective's
    metric in per cent on clients' validation samples. `moment` is the training time without the evaluation, in hours.
    """

    hours: float
    cpu_hours: float
    traffic_gb: float
    accuracy: float
    rounds: int
    moment: float

    def beaten_by(self, other: "Point", margin: float = 0.0) -> bool:
        """Whether the other one costs no more of anything and is more accurate by this margin."""
        cheaper = all(getattr(other, cost) <= getattr(self, cost) + ROUNDING for cost in COSTS)
        return cheaper and other.accuracy > self.accuracy + margin


Curve = Sequence[Point]


@dataclass(frozen=True)
class Goal:
    """The most accurate model within the limits, or the least of a cost at which an accuracy is reached within them."""

    hours: float | None = None
    cpu_hours: float | None = None
    traffic_gb: float | None = None
    accuracy: float | None = None
    minimise: str = ""  # of COSTS; empty: the accuracy is maximised

    @classmethod
    def of(
        cls,
        hours: float | None,
        cpu_hours: float | None,
        traffic: str | float | None,
        accuracy: float | None,
        minimise: str | None,
    ) -> "Goal":
        """Checked; `traffic` is GB or a text such as 500MB, `minimise` is hours, cpu or traffic."""
        limits = {"hours": hours, "cpu_hours": cpu_hours, "traffic": None if traffic is None else gigabytes(traffic)}
        for name, value in limits.items():
            if value is not None and not 0 < value <= MOST:
                raise SettingError(f"{name} = {value} is not allowed: above 0, at most {MOST:,}")
        if accuracy is not None and not 0 < accuracy <= 100:
            raise SettingError(f"accuracy = {accuracy} is not allowed: per cent, above 0, at most 100")
        if minimise is not None and minimise not in NAMES:
            raise SettingError(f"minimise = {quoted(minimise)} is not allowed: {', '.join(NAMES)}")
        if minimise is not None and accuracy is None:
            raise SettingError(f"minimise = {minimise} needs accuracy, the per cent that are to be reached")
        if accuracy is None and all(value is None for value in limits.values()):
            raise SettingError("a goal is missing: give hours, cpu_hours or traffic as limits, or accuracy")
        wanted = NAMES[minimise or "cpu"] if accuracy is not None else ""
        return cls(hours, cpu_hours, limits["traffic"], accuracy, wanted)

    @property
    def limits(self) -> dict[str, float]:
        """The costs that are limited."""
        found = {cost: getattr(self, cost) for cost in COSTS}
        return {cost: value for cost, value in found.items() if value is not None}

    def allows(self, point: Point) -> bool:
        """Whether a point is within all limits."""
        return all(getattr(point, cost) <= limit + ROUNDING for cost, limit in self.limits.items())

    def best(self, curve: Curve) -> Point | None:
        """The point that counts: the most accurate one within the limits, or the first with the wanted accuracy."""
        if self.accuracy is not None:
            reached = (point for point in curve if self.allows(point) and point.accuracy >= self.accuracy)
            return min(reached, key=self.cost, default=None)
        allowed = [(mean, -k) for k, mean in enumerate(smooth(curve)) if self.allows(curve[k])]
        return curve[-max(allowed)[1]] if allowed else None

    def cost(self, point: Point) -> float:
        """What is minimised."""
        return float(getattr(point, self.minimise))

    def value(self, curve: Curve) -> float:
        """What the search is told: the accuracy, or the cost, of the best point; a poor one where there is none."""
        best = self.best(curve)
        if best is None:
            return max(map(self.cost, curve), default=float(MOST)) if self.minimise else 0.0
        return self.cost(best) if self.minimise else smooth(curve)[list(curve).index(best)]

    def violations(self, curve: Curve) -> dict[str, float]:
        """By how much a trial misses each constraint at its nearest point; 0 or less: it does not."""
        found = {}
        for cost, limit in self.limits.items():
            found[cost] = min((getattr(point, cost) / limit - 1 for point in curve), default=1.0)
        if self.accuracy is not None:
            most = max((point.accuracy for point in curve if self.allows(point)), default=0.0)
            found["accuracy"] = self.accuracy - most
        return found

    def tree(self) -> dict[str, Any]:
        """As tune.json has it."""
        goal = {"minimise": self.minimise} if self.minimise else {"maximise": "accuracy"}
        return {"goal": goal, "limits": {key: value for key, value in asdict(self).items() if key != "minimise"}}

    def __str__(self) -> str:
        within = " and ".join(f"{limit:g} {WORDS[cost]}" for cost, limit in self.limits.items())
        within = f" within {within}" if within else ""
        if self.minimise:
            return f"the fewest {WORDS[self.minimise]} to {self.accuracy:g} %{within}"
        return f"the most accurate model{within}"


def smooth(curve: Curve) -> list[float]:
    """The mean accuracy of each point and the two before it: a single evaluation may be lucky."""
    return [statistics.fmean(point.accuracy for point in curve[max(0, k - 2) : k + 1]) for k in range(len(curve))]


def gigabytes(text: str | float) -> float:
    """50GB, 500MB or 1.5TB as GB of 10⁹ bytes; a number alone is GB."""
    if isinstance(text, int | float):
        return float(text)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(MB|GB|TB)?\s*", text, re.IGNORECASE)
    if not match:
        raise SettingError(f"traffic = {quoted(text)} is no amount: write 50GB, 500MB or 1.5TB")
    return float(match[1]) * UNITS[(match[2] or "GB").upper()]


def behind(curve: Curve, others: Sequence[Curve], margin: float, last: int) -> bool:
    """Whether the last so many points of a curve are each beaten by some point of the others."""
    if len(curve) < last:
        return False
    return all(any(point.beaten_by(q, margin) for other in others for q in other) for point in curve[-last:])


def front(curves: dict[int, Curve], cost: str) -> list[dict[str, Any]]:
    """The points that no cheaper one of any trial beats, by rising cost."""
    points = sorted(
        ((number, point) for number, curve in curves.items() for point in curve),
        key=lambda one: (getattr(one[1], cost), -one[1].accuracy),
    )
    found, highest = [], -math.inf
    for number, point in points:
        if point.accuracy > highest:
            highest = point.accuracy
            found.append({"trial": number, **{key: getattr(point, key) for key in (*COSTS, "accuracy")}})
    return found
