"""How far a run has come and how long it may still take, counted in constant time per round."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from cpfl.experiment import Experiment
from cpfl.federation.session import Closed, Session
from cpfl.terminal.sparkline import Curve

WINDOW = 30.0  # seconds over which the pace is taken: cohorts that stop change it
TICK = 0.5
ALIKE = 1.2  # bounds this close are one estimate


class Left(NamedTuple):
    """Rounds that a cohort still has to go, at the least and at the most."""

    least: int
    most: int


class Standing(Protocol):
    """What is asked of a cohort to say how far it has to go."""

    @property
    def round(self) -> int: ...
    @property
    def clock(self) -> float: ...
    @property
    def cpu_seconds(self) -> float: ...
    @property
    def best_round(self) -> int: ...
    @property
    def allowed(self) -> float: ...  # CPU seconds in all


class Cohort:
    """One cohort's row."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.began_at = session.round
        self.samples = 0  # of its last round
        self.average: float | None = None  # of the validation loss; the training loss where nobody validates
        self.curve = Curve()


class Course:
    """A run under way."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self.cohorts: list[Cohort] = []
        self.rounds = self.samples = self.stopped = 0
        self.clock = 0.0
        self.began = time.monotonic()
        self._ticks: deque[tuple[float, int]] = deque()

    def start(self, sessions: Sequence[Session]) -> None:
        """Count what was done before."""
        self.cohorts = [Cohort(session) for session in sessions]
        self.rounds = sum(session.round for session in sessions)
        self.stopped = sum(bool(session.stopped) for session in sessions)
        self.clock = max((session.clock for session in sessions), default=0.0)
        self.began = time.monotonic()
        self._ticks.append((self.began, 0))

    def add(self, session: Session, closed: Closed) -> None:
        """One more round."""
        cohort = self.cohorts[session.cohort]
        record = closed.record
        cohort.average = record.loss if record.average is None else record.average
        cohort.curve.add(cohort.average)
        cohort.samples = record.samples
        self.rounds += 1
        self.samples += record.samples
        if session.clock > self.clock:
            self.clock = session.clock
        if session.stopped:
            self.stopped += 1

    def samples_per_second(self) -> float:
        """Since this stretch of the run began."""
        return self.samples / max(time.monotonic() - self.began, 1e-9)

    def seconds_left(self) -> tuple[float, float] | None:
        """Real seconds of training to go, at the least and at the most; None while nothing can be said.

        At the least every cohort stops as soon as it may, at the pace of all (in samples: cohorts' rounds differ). At
        the most one goes on for as long as it can, as slowly as until now, though others will have stopped.
        """
        pace, elapsed = self._pace(), time.monotonic() - self.began
        going = [cohort for cohort in self.cohorts if not cohort.session.stopped]
        if not pace or not going or not all(cohort.samples for cohort in going):
            return None
        least = most = 0.0
        for cohort in going:
            left = self.left(cohort.session)
            least += left.least * cohort.samples / pace
            most = max(most, left.most * elapsed / (cohort.session.round - cohort.began_at))
        return min(least, most), most

    def left(self, session: Standing) -> Left:
        """The rounds until this cohort must stop, and until it may."""
        e, stopping = self._experiment, self._experiment.stopping
        most = float(e.max_rounds - session.round)
        if stopping.rule == "rounds":
            most = min(most, stopping.rounds - session.round)
        for limit, spent in (
            (stopping.hours * 3600 or math.inf, session.clock),
            (session.allowed, session.cpu_seconds),
        ):
            if spent:
                most = min(most, (limit - spent) / (spent / session.round))
        most = max(most, 1)
        least = most
        if stopping.rule == "plateau":
            least = min(most, max(1, session.best_round + stopping.patience - session.round))
        if stopping.rule == "joint":
            least = min(most, stopping.every - session.round % stopping.every)
        return Left(math.floor(least), math.ceil(most))

    def _pace(self) -> float:
        """Samples a second of all cohorts, lately."""
        now = time.monotonic()
        if now - self._ticks[-1][0] >= TICK:
            self._ticks.append((now, self.samples))
            while len(self._ticks) > 2 and now - self._ticks[1][0] > WINDOW:
                self._ticks.popleft()
        then, samples = self._ticks[0]
        return (self.samples - samples) / (now - then) if now > then else 0.0


def spoken(bounds: tuple[float, float] | None) -> str:
    """A remaining time, told no more exactly than it is known."""
    if bounds is None:
        return ""
    least, most = bounds
    if most <= ALIKE * least or most < 1:
        return f"about {duration(most)} left"
    return f"{duration(least)} to at most {duration(most)} left"


def duration(seconds: float) -> str:
    """For a person: two digits are enough."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            value = seconds / size
            return f"{value:.0f} {unit}" if value >= 10 or unit == "min" else f"{value:.1f} {unit}"
    return f"{max(seconds, 1):.0f} s"
