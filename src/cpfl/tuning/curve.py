"""The curve of a trial: at regular virtual times all cohort models are evaluated together on validation samples.

Where cohorts meet, or their mean becomes the global model, the mean of their models is evaluated, else their ensemble.
A point is written to curve.jsonl in the run folder before anything is decided on it, and a trial that was killed
continues its curve: models of earlier moments are in its snapshots.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cpfl.callbacks import Callback
from cpfl.distillation.ensemble import Ensemble
from cpfl.distillation.evaluation import EnsembleAccuracy
from cpfl.errors import DamagedError
from cpfl.federation.messages import Cost
from cpfl.federation.session import ClosedRound, Session
from cpfl.federation.stopping import ROUNDING, client_evaluation_cost, server_evaluation_cost
from cpfl.meetings.final import merged
from cpfl.models import State
from cpfl.runs import files, records
from cpfl.runs.folder import RunFolder
from cpfl.runs.teachers import Teachers, latest_model
from cpfl.settings import Experiment
from cpfl.settings.types import interval
from cpfl.task.task import Task
from cpfl.tuning.goal import Curve, Goal, Point, behind

FILE = "curve.jsonl"
MARGIN = 2.0  # points by which a trial is behind
FEWEST = 6  # points before a trial may be stopped early
BEHIND = 4  # points that must all be behind
END, BEHIND_ALL, OVER, REACHED, DEARER = "end", "behind", "over a limit", "reached", "dearer"
PRUNED = (BEHIND_ALL, DEARER)


class MergedAccuracy(EnsembleAccuracy):
    """The same for the mean of the cohort models: clients receive and evaluate one model."""

    def __init__(self, task: Task, device: torch.device) -> None:
        super().__init__(task, task.experiment.distillation, device)
        self._all = Ensemble(task, [0], task.experiment.distillation, self._precision)

    def evaluate(self, teachers: Sequence[State]) -> tuple[float, float | None]:
        """The mean of these models."""
        numbers = list(range(len(teachers)))
        chosen = Teachers(numbers, list(teachers), hours=0.0, untrained=False, costs={}, accounts=[])
        mean = merged(self._task, chosen)
        return super().evaluate([teachers[0] if mean is None else mean])

    def cost(self, waiting: Sequence[int] = ()) -> Cost:
        """One model to every client that evaluates; before, all cohort models to the global server."""
        task, clients, n = self._task, self._clients, len(self._task.cohorts)
        samples = task.data.clients.validation_sizes[clients]
        sent = np.full(len(clients), task.model_bytes, np.int64)
        to_global = server_evaluation_cost(n * task.model_bytes if n > 1 else 0)
        return client_evaluation_cost(task.fleet, clients, samples, 1, sent) + to_global


def merges(experiment: Experiment) -> bool:
    """Whether the curve is that of the mean of the cohort models."""
    return experiment.merges or experiment.meets


def evaluator(task: Task, device: torch.device) -> EnsembleAccuracy:
    """What evaluates the cohort models of a task together."""
    if merges(task.experiment):
        return MergedAccuracy(task, device)
    return EnsembleAccuracy(task, task.experiment.distillation, device)


@dataclass(frozen=True)
class _Reached:
    """A cohort after a round, or after a meeting: its model, and what it has cost."""

    clock: float
    round: int
    model: State
    cpu_seconds: float
    bytes: float


class CurveFollower(Callback):
    """Evaluates one trial as it trains, and ends it when it cannot win any more."""

    def __init__(self, goal: Goal, others: Sequence[Curve] = (), prune: bool = True) -> None:
        """`others` are curves of trials that have ended: who is behind them everywhere is stopped early."""
        self._goal, self._others, self._prune = goal, others, prune
        self._stop = ""

    def on_task(self, task: Task, folder: RunFolder, device: torch.device) -> None:
        self._task, self._folder, self._path = task, folder, folder.path / FILE
        self._evaluator = evaluator(task, device)
        self._interval = interval(task.experiment.snapshots)[1]
        records.repair(self._path)
        self.curve, self._stop = read_curve(folder.path)
        self._next = len(self.curve) + 1  # the moment that is evaluated next, counted from 1

    def on_start(self, sessions: Sequence[Session]) -> None:
        """Find the models of moments that a resumed run has passed already."""
        self._sessions = sessions
        self._now = [_reached(session) for session in sessions]
        self._at: list[dict[int, _Reached]] = [{} for _ in sessions]  # by moment
        for session in sessions:
            if session.round:
                self._recall(session)
        self._evaluate_all()

    def on_round(self, session: Session, closed: ClosedRound) -> bool:
        """Keep the model that the cohort had until now for the moments that have passed; evaluate what can be."""
        number = session.cohort
        before, now = self._now[number], _reached(session)
        for moment in self._passed(before.clock, now.clock):
            waits = (
                closed.record.clock <= moment * self._interval + ROUNDING
            )  # for a meeting: it ended its round before
            self._at[number][moment] = _waiting(session, closed) if waits else before
        self._now[number] = now
        self._evaluate_all()
        return bool(self._stop)

    def _passed(self, before: float, now: float) -> range:
        """The moments that lie behind a clock and not behind an earlier one; one that is reached exactly does not."""
        first, last = (math.ceil((clock - ROUNDING) / self._interval) for clock in (before, now))
        return range(max(first, self._next, 1), last)

    def _recall(self, session: Session) -> None:
        """The cohort's models at moments before the checkpoint that it continues from."""
        folder, cohort = self._folder, session.cohort
        lines = records.read(folder.rounds(cohort))
        meetings = records.read_sealed(folder.meetings(), folder.identity)
        for moment in self._passed(0.0, session.clock):
            clock = moment * self._interval
            done = [line for line in lines if line["clock"] <= clock + ROUNDING]
            stored, _ = folder.load(latest_model(folder, cohort, lines, meetings, clock))
            model = {name: stored[name] for name in self._task.for_cohort(cohort).start}
            spent = math.fsum(line["cpu_seconds"] for line in done)
            last: dict[str, Any] = done[-1] if done else {"clock": 0.0, "round": 0}
            sent = sum(line["bytes"] for line in done)
            self._at[cohort][moment] = _Reached(last["clock"], last["round"], model, spent, sent)

    def _evaluate_all(self) -> None:
        """Every moment that all cohorts have passed, and the end."""
        ended = [bool(session.stopped) for session in self._sessions]
        while not self._stop and all(self._next in at or end for at, end in zip(self._at, ended, strict=True)):
            models = [at.pop(self._next, now) for at, now in zip(self._at, self._now, strict=True)]
            clock = self._next * self._interval
            if all(ended) and all(now.clock <= clock + ROUNDING for now in self._now):  # nothing changes any more
                clock = max(now.clock for now in self._now)
                self._stop = END
            if any(model.round for model in models):
                self._evaluate(models, clock)
            self._next += 1
            if self._stop:
                records.append(self._path, {"stop": self._stop})
                files.sync(self._path)

    def _evaluate(self, models: Sequence[_Reached], clock: float) -> None:
        """A point of the curve, and what it means for the trial."""
        cost = self._evaluator.cost()
        accuracy, _ = self._evaluator.evaluate([model.model for model in models])
        meetings = records.read_sealed(self._folder.meetings(), self._folder.identity)
        met = sum(meeting["bytes"] for meeting in meetings if meeting["clock"] <= clock + ROUNDING)
        point = Point(
            hours=(clock + cost.seconds) / 3600,
            cpu_hours=(math.fsum(model.cpu_seconds for model in models) + cost.cpu_seconds) / 3600,
            traffic_gb=(sum(model.bytes for model in models) + met + cost.bytes) / 1e9,
            accuracy=accuracy,
            rounds=sum(model.round for model in models),
            moment=clock / 3600,
        )
        self.curve = [*self.curve, point]
        records.append(self._path, asdict(point))
        files.sync(self._path)
        self._stop = self._stop or self._decide(point)

    def _decide(self, point: Point) -> str:
        """Why the trial ends with this point; empty: it continues."""
        goal = self._goal
        if goal.minimise and goal.best(self.curve) is not None:
            return REACHED
        if not goal.allows(point):
            return OVER  # costs only grow
        if not self._prune or len(self.curve) < FEWEST:
            return ""
        if goal.minimise:
            reached = [goal.cost(best) for other in self._others if (best := goal.best(other)) is not None]
            if reached and goal.cost(point) > min(reached):
                return DEARER
        return BEHIND_ALL if behind(self.curve, self._others, MARGIN, BEHIND) else ""


def read_curve(path: Path) -> tuple[list[Point], str]:
    """The curve in a run folder, and why it ended; empty: it has not."""
    lines = records.read(path / FILE)
    stop = str(lines.pop()["stop"]) if lines and "stop" in lines[-1] else ""
    try:
        return [Point(**line) for line in lines], stop
    except TypeError:  # valid JSON of a foreign shape
        raise DamagedError(f"{path / FILE} is damaged: a line is not a point of a curve") from None


def _waiting(session: Session, closed: ClosedRound) -> _Reached:
    """A cohort that has ended a round and not met the others yet; its model then is the round's newest snapshot."""
    model = next(one.model for one in reversed(closed.snapshots) if one.round == session.round)
    return _Reached(closed.record.clock, session.round, model, session.cpu_seconds, _in_rounds(session))


def _reached(session: Session) -> _Reached:
    return _Reached(session.clock, session.round, session.teacher(), session.cpu_seconds, _in_rounds(session))


def _in_rounds(session: Session) -> float:
    """Bytes of its rounds, without those of its meetings, which meetings.jsonl has."""
    return session.bytes - session.phases * session.meeting_bytes
