"""Sessions of one run or several on their way through the lanes until a run has nothing left to train.

When a lane's client has ended its local work, its model is added to its cohort's sum, and the lane takes the next
waiting client of any cohort of any run. Cohorts that are behind come first, so that no lane is idle before the end. A
cohort whose round is complete gets its new model and begins its next round at once. The model's evaluation arrives a
few steps later; if the session stops or waits then, what was begun is discarded. The device never waits for the host.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from cpfl.engines.base import OnRound
from cpfl.engines.client_training import cannot_take
from cpfl.engines.lanes.batch_schedule import EMPTY, ClientRound, lay_out
from cpfl.engines.lanes.evaluation import Evaluator, PendingEvaluation, Round
from cpfl.engines.lanes.member import Member
from cpfl.engines.lanes.step import Lanes
from cpfl.federation import local_training
from cpfl.federation.optimizers.base import client_weight
from cpfl.federation.session import Session

if TYPE_CHECKING:
    from cpfl.engines.lanes.engine import LaneEngine

QUIET_STEPS = 100  # steps with few clients after which the small lanes take over; making them takes seconds
AHEAD = {"cuda": 6, "cpu": 0}  # steps of the host ahead of the device; an evaluation is read so late: so runs repeat
Waiting = tuple[int, int, int, int, ClientRound]  # sorted by urgency, then in the order of the queue
Cohort = tuple[int, int]
"""A cohort of a run: the run's number, and the cohort's."""


@dataclass
class Training:
    """What one call of `train_cohorts` asked for."""

    member: Member
    evaluator: Evaluator
    sessions: Sequence[Session]
    on_round: OnRound
    lead: int  # of its rounds in the queue: who comes later does not overtake the others
    error: Exception | None = None


class Scheduler:
    """Continuous batching of what is added to it."""

    def __init__(self, engine: LaneEngine) -> None:
        buffers = self._buffers = engine.buffers
        self._engine, self._schedules = engine, engine.schedules
        self._quiet = 0  # steps in a row that the small lanes could have done
        self._step_number = 0
        self._device = buffers.device
        self._runs: dict[int, Training] = {}  # by member
        self._rounds: dict[Cohort, Round] = {}  # the one in training
        self._waiting: list[Waiting] = []  # a heap
        self._complete: list[Round] = []  # all clients have ended; to be evaluated
        self._order = itertools.count()
        self._pending: deque[tuple[int, Evaluator, PendingEvaluation]] = deque()  # each with the step of its start
        self._refusal = buffers.model.stats.refusal
        self._ahead = AHEAD.get(self._device.type, 0)
        self._marks: deque[torch.cuda.Event] = deque()
        self._depth = 0  # the most steps of a client in a round
        self._may_be_done = False  # a run, since it was last looked for
        self._use(engine.large)

    def add(self, member: Member, sessions: Sequence[Session], on_round: OnRound) -> Training:
        """Have these sessions of a run trained, beside those that are there."""
        if member.depth > self._depth:
            self._deepen(member.depth)
        self._buffers.load(member, sessions)
        first = min((self._urgency(*key) for key in self._rounds), default=0)
        lead = first - min((session.round + 1 for session in sessions), default=0)
        evaluator = self._engine.evaluator(member)
        training = self._runs[member.number] = Training(member, evaluator, sessions, on_round, lead)
        for session in sessions:
            self._open(training, session, session.round + 1)
        self._may_be_done = True
        return training

    def work(self, steps: float = math.inf) -> list[Training]:
        """Fill, step, collect and evaluate until at least one run is done, or for so many steps.

        Returns the runs that are done; they leave.
        """
        last = self._step_number + steps
        while self._runs:
            if self._may_be_done and (done := self._done()):
                return done
            if self._step_number >= last:
                break
            self._fill()
            if self._in_lane:
                self._step()
                self._step_number += 1
                self._complete += self._collect()
                while together := self._ready():
                    self._evaluate(together)
            while self._pending and (
                self._pending[0][0] + self._ahead <= self._step_number or not (self._in_lane or self._waiting)
            ):
                self._close(*self._pending.popleft()[1:])
        return []

    def _done(self) -> list[Training]:
        """The runs of which nothing is in training or evaluation; they leave."""
        self._may_be_done = False
        busy = {run for run, _ in self._rounds}
        for *_, pending in self._pending:
            busy |= {round.member.number for round in pending.rounds if not (round.dropped or round.session.idle)}
        return [self._runs.pop(run) for run in self._runs.keys() - busy]

    def _urgency(self, run: int, cohort: int) -> int:
        """What a cohort's round in training is worth in the queue."""
        return self._runs[run].lead + self._rounds[run, cohort].number

    def _open(self, training: Training, session: Session, number: int) -> None:
        """Begin a round, if there is one to begin."""
        try:
            self._queue(training, session, number)
        except Exception as error:  # a user's rule can fail in any way
            self._fail(training, error)

    def _queue(self, training: Training, session: Session, number: int) -> None:
        """Queue a round's clients: early rounds come first, and of those the longest."""
        member = training.member
        client_rounds = self._work_of(member, session, number)
        following = self._work_of(member, session, number + 1)
        if not client_rounds:
            return
        algorithm, layout, request = self._buffers.algorithm, self._buffers.layout, None
        if algorithm.stale:  # such rounds are not known before they begin
            request = session.open_round()
            client_rounds = [replace(one, round=request.origin(one.client).round) for one in client_rounds]
        round = self._rounds[member.number, session.cohort] = Round(
            member,
            session,
            number,
            clients={one.client: one for one in client_rounds},
            cohort_slot=member.cohort_row(session),
            slot=member.model_row(session),
            following=following,
            request=request,
            missing=len(client_rounds),
        )
        for client, origin in request.origins.items() if request else ():
            round.starts[client] = layout.row(origin.model, self._device)
        longest_first = sorted(client_rounds, key=lambda one: -one.steps)
        self._schedules.request([*longest_first, *following])
        urgency = training.lead + number, -longest_first[0].steps
        for one in longest_first:
            heapq.heappush(self._waiting, (*urgency, -one.steps, next(self._order), one))

    def _work_of(self, member: Member, session: Session, number: int) -> list[ClientRound]:
        """The clients of a round, as far as they can be known."""
        participants = session.participants(number)
        partial = session.steps(number) if participants else {}
        client_rounds = []
        for k, client in enumerate(participants):
            samples = member.sizes[client]
            steps = partial.get(client) or local_training.steps(member.settings, samples)
            client_rounds.append(ClientRound(session.cohort, client, number, samples, steps, k, member.number))
        return client_rounds

    def _use(self, lanes: Lanes) -> None:
        """Work with these lanes from now on; all are idle."""
        count, self._lanes = lanes.count, lanes
        self._in_lane: dict[int, ClientRound] = {}  # in training, by lane
        self._left = np.zeros(count, np.int64)  # steps to do, by lane
        self._every = np.arange(count)
        self._drawn_LS = {  # batch schedules, each of which ends in row S - 1; row S stays empty for idle lanes
            name: np.zeros((count, self._depth + 1, *array.shape[1:]), array.dtype)
            for name, array in lanes.batches.host.items()
        }
        self._drawn_LS["rows"][:] = EMPTY

    def _deepen(self, depth: int) -> None:
        """Make room for longer batch schedules."""
        more = depth - self._depth
        for name, drawn in self._drawn_LS.items():
            wider = np.zeros((len(drawn), depth + 1, *drawn.shape[2:]), drawn.dtype)
            wider[:, more:] = drawn
            self._drawn_LS[name] = wider
        self._drawn_LS["rows"][:, :more] = EMPTY
        self._depth = depth

    def _fill(self) -> None:
        """Free lanes take the next clients; few clients move to the small lanes."""
        small = self._engine.small_count
        few = small > 0 and len(self._in_lane) + len(self._waiting) <= small
        self._quiet = self._quiet + 1 if few else 0
        if self._lanes is self._engine.large and self._quiet > QUIET_STEPS:
            if lanes := self._engine.small_lanes():  # else there is no memory for them
                self._move(lanes)
        elif self._lanes is not self._engine.large and not few:
            self._move(self._engine.large)
        free = np.flatnonzero(self._left == 0)[: len(self._waiting)].tolist()
        entering, older = [], dict[int, torch.Tensor]()
        for lane in free:
            if not self._waiting:  # a run that failed took its clients along
                break
            one = heapq.heappop(self._waiting)[-1]
            round = self._rounds[one.run, one.cohort]
            member = round.member
            schedule = self._schedules.take(one) or member.source.draw(one)
            if self._refusal and (schedule[0][: one.steps] != EMPTY).sum(1).min() == 1:
                self._fail(self._runs[one.run], cannot_take(1, one.client, self._refusal))
                continue
            first = self._depth - one.steps
            own = member.clients[one.client].training
            lay_out(own, schedule, one.steps, *(drawn[lane, first:] for drawn in self._drawn_LS.values()))
            self._in_lane[lane], self._left[lane] = one, one.steps
            rate = local_training.rate(member.settings, one.round)
            entering.append((lane, round.cohort_slot, member.client_row(one.client), rate, 0, 0))
            if one.client in round.starts:
                older[lane] = round.starts[one.client]
        if entering:
            self._lanes.fill(entering, older)

    def _move(self, wanted: Lanes) -> None:
        """Carry the clients in training over to the other lanes."""
        before, busy = self._lanes, np.flatnonzero(self._left)
        count, in_lane = len(busy), [self._in_lane[lane] for lane in busy.tolist()]
        arrays = (self._left, *self._drawn_LS.values())
        self._use(wanted)
        self._in_lane = dict(enumerate(in_lane))
        for new, old in zip((self._left, *self._drawn_LS.values()), arrays, strict=True):
            new[:count] = old[busy]
        source = torch.from_numpy(busy).to(self._device)
        for ours, theirs in zip(wanted.states(), before.states(), strict=True):
            ours[:count] = theirs[source]

    def _step(self) -> None:
        for name, staged in self._lanes.batches.host.items():
            staged[:] = self._drawn_LS[name][self._every, self._depth - self._left]
        self._lanes.batches.send()
        self._lanes.step()
        if self._device.type == "cuda":
            mark = torch.cuda.Event()  # type: ignore[no-untyped-call]
            mark.record()
            self._marks.append(mark)
            if len(self._marks) > self._ahead:
                self._marks.popleft().synchronize()

    def _collect(self) -> list[Round]:
        """Add the models of clients that have ended to their cohorts' sums; the rounds that this completes."""
        last = np.flatnonzero(self._left == 1).tolist()
        self._left[self._left > 0] -= 1
        ended, complete = [], []
        for lane in last:
            one = self._in_lane.pop(lane)
            round = self._rounds[one.run, one.cohort]
            member = round.member
            weight = member.server.weight(one.samples, one.steps)
            share = client_weight(member.settings.weights, one.samples)
            client = member.client_row(one.client)
            ended.append((lane, round.cohort_slot, client, weight, share, round.slot + one.position))
            round.weight += weight
            round.share += share
            round.missing -= 1
            if round.missing == 0:
                complete.append(round)
        if ended:
            self._lanes.collect(ended)
        return complete

    def _ready(self) -> list[Round]:
        """Complete rounds to evaluate now, all by one evaluator.

        Evaluating several models costs no more than one: they wait for others while lanes have other work.
        """
        if not self._complete:
            return []
        evaluator = self._runs[self._complete[0].member.number].evaluator
        alike = [round for round in self._complete if self._runs[round.member.number].evaluator is evaluator]
        ready = len(alike) >= evaluator.models or len(self._waiting) < self._lanes.count
        return alike[: evaluator.models] if ready else []

    def _evaluate(self, complete: list[Round]) -> None:
        """Have the new models made and evaluated, and begin the next rounds in the meantime."""
        evaluator = self._runs[complete[0].member.number].evaluator
        self._pending.append((self._step_number, evaluator, evaluator.start(complete)))
        self._complete = [round for round in self._complete if not any(round is other for other in complete)]
        for round in complete:
            del self._rounds[round.member.number, round.session.cohort]
            self._open(self._runs[round.member.number], round.session, round.number + 1)

    def _close(self, evaluator: Evaluator, pending: PendingEvaluation) -> None:
        """Close the sessions' rounds; the work that one has begun is discarded if it stops or waits."""
        self._may_be_done = True
        for round, result in evaluator.results(pending):
            session, training = round.session, self._runs[round.member.number]
            if training.error is not None:
                continue
            if isinstance(result, Exception):
                self._fail(training, result)
                continue
            try:
                training.on_round(session, session.close_round(result))
            except Exception as error:  # whatever it is, other runs continue
                self._fail(training, error)
                continue
            if session.idle:
                self._discard(round.member.number, session.cohort)
            elif (round.member.number, session.cohort) not in self._rounds and not any(
                other.session is session for *_, later in self._pending for other in later.rounds
            ):
                self._open(training, session, session.round + 1)

    def _fail(self, training: Training, error: Exception) -> None:
        """End a run: nothing of it is left."""
        training.error, self._may_be_done = error, True
        for session in training.sessions:
            self._discard(training.member.number, session.cohort)
        for *_, pending in self._pending:
            for round in pending.rounds:
                round.dropped |= round.member is training.member

    def _discard(self, run: int, cohort: int) -> None:
        """Forget what a cohort had begun that has stopped or waits."""
        for *_, pending in self._pending:
            for other in pending.rounds:
                other.dropped |= (other.member.number, other.session.cohort) == (run, cohort)
        round = self._rounds.pop((run, cohort), None)
        if round is None:
            return
        self._complete = [other for other in self._complete if other is not round]

        def is_its(one: ClientRound) -> bool:
            return (one.run, one.cohort) == (run, cohort)

        dropped = [waiting[-1] for waiting in self._waiting if is_its(waiting[-1])]
        for one in (*dropped, *round.following):
            self._schedules.forget(one)
        self._waiting = [waiting for waiting in self._waiting if not is_its(waiting[-1])]
        heapq.heapify(self._waiting)
        for lane in [lane for lane, one in self._in_lane.items() if is_its(one)]:
            del self._in_lane[lane]
            self._left[lane] = 0
