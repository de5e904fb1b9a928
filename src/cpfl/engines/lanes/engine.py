"""Continuous batching of clients: L lanes, one step for all, no barrier between cohorts.

When a lane's client has ended its local work, its model is added to its cohort's sum and the lane takes the next client
that waits, of any cohort. A cohort whose round is complete aggregates, is judged and queues its next round while the
others go on. The host only plans: it stays a few steps ahead of the device and never waits for the step it just queued.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
import torch

from cpfl import models
from cpfl.engines.base import OnRound
from cpfl.engines.lanes.judging import Judging
from cpfl.engines.lanes.plans import Task, plan_task
from cpfl.engines.lanes.stack import Layout
from cpfl.engines.lanes.step import Lanes, Samples
from cpfl.engines.lanes.transfer import upload
from cpfl.errors import DivergedError
from cpfl.federation import local, selection, server
from cpfl.federation.session import ClientResult, Outcome, Session, Work
from cpfl.problem import Problem

AHEAD = 2  # steps that the host may be ahead; also after how many steps a judgement is read, so that runs repeat
BUSY = 0.85  # lanes for this share of the clients that could train at once: the rest waits a little, none idles
MOST = {"cuda": 128, "cpu": 16}
FEW = 16  # lanes of the small step that takes over when fewer clients are left


class LaneEngine:
    """Trains the clients of all cohorts side by side on one device."""

    name = "lanes"

    def __init__(self, problem: Problem, device: torch.device, lanes: int = 0) -> None:
        experiment = problem.experiment
        self._problem, self._device = problem, device
        exact = experiment.precision in ("float32", "float64")
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = not exact
        torch.backends.cudnn.benchmark = True  # by default a grouped convolution runs group after group
        module = models.fresh(problem.build, experiment.seed, "init", problem.data.transform.dtype).to(device).train()
        self._layout = Layout.of(module)
        self._samples = Samples(problem, device)
        steps = max(local.steps(experiment.federation, len(c.training)) for c in problem.data.clients)
        at_once = lanes or self.default_lanes(problem, device)
        on_gpu = device.type == "cuda"

        def make(count: int, compiled: bool) -> Lanes:
            return Lanes(problem, module, self._layout, self._samples, count, steps, compiled)

        self._large = make(at_once, compiled=on_gpu)
        self._small = make(FEW, compiled=False) if on_gpu and at_once > 2 * FEW else self._large
        self._judging = Judging(problem, module, self._layout, self._samples)

    @staticmethod
    def default_lanes(problem: Problem, device: torch.device) -> int:
        """As many as can be kept busy: a cohort's round lasts as long as its longest client, so with skewed sizes far
        fewer clients train at once than take part."""
        settings = problem.experiment.federation
        at_once = 0.0
        for clients in problem.plan:
            steps = [local.steps(settings, len(problem.data.clients[client].training)) for client in clients]
            share = selection.size(settings, len(clients)) / len(clients)
            at_once += max(1.0, share * sum(steps) / max(steps))
        wanted = 8 * max(1, round(BUSY * at_once / 8))
        return min(wanted, MOST.get(device.type, MOST["cpu"]), problem.experiment.clients)

    def federate(self, sessions: Sequence[Session], on_round: OnRound) -> None:
        """Do all rounds of all sessions."""
        going = [session for session in sessions if not session.stopped]
        if going:
            parts = (self._layout, self._large, self._small, self._judging)
            with models.threads(1):
                _Shift(self._problem, self._device, *parts, going).work(on_round)


class _Round:
    """A round of one cohort that is under way."""

    def __init__(self, session: Session, work: Work) -> None:
        self.session, self.work = session, work
        self.missing = len(work.participants)
        self.weight = 0.0


class _Shift:
    """Sessions on their way through the lanes until all have stopped."""

    def __init__(
        self,
        problem: Problem,
        device: torch.device,
        layout: Layout,
        large: Lanes,
        small: Lanes,
        judging: Judging,
        sessions: Sequence[Session],
    ) -> None:
        self._problem, self._device, self._layout, self._judging = problem, device, layout, judging
        self._large, self._small, self._lanes = large, small, large
        self._place = {session.cohort: place for place, session in enumerate(sessions)}
        rows = [layout.row(session.model, device) for session in sessions]
        self._models_NP = torch.stack(rows)
        self._sums_NP = torch.zeros_like(self._models_NP)
        self._losses_M = torch.zeros(problem.experiment.clients, dtype=rows[0].dtype, device=device)
        self._rounds: dict[int, _Round] = {}
        self._waiting: deque[Task] = deque()
        self._tasks: list[Task | None] = [None] * large.count
        self._left = np.zeros(large.count, np.int64)  # steps to go, by lane
        self._marks: deque[torch.cuda.Event] = deque()
        self._sessions = sessions

    def work(self, on_round: OnRound) -> None:
        """Fill, step, harvest, judge, until nothing is left."""
        for session in self._sessions:
            self._open(session)
        judged: deque[tuple[int, list[_Round], Judging.Ticket]] = deque()
        step = 0
        while self._rounds:
            self._fill()
            if self._left.any():
                self._lanes.step()
                self._wait_for_device()
                step += 1
                complete = self._harvest()
                if complete:
                    judged.append((step, complete, self._aggregate(complete)))
            while judged and (judged[0][0] + AHEAD <= step or not (self._left.any() or self._waiting)):
                _, complete, ticket = judged.popleft()
                self._close(complete, ticket, on_round)

    def _open(self, session: Session) -> None:
        work = session.open_round()
        self._rounds[session.cohort] = _Round(session, work)
        settings, clients = self._problem.experiment.federation, self._problem.data.clients
        tasks = []
        for client in work.participants:
            size = len(clients[client].training)
            steps = local.steps(settings, size)
            samples = local.samples(settings, size)
            tasks.append(Task(work.cohort, client, work.round, steps, samples))
        self._waiting.extend(sorted(tasks, key=lambda task: -task.steps))  # the longest first: they end the round

    def _fill(self) -> None:
        """Free lanes take the next clients; few clients move to the small step."""
        busy = int(np.count_nonzero(self._left))
        wanted = self._small if busy + len(self._waiting) <= self._small.count else self._large
        if wanted is not self._lanes:
            self._move(wanted)
        free = np.flatnonzero(self._left == 0)[: len(self._waiting)]
        if len(free) == 0:
            return
        lanes, tasks = self._lanes, [self._waiting.popleft() for _ in free]
        plans = [plan_task(self._problem, task) for task in tasks]
        depth = max(task.steps for task in tasks)
        rows = np.full((len(tasks), depth, lanes.rows_LSB.shape[2]), -1, np.int32)
        for k, (plan, _) in enumerate(plans):
            rows[k, : len(plan)] = plan
        augmentation = np.zeros((*rows.shape, 5) if lanes.plan_LSB5 is not None else 0, np.int8)
        for k, (_, spread) in enumerate(plans):
            if spread is not None:
                augmentation[k, : len(spread)] = spread
        places = np.array([self._place[task.cohort] for task in tasks])
        at, cohorts, rows_there, augmentation_there = upload(self._device, free, places, rows, augmentation)
        lanes.rows_LSB[at, :depth] = rows_there
        if lanes.plan_LSB5 is not None:
            lanes.plan_LSB5[at, :depth] = augmentation_there
        lanes.params_LP[at] = self._models_NP[cohorts]
        lanes.momenta_LP[at] = 0
        lanes.losses_L[at] = 0
        lanes.at_L[at] = 0
        for lane, task in zip(free, tasks, strict=True):
            self._tasks[lane], self._left[lane] = task, task.steps

    def _move(self, wanted: Lanes) -> None:
        """Carry the clients in training over to lanes of the other count."""
        busy = np.flatnonzero(self._left)
        if len(busy):
            (source,) = upload(self._device, busy)
            target = torch.arange(len(busy), device=self._device)
            depth = max(task.steps for lane in busy if (task := self._tasks[lane]))
            for name in ("params_LP", "momenta_LP", "losses_L", "at_L"):
                getattr(wanted, name)[target] = getattr(self._lanes, name)[source]
            wanted.rows_LSB[target, :depth] = self._lanes.rows_LSB[source, :depth]
            if wanted.plan_LSB5 is not None and self._lanes.plan_LSB5 is not None:
                wanted.plan_LSB5[target, :depth] = self._lanes.plan_LSB5[source, :depth]
        tasks, left = [self._tasks[lane] for lane in busy], self._left[busy]
        idle = wanted.count - len(busy)
        self._tasks, self._left = tasks + [None] * idle, np.concatenate([left, np.zeros(idle, np.int64)])
        self._lanes = wanted

    def _harvest(self) -> list[_Round]:
        """Add the models of clients that have ended to their cohorts' sums; the rounds that this completes."""
        ended = np.flatnonzero(self._left == 1)
        self._left[self._left > 0] -= 1
        if len(ended) == 0:
            return []
        complete, clients = [], []
        turns: list[list[tuple[int, int, float]]] = []  # in one turn every cohort at most once, so that sums repeat
        seen: dict[int, int] = {}
        for lane in ended:
            task = self._tasks[lane]
            assert task is not None
            self._tasks[lane] = None
            round = self._rounds[task.cohort]
            weight = self._weight(task.client)
            turn = seen[task.cohort] = seen.get(task.cohort, -1) + 1
            if turn == len(turns):
                turns.append([])
            turns[turn].append((int(lane), self._place[task.cohort], weight))
            clients.append(task.client)
            round.weight += weight
            round.missing -= 1
            if round.missing == 0:
                complete.append(round)
        columns = [np.array(column) for turn_of in turns for column in zip(*turn_of, strict=True)]
        who, lanes_there, *there = upload(self._device, np.array(clients), ended, *columns)
        self._losses_M[who] = self._lanes.losses_L[lanes_there]
        for lanes, places, weights in zip(there[::3], there[1::3], there[2::3], strict=True):
            models_LP = self._lanes.params_LP[lanes]
            self._sums_NP[places] += models_LP * weights.to(models_LP.dtype)[:, None]
        return complete

    def _aggregate(self, complete: list[_Round]) -> Judging.Ticket:
        """The new models of cohorts whose rounds are complete, and their judgement on the way."""
        participants = [r.work.participants for r in complete]
        places, weights, who = upload(
            self._device,
            np.array([self._place[r.work.cohort] for r in complete]),
            np.array([r.weight for r in complete]),
            np.array([client for part in participants for client in part]),
        )
        new_NP = self._sums_NP[places] / weights.to(self._sums_NP.dtype)[:, None]
        self._models_NP[places] = new_NP
        self._sums_NP[places] = 0
        return self._judging.start(new_NP, participants, [r.work.round for r in complete], self._losses_M[who])

    def _close(self, complete: list[_Round], ticket: Judging.Ticket, on_round: OnRound) -> None:
        """Tell the sessions; those that go on open their next round."""
        verdicts, losses = ticket.read()
        settings, clients = self._problem.experiment.federation, self._problem.data.clients
        at = 0
        for k, round in enumerate(complete):
            results = []
            for client in round.work.participants:
                size = len(clients[client].training)
                steps = local.steps(settings, size)
                samples = local.samples(settings, size)
                loss, verdict = float(losses[at]) / steps, verdicts[k].get(client)
                at += 1
                for value in (loss, verdict):
                    if value is not None and not math.isfinite(value):
                        raise DivergedError(round.work.cohort, client, round.work.round, value)
                results.append(ClientResult(client, samples, steps, loss, verdict))
            session = round.session
            del self._rounds[session.cohort]
            on_round(session, session.close_round(Outcome(self._layout.state(ticket.models_NP[k]), results)))
            if not session.stopped:
                self._open(session)

    def _wait_for_device(self) -> None:
        if self._device.type != "cuda":
            return
        mark = torch.cuda.Event()  # type: ignore[no-untyped-call]
        mark.record()
        self._marks.append(mark)
        if len(self._marks) > AHEAD:
            self._marks.popleft().synchronize()

    def _weight(self, client: int) -> float:
        kind = self._problem.experiment.federation.weights
        return server.weight(kind, len(self._problem.data.clients[client].training))
