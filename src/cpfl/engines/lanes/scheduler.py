"""Sessions on their way through the lanes until all have stopped.

When a lane's client has ended its local work, its model is added to its cohort's sum, and the lane takes the next
waiting client of any cohort. Cohorts that are behind come first, so that no lane is idle before the end. A cohort whose
round is complete gets its new model and begins its next round at once. The model's evaluation arrives a few steps
later; if the session stops then, the work that was begun is discarded. So the device never waits for the host.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from cpfl.engines.base import OnRound
from cpfl.engines.client_training import cannot_take
from cpfl.engines.lanes.batch_schedule import EMPTY, ClientRound, draw, lay_out
from cpfl.engines.lanes.evaluation import PendingEvaluation, Round
from cpfl.engines.lanes.step import Lanes
from cpfl.federation import local_training
from cpfl.federation.optimizers.base import client_weight
from cpfl.federation.session import Session

if TYPE_CHECKING:
    from cpfl.engines.lanes.engine import LaneEngine

QUIET_STEPS = 100  # steps with few clients after which the small lanes take over; making them takes seconds
AHEAD = {"cuda": 6, "cpu": 0}  # steps of the host ahead of the device; an evaluation is read so late: so runs repeat
Waiting = tuple[int, int, int, int, ClientRound]  # sorted by urgency, then in the order of the queue


class Scheduler:
    """The work of one call to `train_cohorts`."""

    def __init__(self, engine: LaneEngine, sessions: Sequence[Session], on_round: OnRound) -> None:
        buffers = self._buffers = engine.buffers
        self._engine, self._sessions, self._on_round = engine, sessions, on_round
        self._evaluator, self._schedules, self._server = engine.evaluator, engine.schedules, buffers.algorithm.server
        self._quiet = 0  # steps in a row that the small lanes could have done
        self._task, self._device = buffers.task, buffers.device
        self._settings, self._clients = self._task.experiment.federation, self._task.data.clients
        self._cohort_slot = {session.cohort: slot for slot, session in enumerate(sessions)}
        self._rounds: dict[int, Round] = {}  # the one in training, by cohort
        self._waiting: list[Waiting] = []  # a heap
        self._complete: list[Round] = []  # all clients have ended; to be evaluated
        self._order = itertools.count()
        self._pending: deque[tuple[int, PendingEvaluation]] = deque()  # each with the step of its start
        self._refusal = buffers.model.stats.refusal
        self._ahead = AHEAD.get(self._device.type, 0)
        self._marks: deque[torch.cuda.Event] = deque()
        self._sizes = self._clients.training_sizes.tolist()
        self._depth = int(local_training.all_steps(self._settings, self._clients.training_sizes).max())
        self._use(engine.large)
        for slot, session in enumerate(sessions):
            buffers.models_NP[slot] = buffers.layout.row(session.model, self._device)
            buffers.stats_NQ[slot] = buffers.model.stats.row(session.model, self._device)
        buffers.sums_NP.zero_()
        buffers.stats_sums_NQ.zero_()
        buffers.algorithm.load(sessions)
        if buffers.local is not None:
            buffers.local.load(sessions)

    def work(self) -> None:
        """Fill, step, collect and evaluate until nothing is left."""
        for session in self._sessions:
            self._open(session, session.round + 1)
        step, together = 0, self._evaluator.models
        while self._rounds or self._pending:
            self._fill()
            if self._in_lane:
                self._step()
                step += 1
                self._complete += self._collect()
                # Evaluating several models costs no more than one: they wait for others while lanes have other work.
                while len(self._complete) >= together or (self._complete and len(self._waiting) < self._lanes.count):
                    self._evaluate(step, self._complete[:together])
            while self._pending and (self._pending[0][0] + self._ahead <= step or not (self._in_lane or self._waiting)):
                self._close(self._pending.popleft()[1])

    def _open(self, session: Session, number: int) -> None:
        """Queue a round's clients: early rounds come first, and of those the longest."""
        client_rounds, following = self._work_of(session, number), self._work_of(session, number + 1)
        if not client_rounds:
            return
        algorithm, layout, request = self._buffers.algorithm, self._buffers.layout, None
        if algorithm.stale:  # such rounds are not known before they begin
            request = session.open_round()
            client_rounds = [replace(one, round=request.origin(one.client).round) for one in client_rounds]
        round = self._rounds[session.cohort] = Round(
            session,
            number,
            clients={one.client: one for one in client_rounds},
            cohort_slot=self._cohort_slot[session.cohort],
            slot=int(algorithm.slots[session.cohort]),
            following=following,
            request=request,
            missing=len(client_rounds),
        )
        for client, origin in request.origins.items() if request else ():
            round.starts[client] = layout.row(origin.model, self._device)
        longest_first = sorted(client_rounds, key=lambda one: -one.steps)
        self._schedules.request([*longest_first, *following])
        for one in longest_first:
            heapq.heappush(self._waiting, (number, -longest_first[0].steps, -one.steps, next(self._order), one))

    def _work_of(self, session: Session, number: int) -> list[ClientRound]:
        """The clients of a round, as far as they can be known."""
        participants = session.participants(number)
        partial = session.steps(number) if participants else {}
        client_rounds = []
        for k, client in enumerate(participants):
            samples = self._sizes[client]
            steps = partial.get(client) or local_training.steps(self._settings, samples)
            client_rounds.append(ClientRound(session.cohort, client, number, samples, steps, k))
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
        if not free:
            return
        entering, older = [], dict[int, torch.Tensor]()
        data, settings = self._task.data, self._settings
        shape = data.train.shape if data.augmented else None
        for lane in free:
            one = heapq.heappop(self._waiting)[-1]
            own, schedule = data.clients[one.client].training, self._schedules.take(one)
            if schedule is None:
                schedule = draw(settings, self._task.experiment.seed, shape, one.samples, one.client, one.round)
            if self._refusal and (schedule[0][: one.steps] != EMPTY).sum(1).min() == 1:
                raise cannot_take(1, one.client, self._refusal)
            first = self._depth - one.steps
            lay_out(own, schedule, one.steps, *(drawn[lane, first:] for drawn in self._drawn_LS.values()))
            self._in_lane[lane], self._left[lane] = one, one.steps
            round = self._rounds[one.cohort]
            entering.append((lane, round.cohort_slot, one.client, local_training.rate(settings, one.round), 0, 0))
            if one.client in round.starts:
                older[lane] = round.starts[one.client]
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
            round = self._rounds[one.cohort]
            weight = self._server.weight(one.samples, one.steps)
            share = client_weight(self._settings.weights, one.samples)
            ended.append((lane, round.cohort_slot, one.client, weight, share, round.slot + one.position))
            round.weight += weight
            round.share += share
            round.missing -= 1
            if round.missing == 0:
                complete.append(round)
        if ended:
            self._lanes.collect(ended)
        return complete

    def _evaluate(self, step: int, complete: list[Round]) -> None:
        """Have the new models made and evaluated, and begin the next rounds in the meantime."""
        self._pending.append((step, self._evaluator.start(complete)))
        del self._complete[: len(complete)]
        for round in complete:
            del self._rounds[round.session.cohort]
            self._open(round.session, round.number + 1)

    def _close(self, pending: PendingEvaluation) -> None:
        """Close the sessions' rounds; the work that one has begun is discarded if it stops."""
        for round, result in self._evaluator.results(pending):
            session = round.session
            self._on_round(session, session.close_round(result))
            if session.stopped:
                self._discard(session.cohort)
            elif session.cohort not in self._rounds and not any(
                other.session is session for _, later in self._pending for other in later.rounds
            ):
                self._open(session, session.round + 1)

    def _discard(self, cohort: int) -> None:
        """Forget what a cohort that has stopped had begun."""
        round = self._rounds.pop(cohort, None)
        if round is None:
            return
        self._complete = [other for other in self._complete if other is not round]
        dropped = [waiting[-1] for waiting in self._waiting if waiting[-1].cohort == cohort]
        for one in (*dropped, *round.following):
            self._schedules.forget(one)
        self._waiting = [waiting for waiting in self._waiting if waiting[-1].cohort != cohort]
        heapq.heapify(self._waiting)
        for lane in [lane for lane, one in self._in_lane.items() if one.cohort == cohort]:
            del self._in_lane[lane]
            self._left[lane] = 0
