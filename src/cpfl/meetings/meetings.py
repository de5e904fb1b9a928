"""Holds meetings: merges the models of all cohorts, and writes the merged one before any cohort continues from it.

First the model (and what the rule remembers, and the state that all servers continue with), then their checksums in a
line of meetings.jsonl. After a kill a missing meeting is held again; cohorts that resume before one that is there
follow it.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cpfl.errors import CpflError, DamagedError
from cpfl.federation.optimizers import server_optimizer
from cpfl.federation.session import ClosedRound, Session
from cpfl.federation.stopping import ROUNDING
from cpfl.meetings.rules import Contribution, meeting_rule, weighted_mean
from cpfl.models import State
from cpfl.runs import files, records
from cpfl.runs.recorder import RunRecorder
from cpfl.task.task import Task

RULE, SERVER = "rule", "server"  # whose state it is, in the file of a meeting
DIVERGED = "the merged model has numbers that are not finite: lower federation.lr or the server's learning rate"


@dataclass(frozen=True)
class Meeting:
    """One line of meetings.jsonl."""

    meeting: int  # counted from 1
    clock: float  # virtual seconds
    cohorts: list[int]  # that continue from the merged model; the others had stopped before
    rounds: list[int]  # after which each of these waited
    samples: list[int]  # that each of all cohorts had trained on
    bytes: int  # between the cohort servers and the global one
    model: str  # the checksum of its file
    state: str = ""  # the checksum of the file of what the rule and the servers remember; empty: there is none


class Meetings:
    """The meetings of one run."""

    def __init__(self, task: Task, sessions: Sequence[Session], run: RunRecorder, device: torch.device) -> None:
        self._task, self._sessions, self._settings = task, sessions, task.experiment.meetings
        self._notify, self._folder, self._layout = run.callback.on_message, run.folder, task.layout()
        self._rule, self._buffers = meeting_rule(task, device), server_optimizer(task.experiment.federation).buffers
        self._path = run.folder.meetings()
        records.repair(self._path)
        try:
            self.done = [Meeting(**line) for line in records.read_sealed(self._path, run.folder.identity)]
        except TypeError:  # valid JSON of a foreign shape
            raise DamagedError(f"{self._path} is damaged: a line is not that of a meeting") from None
        for session in sessions:
            if session.phases > len(self.done):
                raise DamagedError(f"{self._path} is damaged: it lacks meetings of cohort {session.cohort}")
        self._models: dict[int, tuple[State, State]] = {}  # the newest meeting's, that files need not be read again
        self._warned = False

    def decide(self, waiting: Sequence[Session]) -> str:
        """Merge the models of all cohorts, and write the meeting; nothing stops anybody here."""
        number = len(self.done) + 1
        before = self.done[-1].samples if self.done else [0] * len(self._sessions)
        sizes = self._task.data.clients.training_sizes
        contributions = [
            Contribution(
                session.cohort,
                files.on_host(self._layout.sent(session.model)),
                int(sizes[np.asarray(session.clients)].sum()),
                session.samples - before[session.cohort],
            )
            for session in self._sessions
        ]
        last, remembered = self._model(number - 1) if self.done else (self._task.start, {})
        start, self._rule.state = self._layout.sent(last), _part(remembered, RULE)
        merged = self._rule.merge(contributions, files.on_host(start), number)
        if not all(torch.isfinite(value).all() for value in merged.values()):
            raise CpflError(DIVERGED)
        model = self._layout.received({name: merged[name] for name in start})
        state = _named(RULE, self._rule.state) | _named(SERVER, self._mean_server_state(waiting))
        due, clock = waiting[0].meeting_due, max(session.clock for session in self._sessions)
        facts = {"meeting": number}
        meeting = Meeting(
            meeting=number,
            clock=max(due, clock),
            cohorts=[session.cohort for session in waiting],
            rounds=[session.round for session in waiting],
            samples=[session.samples for session in self._sessions],
            bytes=self._traffic(waiting),
            model=self._folder.save(self._folder.meeting_model(number), model, facts),
            state=self._folder.save(self._state_path(number), state, facts) if state else "",
        )
        records.append(self._path, records.seal(self._path, asdict(meeting), self._folder.identity))
        files.sync(self._path)  # later rounds depend on it
        files.sync(self._path.parent)
        self.done.append(meeting)
        self._models = {number: (model, state)}
        clock_of = "" if self._folder.engine() == "flower" else "virtual "
        self._notify(f"meeting {number} at {meeting.clock / 3600:.2f} {clock_of}h")
        self._warn_if_late(due, clock)
        return ""

    def apply(self, session: Session, closed: ClosedRound) -> ClosedRound:
        """What the next meeting means for a cohort that waits: the same now as after any kill."""
        meeting = self.done[session.phases]
        model, state = self._model(meeting.meeting)
        server_state: dict[str, State] | None = None
        if self._settings.server_state == "reset":
            server_state = {}
        elif self._settings.server_state == "average":
            server_state = {name: _part(state, f"{SERVER}/{name}") for name in self._buffers}
        return session.meet(closed, meeting.clock, model, server_state)

    def _model(self, number: int) -> tuple[State, State]:
        """The merged model of a meeting, and what the rule and the servers remember."""
        if number not in self._models:
            meeting, folder = self.done[number - 1], self._folder
            stored, _ = folder.load(folder.meeting_model(number), meeting.model)
            state = folder.load(self._state_path(number), meeting.state)[0] if meeting.state else {}
            self._models = {number: ({name: stored[name] for name in self._task.start}, state)}
        return self._models[number]

    def _state_path(self, number: int) -> Path:
        return self._folder.model(f"meeting-{number:04d}-state")

    def _mean_server_state(self, waiting: Sequence[Session]) -> State:
        """What all cohorts' servers continue with, by buffer and parameter; empty: each keeps its own, or none."""
        if self._settings.server_state != "average":
            return {}
        found: dict[str, Tensor] = {}
        for buffer in self._buffers:
            own = [files.on_host(session.server_state[buffer]) for session in waiting]
            mean = weighted_mean(own, [1.0] * len(own))
            found |= _named(buffer, mean)
        return found

    def _traffic(self, waiting: Sequence[Session]) -> int:
        """Every cohort server sends its model and receives the merged one; one that has stopped since the last meeting
        sends its last model. The mean of the servers' state travels in the same way. It takes no time: servers are
        never the bottleneck."""
        here = {session.cohort for session in waiting}
        last = set(self.done[-1].cohorts) if self.done else set(range(len(self._sessions)))
        averaged = len(self._buffers) if self._settings.server_state == "average" else 0
        return self._task.model_bytes * (2 * len(here) * (1 + averaged) + len(last - here))

    def _warn_if_late(self, due: float, clock: float) -> None:
        """Say once that a round of a cohort is longer than the interval."""
        if math.isfinite(due) and clock > due + ROUNDING and not self._warned:
            self._warned = True
            slowest = max(self._sessions, key=lambda session: session.clock)
            self._notify(
                f"all waited until {clock / 3600:.2f} h for a round of cohort {slowest.cohort}, which is longer than "
                f"meetings.interval = {self._settings.interval}"
            )


def _named(prefix: str, tensors: State) -> State:
    return {f"{prefix}/{name}": value for name, value in tensors.items()}


def _part(tensors: State, prefix: str) -> State:
    """What was named so."""
    return {k.removeprefix(f"{prefix}/"): value for k, value in tensors.items() if k.startswith(f"{prefix}/")}
