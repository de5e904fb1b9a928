"""How fast a run goes in real time, and how long it may still take, from when its records were written."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cpfl.experiment import Experiment
from cpfl.report.trail import Trail
from cpfl.terminal.course import Course

WINDOW = 60.0  # seconds over which the pace is taken: cohorts that stop change it
FEWEST = 4  # moments that are kept though they are older: rounds may be long


class Pace:
    """Counts samples and epochs at the moments at which they were written down."""

    def __init__(self, began: float | None = None) -> None:
        self._samples: deque[tuple[float, int]] = deque()
        self._epochs: deque[tuple[float, int]] = deque()
        if began is not None:
            self._samples.append((began, 0))

    def tick(self, now: float, samples: int, epoch: int) -> None:
        """So much was done by then."""
        for ticks, count in ((self._samples, samples), (self._epochs, epoch)):
            if ticks and count < ticks[-1][1]:  # it was resumed
                ticks.clear()
            if count > (ticks[-1][1] if ticks else 0):
                ticks.append((now, count))
            while len(ticks) > FEWEST and now - ticks[1][0] > WINDOW:
                ticks.popleft()

    @property
    def samples_per_second(self) -> float | None:
        """Of all cohorts together, lately."""
        return _rate(self._samples)

    def training_left(
        self,
        experiment: Experiment,
        plan: Sequence[Sequence[int]],
        trails: Sequence[Trail],
        allowed: Mapping[int, float] = {},  # CPU seconds of cohorts, where a judgement shared them out
    ) -> Bounds:
        """Real seconds until every cohort has stopped: if each stops as soon as it may, and as late as it must."""
        speed, course = self.samples_per_second, Course(experiment)
        going = {cohort: trail for cohort, trail in enumerate(trails) if not trail.stop}
        if not speed or not all(trail.rounds for trail in going.values()):
            return None
        least = most = 0.0
        limit = experiment.stopping.cpu_hours * 3600 or math.inf
        for cohort, trail in going.items():
            own = allowed.get(cohort, limit * len(plan[cohort]) / experiment.clients)
            left = course.left(_Standing(own, trail))
            least += left.least * trail.last_samples / speed
            most += left.most * trail.last_samples / speed
        return least, most

    def distilling_left(self, epochs: int) -> Bounds:
        """Real seconds until the student has gone through all epochs."""
        speed = _rate(self._epochs)
        seconds = (epochs - self._epochs[-1][1]) / speed if speed else 0.0
        return (seconds, seconds) if speed else None


Bounds = tuple[float, float] | None


@dataclass(frozen=True)
class _Standing:
    """A cohort as its session would tell of itself."""

    allowed: float
    trail: Trail

    @property
    def round(self) -> int:
        return self.trail.rounds

    @property
    def clock(self) -> float:
        return self.trail.clock

    @property
    def cpu_seconds(self) -> float:
        return self.trail.cpu_seconds

    @property
    def best_round(self) -> int:
        return self.trail.best_round


def _rate(ticks: Sequence[tuple[float, int]]) -> float | None:
    (then, before), (now, after) = (ticks[0], ticks[-1]) if ticks else ((0.0, 0), (0.0, 0))
    return (after - before) / (now - then) if now > then else None
