"""How far a run has come, its loss curves, and how long it may still take, in constant time per round."""

import itertools
import math
import statistics
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cpfl.federation.session import ClosedRound, Session
from cpfl.settings import Experiment

WINDOW = 60.0  # seconds over which throughput is measured: it changes when cohorts stop
FEWEST = 4  # measurements that are kept although they are older: rounds may be long
UNSURE = 0.2  # of an amount that is still called sure
LEVELS = "▁▂▃▄▅▆▇█"
PLAIN_LEVELS = "_.-=+*%#"  # where the terminal knows no Unicode
LONGEST = 128  # values of a curve


class RoundsLeft(NamedTuple):
    """Rounds that a cohort still trains, at the least and at the most."""

    least: int
    most: int


def rounds_left(
    experiment: Experiment, done: int, clock: float, cpu_seconds: float, cpu_budget: float, best_round: int
) -> RoundsLeft:
    """The rounds until a cohort may stop, and until it must, by its stopping rule, hours and CPU budget."""
    stopping = experiment.stopping
    most = float(experiment.max_rounds - done)
    if stopping.rule == "rounds":
        most = min(most, stopping.rounds - done)
    for limit, spent in ((stopping.max_hours * 3600 or math.inf, clock), (cpu_budget, cpu_seconds)):
        if spent:
            most = min(most, (limit - spent) / (spent / done))
    least = most = max(most, 1)
    if stopping.rule == "plateau":
        least = min(most, max(1, best_round + stopping.patience - done))
    if stopping.rule == "joint":
        least = 1 if experiment.meets else min(most, stopping.eval_interval - done % stopping.eval_interval)
    return RoundsLeft(math.floor(least), math.ceil(most))


class Expected(NamedTuple):
    """An amount that is still to come, in rounds, samples or seconds."""

    amount: float
    sure: bool  # False: nothing that has ended tells more than the least that the stopping rule allows

    def times(self, factor: float) -> "Expected":
        """The same in another unit."""
        return Expected(self.amount * factor, self.sure)


def expected_rounds(left: RoundsLeft, done: int, ended: Sequence[int]) -> Expected:
    """The rounds that a cohort still trains: as many as those that trained longer than it has until now.

    `ended` holds the rounds of comparable cohorts that have stopped.
    """
    if left.least == left.most:
        return Expected(left.least, sure=True)
    longer = [rounds for rounds in ended if rounds > done]
    if not longer:
        return Expected(left.least, sure=False)
    return Expected(min(max(statistics.fmean(longer) - done, left.least), left.most), sure=True)


def total(parts: Iterable[Expected]) -> Expected:
    """The sum, which is sure if nearly all of it is."""
    each = list(parts)
    whole, unsure = (sum(part.amount for part in some) for some in (each, [p for p in each if not p.sure]))
    return Expected(whole, unsure <= UNSURE * whole)


class Throughput:
    """A growing count and the moments at which it grew."""

    def __init__(self, began: float | None = None) -> None:
        self._ticks: deque[tuple[float, int]] = deque([] if began is None else [(began, 0)])

    def tick(self, now: float, count: int) -> None:
        """The count at this moment."""
        ticks = self._ticks
        if ticks and count < ticks[-1][1]:  # the run was resumed from an earlier round
            ticks.clear()
        if count > (ticks[-1][1] if ticks else 0):
            ticks.append((now, count))
        while len(ticks) > FEWEST and now - ticks[1][0] > WINDOW:
            ticks.popleft()

    @property
    def rate(self) -> float:
        """Counts per second, lately; 0: not known yet."""
        if len(self._ticks) < 2:
            return 0.0
        (then, before), (now, after) = self._ticks[0], self._ticks[-1]
        return (after - before) / (now - then) if now > then else 0.0


class Curve:
    """A series of any length in bounded memory: when it gets long, neighbours are averaged."""

    def __init__(self) -> None:
        self._values: list[float] = []
        self._each = 1  # numbers in one value
        self._sum, self._count = 0.0, 0

    def add(self, number: float) -> None:
        """Append a number, in constant time on average."""
        self._sum += number
        self._count += 1
        if self._count < self._each:
            return
        self._values.append(self._sum / self._count)
        if len(self._values) == LONGEST:  # a new list: another thread may be drawing the old one
            self._values = [(a + b) / 2 for a, b in zip(self._values[::2], self._values[1::2], strict=True)]
            self._each *= 2
        self._sum, self._count = 0.0, 0

    @property
    def bounds(self) -> tuple[float, float]:
        """Its lowest and its highest value; it has one."""
        return min(self._values), max(self._values)

    def line(self, width: int, levels: str, low: float, high: float) -> str:
        """The whole curve in at most so many characters, on a scale from `low` to `high`."""
        values = self._values[:]
        if not values:
            return ""
        if len(values) > width:
            edges = [len(values) * k // width for k in range(width + 1)]
            values = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
        scale = (len(levels) - 1) / (high - low) if high > low else 0.0
        return "".join(levels[round((min(max(value, low), high) - low) * scale)] for value in values)


class Cohort:
    """One cohort's line on the screen."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.began_at = session.round
        self.samples = 0  # of its last round
        self.average: float | None = None  # of the validation loss; the training loss where no client validates
        self.curve = Curve()


class ProgressEstimate:
    """A run in progress."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self.start(())

    def start(self, sessions: Sequence[Session]) -> None:
        """Count the rounds that were trained before."""
        self.cohorts = [Cohort(session) for session in sessions]
        self.rounds = sum(session.round for session in sessions)
        self.stopped = sum(bool(session.stopped) for session in sessions)
        self.clock = max((session.clock for session in sessions), default=0.0)
        self.samples = 0
        self.began = time.monotonic()
        self._throughput = Throughput(self.began)

    def add(self, session: Session, closed: ClosedRound) -> None:
        """Count one more round."""
        cohort, record = self.cohorts[session.cohort], closed.record
        cohort.average = record.loss if record.moving_average is None else record.moving_average
        cohort.curve.add(cohort.average)
        cohort.samples = record.samples
        self.rounds += 1
        self.samples += record.samples
        self.clock = max(self.clock, session.clock)
        self.stopped += bool(session.stopped)

    def samples_left(self) -> Expected | None:
        """Samples that all cohorts together still train on; None: a cohort has not closed a round yet."""
        training = [cohort for cohort in self.cohorts if not cohort.session.stopped]
        if not all(cohort.samples for cohort in training):
            return None
        ended = [cohort.session.round for cohort in self.cohorts if cohort.session.stopped]
        rounds = (expected_rounds(self.rounds_left(c.session), c.session.round, ended) for c in training)
        return total(left.times(c.samples) for left, c in zip(rounds, training, strict=True))

    def seconds_left(self) -> Expected | None:
        """Real seconds of training left, at the measured throughput of all cohorts; None: not known yet."""
        self._throughput.tick(time.monotonic(), self.samples)
        rate, left = self._throughput.rate, self.samples_left()
        return left.times(1 / rate) if rate and left is not None and left.amount else None

    def share(self) -> float:
        """Of the training samples that are expected in all, those that are trained on; 0: not known yet."""
        done, left = sum(cohort.session.samples for cohort in self.cohorts), self.samples_left()
        return 0.0 if left is None or not done else done / (done + left.amount)

    def scale(self) -> tuple[float, float]:
        """The lowest and the highest value of all curves."""
        bounds = [cohort.curve.bounds for cohort in self.cohorts if cohort.average is not None]
        return min((low for low, _ in bounds), default=0.0), max((high for _, high in bounds), default=0.0)

    def rounds_left(self, session: Session) -> RoundsLeft:
        """The rounds until this cohort may stop, and until it must."""
        s = session
        return rounds_left(self._experiment, s.round, s.clock, s.cpu_seconds, s.cpu_budget, s.best_round)


def time_left(left: Expected | None) -> str:
    """A remaining real time, no more exact than it is known."""
    return "" if left is None else f"{'about' if left.sure else 'at least'} {duration(left.amount)} left"


def duration(seconds: float) -> str:
    """A duration in two digits."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            value = seconds / size
            return f"{value:.0f} {unit}" if value >= 10 or unit == "min" else f"{value:.1f} {unit}"
    return f"{max(seconds, 1):.0f} s"
