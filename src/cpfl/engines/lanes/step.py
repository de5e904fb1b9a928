"""What lanes do, each a graph on a GPU: take clients in, advance all by a step, add those that have ended to the sums.

Whatever a captured graph reads keeps its address for life: all tensors here are made once and only written into.
Axes: L lanes, B batch, P parameters, N cohorts, F places of a letter; row L or N is for places that stay empty.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from cpfl import models
from cpfl.engines.lanes.keeping import Keeping
from cpfl.engines.lanes.plans import EMPTY
from cpfl.engines.lanes.stack import Layout
from cpfl.engines.lanes.transfer import Inbox
from cpfl.federation import choosing, schedule
from cpfl.federation.local_part import Course, Step
from cpfl.problem import Problem
from cpfl.stacked import layers

WARM_UPS = 3
AT_ONCE = 16  # clients that one letter takes in or out
ALIKE = 32  # clients of one cohort that one letter takes out
MANY = 4  # from so many on they go out together
MANY_ENGINES = 10_000  # a sweep has one for every run

Given = ParamSpec("Given")
Made = TypeVar("Made")

Line = tuple[int, int, int, float, int]
"""A client in a letter: its lane, its cohort's place, the client, its learning rate or weight, its seat."""


class Bench:
    """What all lanes share on the device: the samples, the model's form, and every cohort's model and running sum."""

    def __init__(self, problem: Problem, module: nn.Module, layout: Layout, device: torch.device) -> None:
        data, experiment = problem.data, problem.experiment
        self.x = torch.as_tensor(data.train.x).to(device)
        self.y = torch.as_tensor(data.train.y).to(device)
        self.device, self.layout, self.problem = device, layout, problem
        self.dtype, self.precision = data.transform.dtype, experiment.precision
        kernels = models.kernel_dtype(device, self.precision)
        judge = copy.deepcopy(module).eval()
        self.module, self._judge = (one if kernels is None else layers.fit(one, kernels) for one in (module, judge))
        self._constant = {**layout.frozen, **layout.buffers}
        self.models_NP = torch.zeros(experiment.cohorts + 1, layout.size, dtype=self.dtype, device=device)
        self.sums_NP = torch.zeros_like(self.models_NP)
        self.losses_M = torch.zeros(experiment.clients + 1, dtype=self.dtype, device=device)
        self.keeping = Keeping(experiment, problem.plan, layout, self.dtype, device)
        self.squares = choosing.part_class(experiment.federation.selection).squares  # of sample losses, asked for
        self.squares_M = torch.zeros_like(self.losses_M)

    def inputs(self, rows: Tensor, plan: Tensor | None) -> Tensor:
        """Model inputs for rows of any shape; empty rows give some sample that the caller leaves out."""
        flat = rows.reshape(-1).long().clamp(min=0)  # long: places in millions of images are beyond 32 bits
        augmentation = None if plan is None else plan.reshape(-1, plan.shape[-1]).long()
        x = self.problem.data.transform(self.x[flat], augmentation)
        return x.reshape(*rows.shape, *x.shape[1:])

    def losses(self, params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """One model's loss on each of its samples, in training."""
        return self._losses(self.module, params, x, y)

    def judged(self, params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """The same of a model that is judged."""
        return self._losses(self._judge, params, x, y)

    def _losses(self, module: nn.Module, params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        with models.arithmetic(self.device, self.precision):
            logits = functional_call(module, {**params, **self._constant}, (x,))
        return nn.functional.cross_entropy(logits.to(x.dtype), y, reduction="none")

    def labels(self, rows: Tensor) -> Tensor:
        """Labels for rows of any shape."""
        return self.y[rows.long().clamp(min=0)]


class Lanes:
    """L clients in training: their parameters, losses, and what their local part has beside them."""

    def __init__(self, bench: Bench, count: int, compiled: bool) -> None:
        device, problem, self._local = bench.device, bench.problem, bench.keeping.local
        self.count, self._bench = count, bench
        settings = problem.experiment.federation
        batch = settings.batch_size
        self.params_LP = torch.zeros(count + 1, bench.layout.size, dtype=bench.dtype, device=device)
        self.losses_L = torch.zeros(count + 1, dtype=bench.dtype, device=device)
        self.squares_L = torch.zeros_like(self.losses_L)
        self._rates_L1 = torch.zeros(count + 1, 1, dtype=bench.dtype, device=device)
        rows = {"start": self._local.needs_start, "client": self._local.keeps_rows, "cohort": self._local.keeps_rows}
        self._at = Course(
            settings.lr if schedule.constant(settings) else self._rates_L1,
            torch.zeros_like(self._rates_L1),
            {name: torch.zeros_like(self.params_LP) for name in self._local.memory},
            **{name: torch.zeros_like(self.params_LP) if needed else None for name, needed in rows.items()},
        )
        plan = {"plan": ((count, batch, 5), np.int8)} if problem.data.augmented else {}
        self.batches = Inbox(device, rows=((count, batch), np.int32), **plan)
        kind = torch.zeros(0, dtype=bench.dtype).numpy().dtype
        numbers, floats = ((AT_ONCE,), np.int64), ((AT_ONCE,), kind)
        self._incoming = Inbox(device, lanes=numbers, places=numbers, clients=numbers, rates=floats)
        self._outgoing = Inbox(device, lanes=numbers, places=numbers, clients=numbers, weights=floats, seats=numbers)
        numbers, floats = ((min(ALIKE, count),), np.int64), ((min(ALIKE, count),), kind)
        self._together = Inbox(device, lanes=numbers, places=((1,), np.int64), clients=numbers, weights=floats)
        self._leaf = self.params_LP.detach().requires_grad_()
        self._forward: Callable[[], tuple[Tensor, Tensor | None]] = (
            made_faster(self._losses) if compiled else self._losses
        )
        # Compiled, a step passes over each row once instead of once for every operation. A user's part stays as it is.
        ours = type(self._local).__module__.startswith("cpfl.")
        self._own_step: Step | None = made_faster(self._local.step) if compiled and ours else None
        self.batches.there["rows"].fill_(EMPTY)
        # Trying these out must not touch rounds that are under way.
        for inbox in (self._incoming, self._outgoing, self._together):
            self._empty(inbox)
            inbox.send()
        self.step: Callable[[], None] = captured(self._step, device)
        self._take_in: Callable[[], None] = captured(self._fill, device)
        self._add_up: Callable[[], None] = captured(self._harvest, device)
        self._add_alike: Callable[[], None] = captured(self._harvest_alike, device)
        for state in self.states():
            state.zero_()

    def states(self) -> list[Tensor]:
        """All that a client in training has, by lane."""
        own = [row for row in (self._at.start, self._at.client, self._at.cohort) if row is not None]
        sums = [self.losses_L, self.squares_L, self._rates_L1, self._at.count]
        return [self.params_LP, *sums, *self._at.memory.values(), *own]

    def fill(self, entering: Sequence[Line]) -> None:
        """Lanes begin a client each, from the model of the cohort at that place."""
        for at in range(0, len(entering), AT_ONCE):
            self._send(self._incoming, entering[at : at + AT_ONCE])
            self._take_in()

    def begin_from(self, lanes: Sequence[int], starts: Sequence[Tensor]) -> None:
        """Clients that were taken in begin with these models instead of their cohorts' newest."""
        for rows_LP in (self.params_LP, self._at.start):
            if rows_LP is not None:
                torch._foreach_copy_([rows_LP[lane] for lane in lanes], list(starts))

    def harvest(self, ended: Sequence[Line]) -> None:
        """Clients that have ended join the sums of their cohorts, always in the same order."""
        keeping, cohorts = self._bench.keeping, dict[int, list[Line]]()
        for line in ended:
            cohorts.setdefault(line[1], []).append(line)
        many = self.count + 1 if keeping.one_by_one else MANY
        size = len(self._together.here["lanes"])
        for lines in cohorts.values():
            for at in range(0, len(lines) if len(lines) >= many else 0, size):
                self._send(self._together, lines[at : at + size])
                self._add_alike()
        for turn in turns([line for line in ended if len(cohorts[line[1]]) < many]):
            self._send(self._outgoing, turn)
            self._add_up()

    def _empty(self, inbox: Inbox) -> None:
        bench, letter = self._bench, inbox.here
        for column in letter.values():
            column[:] = 0
        letter["lanes"][:], letter["places"][:] = self.count, len(bench.models_NP) - 1
        letter["clients"][:] = len(bench.losses_M) - 1
        if "seats" in letter:
            letter["seats"][:] = bench.keeping.seats[-1]

    def _send(self, inbox: Inbox, lines: Sequence[Line]) -> None:
        self._empty(inbox)
        for column, values in zip(
            inbox.here.values(), zip(*lines, strict=True), strict=False
        ):  # a seat is not always told
            column[: len(lines)] = values[: len(column)]  # clients of one cohort have one place
        inbox.send()

    def _fill(self) -> None:
        there, bench, at = self._incoming.there, self._bench, self._at
        lanes, places, clients = there["lanes"], there["places"], there["clients"]
        models_FP = bench.models_NP.index_select(0, places)
        self.params_LP.index_copy_(0, lanes, models_FP)
        for state in (self.losses_L, self.squares_L, at.count, *at.memory.values()):
            state.index_fill_(0, lanes, 0)
        self._rates_L1.index_copy_(0, lanes, there["rates"][:, None])
        if at.start is not None:
            at.start.index_copy_(0, lanes, models_FP)
        if at.client is not None and at.cohort is not None:
            at.client.index_copy_(0, lanes, bench.keeping.rows_MP.index_select(0, clients))
            at.cohort.index_copy_(0, lanes, bench.keeping.means_NP.index_select(0, places))

    def _harvest(self) -> None:
        there, bench, keeping = self._outgoing.there, self._bench, self._bench.keeping
        lanes, places, clients = there["lanes"], there["places"], there["clients"]
        models_FP = self.params_LP.index_select(0, lanes)
        if keeping.local.keeps_rows:
            at = self._of(lanes)
            assert at.client is not None
            keeping.leave(keeping.local.leave(models_FP, at), at.client, clients, places)
        if keeping.receives and not keeping.aged:
            models_FP = keeping.server.receive(models_FP, bench.models_NP.index_select(0, places))
        if keeping.one_by_one:
            keeping.models_SP.index_copy_(0, there["seats"], models_FP)
        else:
            sums_FP = bench.sums_NP.index_select(0, places).add_(models_FP.mul_(there["weights"][:, None]))
            bench.sums_NP.index_copy_(0, places, sums_FP)
        bench.losses_M.index_copy_(0, clients, self.losses_L.index_select(0, lanes))
        bench.squares_M.index_copy_(0, clients, self.squares_L.index_select(0, lanes))

    def _harvest_alike(self) -> None:
        there, bench, keeping = self._together.there, self._bench, self._bench.keeping
        lanes, places, clients = there["lanes"], there["places"], there["clients"]
        models_FP, filled_F1 = self.params_LP.index_select(0, lanes), (lanes != self.count)[:, None]
        if keeping.local.keeps_rows:
            at = self._of(lanes)
            assert at.client is not None
            keeping.leave_alike(keeping.local.leave(models_FP, at), at.client, filled_F1, clients, places)
        if keeping.receives:
            models_FP = keeping.server.receive(models_FP, bench.models_NP.index_select(0, places).expand_as(models_FP))
        total_1P = torch.where(filled_F1, models_FP.mul_(there["weights"][:, None]), 0).sum(0, keepdim=True)
        bench.sums_NP.index_copy_(0, places, bench.sums_NP.index_select(0, places).add_(total_1P))
        bench.losses_M.index_copy_(0, clients, self.losses_L.index_select(0, lanes))
        bench.squares_M.index_copy_(0, clients, self.squares_L.index_select(0, lanes))

    def _of(self, lanes: Tensor) -> Course:
        """Where the clients of some lanes are."""

        def some(rows: Tensor | None) -> Tensor | None:
            return None if rows is None else rows.index_select(0, lanes)

        at = self._at
        lr = at.lr.index_select(0, lanes) if isinstance(at.lr, Tensor) else at.lr
        return Course(lr, at.count.index_select(0, lanes), {}, some(at.start), some(at.client), some(at.cohort))

    def _losses(self) -> tuple[Tensor, Tensor | None]:
        bench, rows_LB = self._bench, self.batches.there["rows"]
        x = bench.inputs(rows_LB, self.batches.there.get("plan"))
        mask_LB = (rows_LB != EMPTY).to(x.dtype)
        params = bench.layout.views(self._leaf[: self.count])
        losses_LB = vmap(bench.losses)(params, x, bench.labels(rows_LB))
        squares_L = (losses_LB.detach() * mask_LB).square().sum(1) if bench.squares else None
        return (losses_LB * mask_LB).sum(1) / mask_LB.sum(1).clamp(min=1), squares_L

    def _step(self) -> None:
        losses_L, squares_L = self._forward()
        (slopes_LP,) = torch.autograd.grad(losses_L.sum(), self._leaf)  # lanes share nothing: each gets its own
        self._at.count.add_(1)
        self._local.learn(self.params_LP, slopes_LP, self._at, self._own_step)
        self.losses_L[: self.count].add_(losses_L.detach())
        if squares_L is not None:
            self.squares_L[: self.count].add_(squares_L)


def made_faster(work: Callable[Given, Made]) -> Callable[Given, Made]:
    """Compiled; for every engine of a process anew, where torch would leave the ninth as it is."""
    import torch._dynamo  # takes seconds, and only who compiles needs it

    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = MANY_ENGINES
    # Sums are split up by rule, not by timing, which every process would do anew: a run repeats bit by bit.
    return torch.compile(work, dynamic=False, options={"deterministic": True})


def turns(ended: Sequence[Line]) -> list[list[Line]]:
    """Split so that a turn holds every cohort at most once: sums are then added up in one order, always."""
    split: list[list[Line]] = []
    seen: dict[int, int] = {}
    for client in ended:
        turn = seen.get(client[1], 0)
        while turn < len(split) and len(split[turn]) == AT_ONCE:
            turn += 1
        if turn == len(split):
            split.append([])
        split[turn].append(client)
        seen[client[1]] = turn + 1
    return split


@functools.cache
def _side(device: torch.device) -> torch.cuda.Stream:
    """Where graphs are tried out. Always the same: cuBLAS keeps 32 MiB for good for every stream that it has seen."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def captured(work: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The same work as a CUDA graph: one launch instead of hundreds. Elsewhere the work itself."""
    if device.type != "cuda":
        return work
    side = _side(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's remarks on its own doings
        for _ in range(WARM_UPS):
            work()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay
