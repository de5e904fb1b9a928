"""Sessions on their way through the lanes until all have stopped.

When a lane's client has ended its local work, its model is added to its cohort's sum and the lane takes the next client
that waits, of any cohort: those that are behind come first, so that no lane is idle before the end. A cohort whose
round is complete gets its new model and begins its next round at once, while the others go on: the judgement of the
model arrives a few steps later, and if it says stop, what was begun is dropped. So the host only plans, and the device
never waits for it.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from cpfl.engines.base import OnRound
from cpfl.engines.lanes.aged import Aged
from cpfl.engines.lanes.judging import Complete, Judging, Ticket
from cpfl.engines.lanes.planners import Planners
from cpfl.engines.lanes.plans import EMPTY, Task, draw, lay_out
from cpfl.engines.lanes.step import Bench, Lanes
from cpfl.errors import DivergedError
from cpfl.federation import fates, local, schedule
from cpfl.federation.session import ClientResult, Outcome, Session

QUIET = 100  # steps with few clients after which the small lanes take over; making them takes seconds
AHEAD = {"cuda": 6, "cpu": 0}  # steps that the host may be ahead, and after which a judgement is read: so runs repeat
Waiting = tuple[int, int, int, int, Task]  # what comes first; of equals, what was queued first


class Round:
    """A round of one cohort that is under way, or done and not judged yet."""

    def __init__(
        self, session: Session, number: int, tasks: list[Task], following: list[Task], aged: Aged | None
    ) -> None:
        self.session, self.number, self.aged = session, number, aged
        self.participants = [task.client for task in tasks]
        self.steps = {task.client: task.steps for task in tasks}
        self.order = {client: k for k, client in enumerate(self.participants)}
        self.following = following  # the next round's, planned ahead
        self.missing = len(tasks)
        self.weight = 0.0


class Shift:
    """The work of one call to `federate`."""

    def __init__(
        self,
        bench: Bench,
        large: Lanes,
        few: int,
        small: Callable[[], Lanes | None],
        judging: Judging,
        planners: Planners,
        sessions: Sequence[Session],
        on_round: OnRound,
    ) -> None:
        self._bench, self._judging, self._planners, self._on_round = bench, judging, planners, on_round
        self._large, self._few, self._small = large, few, small
        self._quiet = 0  # steps in a row that the small lanes could have done
        self._problem, self._device = bench.problem, bench.device
        self._settings, self._clients = self._problem.experiment.federation, self._problem.data.clients
        self._sessions, self._server = sessions, bench.keeping.server
        self._place = {session.cohort: place for place, session in enumerate(sessions)}
        self._rounds: dict[int, Round] = {}  # the one in training, by cohort
        self._waiting: list[Waiting] = []  # a heap
        self._complete: list[Round] = []  # all clients have ended; to be judged
        self._queued = 0
        self._judged: deque[tuple[int, list[Round], Ticket]] = deque()
        self._ahead = AHEAD.get(self._device.type, 0)
        self._marks: deque[torch.cuda.Event] = deque()
        self._sizes = self._clients.training_sizes.tolist()
        self._depth = int(local.all_steps(self._settings, self._clients.training_sizes).max())
        self._put_to(large)
        for place, session in enumerate(sessions):
            bench.models_NP[place] = bench.layout.row(session.model, self._device)
        bench.sums_NP.zero_()
        bench.keeping.load(sessions)

    def work(self) -> None:
        """Fill, step, harvest, judge, until nothing is left."""
        for session in self._sessions:
            self._open(session, session.round + 1)
        step, together = 0, self._judging.models
        while self._rounds or self._judged:
            self._fill()
            if self._left.any():
                self._step()
                step += 1
                self._complete += self._harvest()
                # Judging several models costs no more than one: they wait for company while lanes have other work.
                while len(self._complete) >= together or (self._complete and len(self._waiting) < self._lanes.count):
                    self._judge(step, self._complete[:together])
            while self._judged and (
                self._judged[0][0] + self._ahead <= step or not (self._left.any() or self._waiting)
            ):
                _, rounds, ticket = self._judged.popleft()
                self._close(rounds, ticket)

    def _open(self, session: Session, number: int) -> None:
        """Queue a round's clients: early rounds come first, and of those the ones that last longest."""
        tasks, following, aged = self._work_of(session, number), self._work_of(session, number + 1), None
        if not tasks:
            return
        if self._bench.keeping.aged:  # such rounds are known when they begin and no sooner
            aged = Aged.of(session.open_round(), self._bench.layout, self._device)
            tasks = [replace(task, round=aged.began(task.client)) for task in tasks]
        self._rounds[session.cohort] = Round(session, number, tasks, following, aged)
        first = sorted(tasks, key=lambda task: -task.steps)
        self._planners.ask(first, self._sizes)
        self._planners.ask(following, self._sizes)
        for task in first:
            self._queued += 1
            heapq.heappush(self._waiting, (number, -first[0].steps, -task.steps, self._queued, task))

    def _work_of(self, session: Session, number: int) -> list[Task]:
        """A round's tasks, as far as they can be known."""
        participants = session.participants(number)
        cut = session.steps(number) if participants else {}
        steps = [cut.get(c) or local.steps(self._settings, self._sizes[c]) for c in participants]
        return [Task(session.cohort, c, number, count) for c, count in zip(participants, steps, strict=True)]

    def _put_to(self, lanes: Lanes) -> None:
        """Work with these lanes from now on; all are idle."""
        count, batch = lanes.count, self._settings.batch_size
        self._lanes = lanes
        self._tasks: list[Task | None] = [None] * count
        self._left = np.zeros(count, np.int64)  # steps to go, by lane
        self._at = np.full(count, self._depth)  # the step that comes next; the last row of a plan stays empty
        self._every = np.arange(count)
        self._rows_LSB = np.full((count, self._depth + 1, batch), EMPTY, np.int32)
        self._plan_LSB5 = None
        if "plan" in lanes.batches.there:
            self._plan_LSB5 = np.zeros((count, self._depth + 1, batch, 5), np.int8)

    def _fill(self) -> None:
        """Free lanes take the next clients; few clients move to the small step."""
        few = self._few > 0 and int(np.count_nonzero(self._left)) + len(self._waiting) <= self._few
        self._quiet = self._quiet + 1 if few else 0
        if self._lanes is self._large and self._quiet > QUIET:
            if small := self._small():
                self._move(small)
            else:  # no memory for them: the large ones do it all
                self._few = 0
        elif self._lanes is not self._large and not few:
            self._move(self._large)
        free = np.flatnonzero(self._left == 0)[: len(self._waiting)].tolist()
        if not free:
            return
        entering = []
        for lane in free:
            task = heapq.heappop(self._waiting)[-1]
            self._plan(task, lane)
            self._tasks[lane], self._left[lane], self._at[lane] = task, task.steps, 0
            rate = schedule.rate(self._settings, task.round)
            entering.append((lane, self._place[task.cohort], task.client, rate, self._seat(task)))
        self._lanes.fill(entering)
        older = dict[int, torch.Tensor]()  # by lane
        for lane, _, client, _, _ in entering if self._bench.keeping.aged else ():
            task = self._tasks[lane]
            assert task is not None
            aged = self._rounds[task.cohort].aged
            if aged is not None and client in aged.starts:
                older[lane] = aged.starts[client]
        if older:
            self._lanes.begin_from(list(older), list(older.values()))

    def _plan(self, task: Task, lane: int) -> None:
        data, settings = self._problem.data, self._settings
        own = data.clients[task.client].training
        plan = self._planners.take(task)
        if plan is None:
            shape, seed = data.train.shape if data.augmented else None, self._problem.experiment.seed
            plan = draw(settings, seed, shape, len(own), task.client, task.round)
        augmentation = None if self._plan_LSB5 is None else self._plan_LSB5[lane]
        lay_out(settings, own, plan, task.steps, self._rows_LSB[lane], augmentation)

    def _move(self, wanted: Lanes) -> None:
        """Carry the clients in training over to lanes of the other count."""
        before, busy = self._lanes, np.flatnonzero(self._left)
        tasks, left, at = [self._tasks[lane] for lane in busy], self._left[busy], self._at[busy]
        rows, plans = self._rows_LSB[busy], None if self._plan_LSB5 is None else self._plan_LSB5[busy]
        self._put_to(wanted)
        count = len(busy)
        self._tasks[:count], self._left[:count], self._at[:count] = tasks, left, at
        self._rows_LSB[:count] = rows
        if self._plan_LSB5 is not None and plans is not None:
            self._plan_LSB5[:count] = plans
        source = torch.from_numpy(busy).to(self._device)
        for ours, theirs in zip(wanted.states(), before.states(), strict=True):
            ours[:count] = theirs[source]

    def _step(self) -> None:
        letter = self._lanes.batches.here
        letter["rows"][:] = self._rows_LSB[self._every, self._at]
        if self._plan_LSB5 is not None:
            letter["plan"][:] = self._plan_LSB5[self._every, self._at]
        self._lanes.batches.send()
        self._lanes.step()
        if self._device.type == "cuda":
            mark = torch.cuda.Event()  # type: ignore[no-untyped-call]
            mark.record()
            self._marks.append(mark)
            if len(self._marks) > self._ahead:
                self._marks.popleft().synchronize()

    def _harvest(self) -> list[Round]:
        """Add the models of clients that have ended to their cohorts' sums; the rounds that this completes."""
        busy = self._left > 0
        self._left[busy] -= 1
        self._at[busy] += 1
        ended, complete = [], []
        for lane in np.flatnonzero(busy & (self._left == 0)).tolist():
            task = self._tasks[lane]
            assert task is not None
            self._free(lane)
            round = self._rounds[task.cohort]
            weight = self._server.weight(self._sizes[task.client], task.steps)
            ended.append((lane, self._place[task.cohort], task.client, weight, self._seat(task)))
            round.weight += weight
            round.missing -= 1
            if round.missing == 0:
                complete.append(round)
        if ended:
            self._lanes.harvest(ended)
        return complete

    def _seat(self, task: Task) -> int:
        """Where its model waits for the others of its round, if they are joined all at once."""
        return int(self._bench.keeping.seats[task.cohort]) + self._rounds[task.cohort].order[task.client]

    def _free(self, lane: int) -> None:
        self._tasks[lane], self._left[lane], self._at[lane] = None, 0, self._depth

    def _judge(self, step: int, complete: list[Round]) -> None:
        """Have the new models made and judged, and begin the next rounds in the meantime."""
        self._judged.append((step, complete, self._judging.start([self._ready(round) for round in complete])))
        del self._complete[: len(complete)]
        for round in complete:
            del self._rounds[round.session.cohort]
            self._open(round.session, round.number + 1)

    def _ready(self, round: Round) -> Complete:
        sizes = [self._sizes[client] for client in round.participants]
        steps = [round.steps[client] for client in round.participants]
        pace = 1.0 if round.aged else self._server.pace(list(zip(sizes, steps, strict=True)))
        cohort, clients = round.session.cohort, len(round.session.clients)
        place, seat = self._place[cohort], int(self._bench.keeping.seats[cohort])
        return Complete(place, round.weight, pace, clients, round.participants, sizes, round.number, seat, round.aged)

    def _close(self, rounds: list[Round], ticket: Ticket) -> None:
        """Tell the sessions; what one that stops has begun is dropped."""
        verdicts, losses, squares = ticket.read()
        at = 0
        for k, round in enumerate(rounds):
            mine = slice(at, at + len(round.participants))
            memory = ticket.seen.memory(k, at, round.participants)
            at += len(round.participants)
            session = round.session
            if session.stopped:
                continue
            results = self._results(round, losses[mine].tolist(), squares[mine].tolist(), verdicts[k])
            model = self._bench.layout.state(ticket.models_VP[k])
            self._on_round(session, session.close_round(Outcome(model, results, memory=memory)))
            if session.stopped:
                self._drop(session.cohort)
            elif session.cohort not in self._rounds and not self._under_way(session):
                self._open(session, session.round + 1)

    def _results(
        self, round: Round, losses: list[float], squares: list[float], verdict: dict[int, float]
    ) -> list[ClientResult]:
        results = []
        for client, total, squared in zip(round.participants, losses, squares, strict=True):
            steps = round.steps[client]
            loss, value = total / steps, verdict.get(client)
            for number in (loss, value):
                if number is not None and not math.isfinite(number):
                    raise DivergedError(round.session.cohort, client, round.number, number)
            samples = fates.visited(self._settings, self._sizes[client], steps)
            told = squared if self._bench.squares else None
            results.append(ClientResult(client, samples, steps, loss, value, squares=told))
        return results

    def _under_way(self, session: Session) -> bool:
        return any(round.session is session for _, rounds, _ in self._judged for round in rounds)

    def _drop(self, cohort: int) -> None:
        """Forget what a cohort that has stopped had begun."""
        round = self._rounds.pop(cohort, None)
        if round is not None:
            self._complete = [other for other in self._complete if other is not round]
            dropped = [waiting[-1] for waiting in self._waiting if waiting[-1].cohort == cohort]
            for begun in (*dropped, *round.following):
                self._planners.forget(begun)
            self._waiting = [waiting for waiting in self._waiting if waiting[-1].cohort != cohort]
            heapq.heapify(self._waiting)
            for lane, task in enumerate(self._tasks):
                if task is not None and task.cohort == cohort:
                    self._free(lane)
