"""What lanes do, each a graph on a GPU: take clients in, advance all by a step, add those that have ended to the sums.

Whatever a captured graph reads keeps its address for life: all tensors here are made once and only written into.
Axes: L lanes, B batch, P parameters, N cohorts, F places of a letter; row L or N is for places that stay empty.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from cpfl import models
from cpfl.engines.lanes.plans import EMPTY
from cpfl.engines.lanes.stack import Layout
from cpfl.engines.lanes.transfer import Inbox
from cpfl.federation import choosing
from cpfl.problem import Problem
from cpfl.stacked import layers

WARM_UPS = 3
AT_ONCE = 16  # clients that one letter takes in or out


class Bench:
    """What all lanes share on the device: the samples, the model's form, and every cohort's model and running sum."""

    def __init__(self, problem: Problem, module: nn.Module, layout: Layout, device: torch.device) -> None:
        data, experiment = problem.data, problem.experiment
        self.x = torch.as_tensor(data.train.x).to(device)
        self.y = torch.as_tensor(data.train.y).to(device)
        self.device, self.layout, self.problem = device, layout, problem
        self.dtype, self.precision = data.transform.dtype, experiment.precision
        kernels = models.kernel_dtype(device, self.precision)
        self.module = module if kernels is None else layers.fit(module, kernels)
        self.models_NP = torch.zeros(experiment.cohorts + 1, layout.size, dtype=self.dtype, device=device)
        self.sums_NP = torch.zeros_like(self.models_NP)
        self.losses_M = torch.zeros(experiment.clients + 1, dtype=self.dtype, device=device)
        self.squares = choosing.part_class(experiment.federation.selection).squares  # of sample losses, asked for
        self.squares_M = torch.zeros_like(self.losses_M)

    def inputs(self, rows: Tensor, plan: Tensor | None) -> Tensor:
        """Model inputs for rows of any shape; empty rows give some sample that the caller leaves out."""
        flat = rows.reshape(-1).clamp(min=0)
        augmentation = None if plan is None else plan.reshape(-1, plan.shape[-1]).long()
        x = self.problem.data.transform(self.x[flat], augmentation)
        return x.reshape(*rows.shape, *x.shape[1:])

    def losses(self, params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """One model's loss on each of its samples."""
        with models.arithmetic(self.device, self.precision):
            logits = functional_call(self.module, {**params, **self.layout.buffers}, (x,))
        return nn.functional.cross_entropy(logits.to(x.dtype), y, reduction="none")

    def labels(self, rows: Tensor) -> Tensor:
        """Labels for rows of any shape."""
        return self.y[rows.clamp(min=0)]


class Lanes:
    """L clients in training: their parameters, momenta and losses."""

    def __init__(self, bench: Bench, count: int, compiled: bool) -> None:
        device, problem = bench.device, bench.problem
        self.count, self._bench = count, bench
        self._settings = problem.experiment.federation
        batch = self._settings.batch_size
        self.params_LP = torch.zeros(count + 1, bench.layout.size, dtype=bench.dtype, device=device)
        self.momenta_LP = torch.zeros_like(self.params_LP)
        self.losses_L = torch.zeros(count + 1, dtype=bench.dtype, device=device)
        self.squares_L = torch.zeros_like(self.losses_L)
        plan = {"plan": ((count, batch, 5), np.int8)} if problem.data.augmented else {}
        self.batches = Inbox(device, rows=((count, batch), np.int32), **plan)
        self._incoming = Inbox(device, lanes=((AT_ONCE,), np.int64), places=((AT_ONCE,), np.int64))
        weights = torch.zeros(0, dtype=bench.dtype).numpy().dtype
        self._outgoing = Inbox(
            device, lanes=((AT_ONCE,), np.int64), places=((AT_ONCE,), np.int64),
            clients=((AT_ONCE,), np.int64), weights=((AT_ONCE,), weights),
        )  # fmt: skip
        self._leaf = self.params_LP.detach().requires_grad_()
        self._forward: Callable[[], tuple[Tensor, Tensor | None]] = (
            torch.compile(self._losses, dynamic=False) if compiled else self._losses
        )
        self.batches.there["rows"].fill_(EMPTY)
        self.step: Callable[[], None] = captured(self._step, device)
        self._take_in: Callable[[], None] = captured(self._fill, device)
        self._add_up: Callable[[], None] = captured(self._harvest, device)
        for state in (self.params_LP, self.momenta_LP, self.losses_L, self.squares_L, bench.sums_NP):
            state.zero_()

    def fill(self, lanes: Sequence[int], places: Sequence[int]) -> None:
        """These lanes begin a client each, from the models of the cohorts at these places."""
        for at in range(0, len(lanes), AT_ONCE):
            part = slice(at, at + AT_ONCE)
            letter = self._incoming.here
            letter["lanes"][:], letter["places"][:] = self.count, len(self._bench.models_NP) - 1
            count = len(lanes[part])
            letter["lanes"][:count], letter["places"][:count] = lanes[part], places[part]
            self._incoming.send()
            self._take_in()

    def harvest(self, ended: Sequence[tuple[int, int, int, float]]) -> None:
        """Clients that have ended, as (lane, place, client, weight), join the sums of their cohorts in this order."""
        for turn in turns(ended):
            letter = self._outgoing.here
            letter["lanes"][:], letter["places"][:] = self.count, len(self._bench.sums_NP) - 1
            letter["clients"][:], letter["weights"][:] = len(self._bench.losses_M) - 1, 0
            for name, column in zip(("lanes", "places", "clients", "weights"), zip(*turn, strict=True), strict=True):
                letter[name][: len(turn)] = column
            self._outgoing.send()
            self._add_up()

    def _fill(self) -> None:
        lanes, places = self._incoming.there["lanes"], self._incoming.there["places"]
        self.params_LP.index_copy_(0, lanes, self._bench.models_NP.index_select(0, places))
        self.momenta_LP.index_fill_(0, lanes, 0)
        self.losses_L.index_fill_(0, lanes, 0)
        self.squares_L.index_fill_(0, lanes, 0)

    def _harvest(self) -> None:
        there, sums = self._outgoing.there, self._bench.sums_NP
        models_FP = self.params_LP.index_select(0, there["lanes"]).mul_(there["weights"][:, None])
        sums.index_copy_(0, there["places"], sums.index_select(0, there["places"]).add_(models_FP))
        self._bench.losses_M.index_copy_(0, there["clients"], self.losses_L.index_select(0, there["lanes"]))
        self._bench.squares_M.index_copy_(0, there["clients"], self.squares_L.index_select(0, there["lanes"]))

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
        if self._settings.momentum:
            self.momenta_LP.mul_(self._settings.momentum).add_(slopes_LP)
            slopes_LP = self.momenta_LP
        self.params_LP.sub_(slopes_LP, alpha=self._settings.lr)
        self.losses_L[: self.count].add_(losses_L.detach())
        if squares_L is not None:
            self.squares_L[: self.count].add_(squares_L)


def turns(ended: Sequence[tuple[int, int, int, float]]) -> list[list[tuple[int, int, int, float]]]:
    """Split so that a turn holds every cohort at most once: sums are then added up in one order, always."""
    split: list[list[tuple[int, int, int, float]]] = []
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


def captured(work: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The same work as a CUDA graph: one launch instead of hundreds. Elsewhere the work itself."""
    if device.type != "cuda":
        return work
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
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
