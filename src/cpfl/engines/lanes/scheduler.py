"""Sessions on their way through the lanes until all have stopped.

When a lane's client has ended its local work, its model is added to its cohort's sum, and the lane takes the next
waiting client of any cohort. Cohorts that are behind come first, so that no lane is idle before the end. A cohort whose
round is complete gets its new model and begins its next round at once. The model's evaluation arrives a few steps
later; if the session stops then, the work that was begun is discarded. So the device never waits for the host.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from cpfl.engines.base import OnRound
from cpfl.engines.lanes.batch_schedule import EMPTY, ClientRound, draw, lay_out
from cpfl.engines.lanes.evaluation import PendingEvaluation, Round, StaleUpdates
from cpfl.engines.lanes.step import Lanes
from cpfl.errors import DivergedError
from cpfl.federation import local_training
from cpfl.federation.session import ClientResult, RoundResult, Session

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
        self._queued = 0
        self._pending: deque[tuple[int, list[Round], PendingEvaluation]] = deque()
        self._ahead = AHEAD.get(self._device.type, 0)
        self._marks: deque[torch.cuda.Event] = deque()
        self._sizes = self._clients.training_sizes.tolist()
        self._depth = int(local_training.all_steps(self._settings, self._clients.training_sizes).max())
        self._use(engine.large)
        for slot, session in enumerate(sessions):
            buffers.models_NP[slot] = buffers.layout.row(session.model, self._device)
        buffers.sums_NP.zero_()
        buffers.algorithm.load(sessions)

    def work(self) -> None:
        """Fill, step, collect and evaluate until nothing is left."""
        for session in self._sessions:
            self._open(session, session.round + 1)
        step, together = 0, self._evaluator.models
        while self._rounds or self._pending:
            self._fill()
            if self._left.any():
                self._step()
                step += 1
                self._complete += self._collect()
                # Evaluating several models costs no more than one: they wait for others while lanes have other work.
                while len(self._complete) >= together or (self._complete and len(self._waiting) < self._lanes.count):
                    self._evaluate(step, self._complete[:together])
            while self._pending and (
                self._pending[0][0] + self._ahead <= step or not (self._left.any() or self._waiting)
            ):
                _, rounds, pending = self._pending.popleft()
                self._close(rounds, pending)

    def _open(self, session: Session, number: int) -> None:
        """Queue a round's clients: early rounds come first, and of those the longest."""
        client_rounds, following, stale = self._work_of(session, number), self._work_of(session, number + 1), None
        if not client_rounds:
            return
        algorithm, layout = self._buffers.algorithm, self._buffers.layout
        if algorithm.stale:  # such rounds are not known before they begin
            request = session.open_round()
            starts = {client: layout.row(origin.model, self._device) for client, origin in request.origins.items()}
            stale = StaleUpdates(request, starts)
            client_rounds = [replace(one, round=request.origin(one.client).round) for one in client_rounds]
        clients = {one.client: one for one in client_rounds}
        slots = self._cohort_slot[session.cohort], int(algorithm.slots[session.cohort])
        sizes = [self._sizes[client] for client in clients]
        self._rounds[session.cohort] = Round(
            session, number, clients, sizes, *slots, following, stale, missing=len(clients)
        )
        longest_first = sorted(client_rounds, key=lambda one: -one.steps)
        self._schedules.request(longest_first, self._sizes)
        self._schedules.request(following, self._sizes)
        for one in longest_first:
            self._queued += 1
            heapq.heappush(self._waiting, (number, -longest_first[0].steps, -one.steps, self._queued, one))

    def _work_of(self, session: Session, number: int) -> list[ClientRound]:
        """The clients of a round, as far as they can be known."""
        participants = session.participants(number)
        partial = session.steps(number) if participants else {}
        steps = [partial.get(c) or local_training.steps(self._settings, self._sizes[c]) for c in participants]
        return [
            ClientRound(session.cohort, client, number, count, k)
            for k, (client, count) in enumerate(zip(participants, steps, strict=True))
        ]

    def _use(self, lanes: Lanes) -> None:
        """Work with these lanes from now on; all are idle."""
        count, batch = lanes.count, self._settings.batch_size
        self._lanes = lanes
        self._in_lane: list[ClientRound | None] = [None] * count
        self._left = np.zeros(count, np.int64)  # steps to do, by lane
        self._next = np.full(count, self._depth)  # the step that comes next; the last row of a schedule stays empty
        self._every = np.arange(count)
        self._rows_LSB = np.full((count, self._depth + 1, batch), EMPTY, np.int32)
        self._augmentation_LSB5 = None
        if "augmentation" in lanes.batches.device:
            self._augmentation_LSB5 = np.zeros((count, self._depth + 1, batch, 5), np.int8)

    def _fill(self) -> None:
        """Free lanes take the next clients; few clients move to the small lanes."""
        small = self._engine.small_count
        few = small > 0 and int(np.count_nonzero(self._left)) + len(self._waiting) <= small
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
        for lane in free:
            one = heapq.heappop(self._waiting)[-1]
            self._lay_out(one, lane)
            self._in_lane[lane], self._left[lane], self._next[lane] = one, one.steps, 0
            rate = local_training.rate(self._settings, one.round)
            round = self._rounds[one.cohort]
            entering.append((lane, round.cohort_slot, one.client, rate, 0))
            if round.stale is not None and one.client in round.stale.starts:
                older[lane] = round.stale.starts[one.client]
        self._lanes.fill(entering)
        if older:
            self._lanes.start_from(list(older), list(older.values()))

    def _lay_out(self, one: ClientRound, lane: int) -> None:
        data, settings = self._task.data, self._settings
        own = data.clients[one.client].training
        batches = self._schedules.take(one)
        if batches is None:
            shape, seed = data.train.shape if data.augmented else None, self._task.experiment.seed
            batches = draw(settings, seed, shape, len(own), one.client, one.round)
        augmentation = None if self._augmentation_LSB5 is None else self._augmentation_LSB5[lane]
        lay_out(settings, own, batches, one.steps, self._rows_LSB[lane], augmentation)

    def _move(self, wanted: Lanes) -> None:
        """Carry the clients in training over to the other lanes."""
        before, busy = self._lanes, np.flatnonzero(self._left)
        count, in_lane = len(busy), [self._in_lane[lane] for lane in busy]
        arrays = (self._left, self._next, self._rows_LSB, self._augmentation_LSB5)
        self._use(wanted)
        self._in_lane[:count] = in_lane
        for new, old in zip((self._left, self._next, self._rows_LSB, self._augmentation_LSB5), arrays, strict=True):
            if new is not None and old is not None:
                new[:count] = old[busy]
        source = torch.from_numpy(busy).to(self._device)
        for ours, theirs in zip(wanted.states(), before.states(), strict=True):
            ours[:count] = theirs[source]

    def _step(self) -> None:
        staged = self._lanes.batches.host
        staged["rows"][:] = self._rows_LSB[self._every, self._next]
        if self._augmentation_LSB5 is not None:
            staged["augmentation"][:] = self._augmentation_LSB5[self._every, self._next]
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
        busy = self._left > 0
        self._left[busy] -= 1
        self._next[busy] += 1
        ended, complete = [], []
        for lane in np.flatnonzero(busy & (self._left == 0)).tolist():
            one = self._in_lane[lane]
            assert one is not None
            self._free(lane)
            round = self._rounds[one.cohort]
            weight = self._server.weight(self._sizes[one.client], one.steps)
            ended.append((lane, round.cohort_slot, one.client, weight, round.slot + one.position))
            round.weight += weight
            round.missing -= 1
            if round.missing == 0:
                complete.append(round)
        if ended:
            self._lanes.collect(ended)
        return complete

    def _free(self, lane: int) -> None:
        self._in_lane[lane], self._left[lane], self._next[lane] = None, 0, self._depth

    def _evaluate(self, step: int, complete: list[Round]) -> None:
        """Have the new models made and evaluated, and begin the next rounds in the meantime."""
        self._pending.append((step, complete, self._evaluator.start(complete)))
        del self._complete[: len(complete)]
        for round in complete:
            del self._rounds[round.session.cohort]
            self._open(round.session, round.number + 1)

    def _close(self, rounds: list[Round], pending: PendingEvaluation) -> None:
        """Close the sessions' rounds; the work that one has begun is discarded if it stops."""
        validation, losses, squared_losses = pending.read()
        start = 0
        for k, round in enumerate(rounds):
            own, session = slice(start, start + len(round.clients)), round.session
            algorithm_state = pending.algorithm_state(k, start, list(round.clients))
            start += len(round.clients)
            if session.stopped:
                continue
            results = self._results(round, losses[own].tolist(), squared_losses[own].tolist(), validation[k])
            model = self._buffers.layout.state(pending.models_VP[k])
            result = RoundResult(model, results, algorithm_state=algorithm_state)
            self._on_round(session, session.close_round(result))
            if session.stopped:
                self._discard(session.cohort)
            elif session.cohort not in self._rounds and not any(
                other.session is session for _, others, _ in self._pending for other in others
            ):
                self._open(session, session.round + 1)

    def _results(
        self, round: Round, losses: list[float], squared_losses: list[float], validation: dict[int, float]
    ) -> list[ClientResult]:
        results = []
        for one, total, squared in zip(round.clients.values(), losses, squared_losses, strict=True):
            loss, value = total / one.steps, validation.get(one.client)
            for number in (loss, value):
                if number is not None and not math.isfinite(number):
                    raise DivergedError(round.session.cohort, one.client, round.number, number)
            samples = local_training.samples_in_steps(self._settings, self._sizes[one.client], one.steps)
            reported = squared if self._buffers.has_squared_losses else None
            results.append(ClientResult(one.client, samples, one.steps, loss, value, squared_losses=reported))
        return results

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
        for lane, client_round in enumerate(self._in_lane):
            if client_round is not None and client_round.cohort == cohort:
                self._free(lane)
