"""Holds meetings: merges the models of all cohorts, and writes the merged one before any cohort continues from it.

First the model (and what the rule remembers, and the state that all servers continue with), then their checksums in a
line of meetings.jsonl. After a kill a missing meeting is held again; cohorts that resume before one that is there
follow it.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cpfl.errors import CpflError, DamagedError
from cpfl.federation.optimizers import server_optimizer
from cpfl.federation.session import ClosedRound, Session
from cpfl.federation.stopping import ROUNDING, Share
from cpfl.meetings.rules import Contribution, meeting_rule, weighted_mean
from cpfl.models import State
from cpfl.randomness import stream
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
    cohorts: list[int]  # that continue from the merged model; the others had stopped before, or come at another time
    rounds: list[int]  # after which each of these waited
    samples: list[int]  # that each of all cohorts had trained on; if they come one by one, each of `cohorts`
    bytes: int  # between the cohort servers and the global one
    model: str  # the checksum of its file; empty: every cohort trains a model of its own
    state: str = ""  # the checksum of the file of what the rule and the servers remember; empty: there is none
    clients: list[list[int]] = field(default_factory=list)  # with whom each of `cohorts` continues (meetings.redraw)
    models: dict[str, str] = field(default_factory=dict)  # checksums of own models, by cohort (model.by_cohort)


class Merged(NamedTuple):
    """What cohorts continue from."""

    model: State  # empty: every cohort trains a model of its own
    own: dict[int, State]  # of cohorts that do
    remembered: State  # by the rule, and the servers


class Meetings:
    """The meetings of one run."""

    def __init__(self, task: Task, sessions: Sequence[Session], run: RunRecorder, device: torch.device) -> None:
        self._task, self._sessions, self._settings = task, sessions, task.experiment.meetings
        self._callback, self._folder = run.callback, run.folder
        self._rule, self._buffers = meeting_rule(task, device), server_optimizer(task.experiment.federation).buffers
        self._path = run.folder.meetings()
        records.repair(self._path)
        try:
            self.done = [Meeting(**line) for line in records.read_sealed(self._path, run.folder.identity)]
        except TypeError:  # valid JSON of a foreign shape
            raise DamagedError(f"{self._path} is damaged: a line is not that of a meeting") from None
        for session in sessions:
            if session.phases > len(self.done) + (session.stopped == "joint"):  # which stops without a meeting
                raise DamagedError(f"{self._path} is damaged: it lacks meetings of cohort {session.cohort}")
        self._kept: dict[int, Merged] = {}  # of the newest meeting, that files need not be read again
        self._warned = False

    def following(self, session: Session) -> Meeting | None:
        """The meeting that a cohort which waits is to follow, if it was held."""
        return self.done[session.phases] if session.phases < len(self.done) else None

    def decided(self, session: Session) -> bool:
        """Whether the meeting that this cohort waits for was held."""
        return self.following(session) is not None

    def decide(self, waiting: Sequence[Session]) -> str:
        """Hold a meeting; nothing stops anybody here."""
        self.hold(waiting, self.merge(), self.moment(waiting))
        return ""

    def moment(self, waiting: Sequence[Session]) -> float:
        """When the next meeting is, in virtual seconds: when it is due, or when the last cohort has come."""
        return max(waiting[0].meeting_due, *(session.clock for session in self._sessions))

    def merge(self) -> Merged:
        """What the rule makes of the models of all cohorts."""
        before = self.done[-1].samples if self.done else [0] * len(self._sessions)
        contributions = [
            self._contribution(one, one.samples - then) for one, then in zip(self._sessions, before, strict=True)
        ]
        return self._merged(contributions)

    def _contribution(self, session: Session, work: int, began: State | None = None, missed: int = 0) -> Contribution:
        sent = files.on_host(self._task.layout(session.cohort).sent(session.model))
        return Contribution(session.cohort, sent, self._task.samples_of(session.clients), work, began or {}, missed)

    def _merged(self, contributions: Sequence[Contribution]) -> Merged:
        task, number = self._task, len(self.done) + 1
        last = self.held(number - 1)
        self._rule.state = _part(last.remembered, RULE)
        if task.cohort_models:
            found = self._rule.merge_differing(contributions, number)
        else:
            start = files.on_host(task.layout().sent(last.model))
            found = dict.fromkeys(range(len(task.cohorts)), self._rule.merge(contributions, start, number))
        if not all(torch.isfinite(value).all() for state in found.values() for value in state.values()):
            raise CpflError(DIVERGED)
        common = [cohort for cohort in found if cohort not in task.cohort_models][:1]
        whole = {cohort: self._whole(cohort, found[cohort]) for cohort in (*common, *task.cohort_models)}
        own = {cohort: state for cohort, state in whole.items() if cohort in task.cohort_models}
        return Merged(whole[common[0]] if common else {}, own, self._rule.state)

    def _whole(self, cohort: int, merged: State) -> State:
        layout, start = self._task.layout(cohort), self._task.for_cohort(cohort).start
        return layout.received({name: merged[name] for name in layout.sent(start)})

    def hold(self, waiting: Sequence[Session], merged: Merged, clock: float) -> None:
        """Write a meeting with these models, from which the cohorts that wait continue at `clock`."""
        number, folder = len(self.done) + 1, self._folder
        state = _named(RULE, merged.remembered) | _named(SERVER, self._mean_server_state(waiting))
        facts = {"meeting": number}
        meeting = Meeting(
            meeting=number,
            clock=clock,
            cohorts=[session.cohort for session in waiting],
            rounds=[session.round for session in waiting],
            samples=self._samples(waiting),
            bytes=self._traffic(waiting),
            clients=self._drawn(number, waiting) if self._settings.redraw else [],
            model=folder.save(folder.meeting_model(number), merged.model, facts) if merged.model else "",
            state=folder.save(self._state_path(number), state, facts) if state else "",
            models={str(i): folder.save(folder.meeting_model(number, i), own, facts) for i, own in merged.own.items()},
        )
        records.append(self._path, records.seal(self._path, asdict(meeting), folder.identity))
        files.sync(self._path)  # later rounds depend on it
        files.sync(self._path.parent)
        self.done.append(meeting)
        self._kept = {number: merged._replace(remembered=state)}
        self._tell(meeting, waiting)

    def apply(self, session: Session, closed: ClosedRound, share: Share | None = None) -> ClosedRound:
        """What the next meeting means for a cohort that waits: the same now as after any kill."""
        meeting = self.following(session)
        assert meeting is not None, "it was held"
        merged = self.held(meeting.meeting)
        server_state: dict[str, State] | None = None
        if self._settings.server_state == "reset":
            server_state = {}
        elif self._settings.server_state == "average":
            server_state = {name: _part(merged.remembered, f"{SERVER}/{name}") for name in self._buffers}
        model = merged.own.get(session.cohort, merged.model)
        clients = dict(zip(meeting.cohorts, meeting.clients, strict=False)).get(session.cohort)
        return session.meet(closed, meeting.meeting, meeting.clock, model, server_state, share, clients)

    def held(self, number: int) -> Merged:
        """What cohorts continued from after a meeting, and what the rule and the servers remember; 0: the start."""
        if number not in self._kept:
            self._kept = {number: self._read(number)}
        return self._kept[number]

    def _read(self, number: int) -> Merged:
        task, folder = self._task, self._folder
        if not number:
            return Merged(task.start, {cohort: own.start for cohort, own in task.cohort_models.items()}, {})
        if number in self._kept:
            return self._kept[number]
        meeting = self.done[number - 1]
        state = folder.load(self._state_path(number), meeting.state)[0] if meeting.state else {}
        model = self._load(folder.meeting_model(number), meeting.model, task.start) if meeting.model else {}
        own = {
            int(i): self._load(folder.meeting_model(number, int(i)), checksum, task.for_cohort(int(i)).start)
            for i, checksum in meeting.models.items()
        }
        return Merged(model, own, state)

    def _load(self, path: Path, checksum: str, start: State) -> State:
        stored, _ = self._folder.load(path, checksum)
        return {name: stored[name] for name in start}

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

    def _drawn(self, number: int, waiting: Sequence[Session]) -> list[list[int]]:
        """The clients of the cohorts that continue, dealt out anew; each cohort keeps its size."""
        pool = np.sort(np.concatenate([np.asarray(session.clients) for session in waiting]))
        dealt = stream(self._task.experiment.seed, "redraw", number).permutation(pool)
        ends = np.cumsum([len(session.clients) for session in waiting])[:-1]
        return [np.sort(part).tolist() for part in np.split(dealt, ends)]

    def _samples(self, waiting: Sequence[Session]) -> list[int]:
        return [session.samples for session in self._sessions]

    def _traffic(self, waiting: Sequence[Session]) -> int:
        """Every cohort server sends its model and receives the merged one; one that has stopped since the last meeting
        sends its last model. The mean of the servers' state travels in the same way. It takes no time: servers are
        never the bottleneck."""
        here = {session.cohort for session in waiting}
        last = set(self.done[-1].cohorts) if self.done else set(range(len(self._sessions)))
        left = sum(self._task.for_cohort(cohort).model_bytes for cohort in last - here)
        return left + sum(session.meeting_bytes for session in waiting)

    def _tell(self, meeting: Meeting, waiting: Sequence[Session]) -> None:
        """Let callbacks know; say once that a round of a cohort is longer than the interval."""
        self._callback.on_meeting(asdict(meeting))
        if not self._rule.together:  # there are many
            return
        hours = "h" if self._folder.engine() == "flower" else "virtual h"
        self._callback.on_message(f"meeting {meeting.meeting} at {meeting.clock / 3600:.2f} {hours}")
        due, slowest = waiting[0].meeting_due, max(self._sessions, key=lambda session: session.clock)
        if math.isfinite(due) and slowest.clock > due + ROUNDING and not self._warned:
            self._warned = True
            self._callback.on_message(
                f"all waited until {slowest.clock / 3600:.2f} h for a round of cohort {slowest.cohort}, which is "
                f"longer than meetings.interval = {self._settings.interval}"
            )


def _named(prefix: str, tensors: State) -> State:
    return {f"{prefix}/{name}": value for name, value in tensors.items()}


def _part(tensors: State, prefix: str) -> State:
    """What was named so."""
    return {k.removeprefix(f"{prefix}/"): value for k, value in tensors.items() if k.startswith(f"{prefix}/")}
