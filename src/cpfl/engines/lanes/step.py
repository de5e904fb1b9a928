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
from cpfl.problem import Problem
from cpfl.stacked import layers

WARM_UPS = 3
AT_ONCE = 16  # clients that one letter takes in or out
ALIKE = 32  # clients of one cohort that one letter takes out
MANY = 4  # from so many on they go out together

Ended = tuple[int, int, int, float]
"""A client that has ended its local work: its lane, its cohort's place, the client, its weight."""


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

    def inputs(self, rows: Tensor, plan: Tensor | None) -> Tensor:
        """Model inputs for rows of any shape; empty rows give some sample that the caller leaves out."""
        flat = rows.reshape(-1).long().clamp(min=0)  # long: places in millions of images are beyond 32 bits
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
        return self.y[rows.long().clamp(min=0)]


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
        plan = {"plan": ((count, batch, 5), np.int8)} if problem.data.augmented else {}
        self.batches = Inbox(device, rows=((count, batch), np.int32), **plan)
        self._incoming = Inbox(device, lanes=((AT_ONCE,), np.int64), places=((AT_ONCE,), np.int64))
        weights = torch.zeros(0, dtype=bench.dtype).numpy().dtype
        self._outgoing = Inbox(
            device, lanes=((AT_ONCE,), np.int64), places=((AT_ONCE,), np.int64),
            clients=((AT_ONCE,), np.int64), weights=((AT_ONCE,), weights),
        )  # fmt: skip
        alike = min(ALIKE, count)
        self._together = Inbox(
            device, lanes=((alike,), np.int64), places=((1,), np.int64),
            clients=((alike,), np.int64), weights=((alike,), weights),
        )  # fmt: skip
        self._leaf = self.params_LP.detach().requires_grad_()
        self._forward: Callable[[], Tensor] = torch.compile(self._losses, dynamic=False) if compiled else self._losses
        self.batches.there["rows"].fill_(EMPTY)
        for inbox in (
            self._incoming,
            self._outgoing,
            self._together,
        ):  # trying these out must not touch rounds that are under way
            self._empty(inbox)
            inbox.send()
        self.step: Callable[[], None] = captured(self._step, device)
        self._take_in: Callable[[], None] = captured(self._fill, device)
        self._add_up: Callable[[], None] = captured(self._harvest, device)
        self._add_alike: Callable[[], None] = captured(self._harvest_alike, device)
        for state in (self.params_LP, self.momenta_LP, self.losses_L):
            state.zero_()

    def fill(self, lanes: Sequence[int], places: Sequence[int]) -> None:
        """These lanes begin a client each, from the models of the cohorts at these places."""
        for at in range(0, len(lanes), AT_ONCE):
            part = slice(at, at + AT_ONCE)
            self._empty(self._incoming)
            letter, count = self._incoming.here, len(lanes[part])
            letter["lanes"][:count], letter["places"][:count] = lanes[part], places[part]
            self._incoming.send()
            self._take_in()

    def harvest(self, ended: Sequence[Ended]) -> None:
        """Clients that have ended join the sums of their cohorts, always in the same order."""
        cohorts: dict[int, list[Ended]] = {}
        for client in ended:
            cohorts.setdefault(client[1], []).append(client)
        large = [clients for clients in cohorts.values() if len(clients) >= MANY]
        size = len(self._together.here["lanes"])
        for clients in large:
            for at in range(0, len(clients), size):
                self._send(self._together, clients[at : at + size])
                self._add_alike()
        for turn in turns([client for client in ended if len(cohorts[client[1]]) < MANY]):
            self._send(self._outgoing, turn)
            self._add_up()

    def _send(self, inbox: Inbox, ended: Sequence[Ended]) -> None:
        self._empty(inbox)
        letter = inbox.here
        for name, column in zip(("lanes", "places", "clients", "weights"), zip(*ended, strict=True), strict=True):
            room = len(letter[name])
            letter[name][: len(ended)] = column[:room]
        inbox.send()

    def _empty(self, inbox: Inbox) -> None:
        """A letter of nobody: to the places that stay empty."""
        letter = inbox.here
        letter["lanes"][:], letter["places"][:] = self.count, len(self._bench.models_NP) - 1
        if "clients" in letter:
            letter["clients"][:], letter["weights"][:] = len(self._bench.losses_M) - 1, 0

    def _fill(self) -> None:
        lanes, places = self._incoming.there["lanes"], self._incoming.there["places"]
        self.params_LP.index_copy_(0, lanes, self._bench.models_NP.index_select(0, places))
        self.momenta_LP.index_fill_(0, lanes, 0)
        self.losses_L.index_fill_(0, lanes, 0)

    def _harvest(self) -> None:
        there, sums = self._outgoing.there, self._bench.sums_NP
        models_FP = self.params_LP.index_select(0, there["lanes"]).mul_(there["weights"][:, None])
        sums.index_copy_(0, there["places"], sums.index_select(0, there["places"]).add_(models_FP))
        self._bench.losses_M.index_copy_(0, there["clients"], self.losses_L.index_select(0, there["lanes"]))

    def _harvest_alike(self) -> None:
        there, sums = self._together.there, self._bench.sums_NP
        models_FP = self.params_LP.index_select(0, there["lanes"]).mul_(there["weights"][:, None])
        sums.index_copy_(0, there["places"], sums.index_select(0, there["places"]).add_(models_FP.sum(0, keepdim=True)))
        self._bench.losses_M.index_copy_(0, there["clients"], self.losses_L.index_select(0, there["lanes"]))

    def _losses(self) -> Tensor:
        bench, rows_LB = self._bench, self.batches.there["rows"]
        x = bench.inputs(rows_LB, self.batches.there.get("plan"))
        mask_LB = (rows_LB != EMPTY).to(x.dtype)
        params = bench.layout.views(self._leaf[: self.count])
        losses_LB = vmap(bench.losses)(params, x, bench.labels(rows_LB))
        return (losses_LB * mask_LB).sum(1) / mask_LB.sum(1).clamp(min=1)

    def _step(self) -> None:
        losses_L = self._forward()
        (slopes_LP,) = torch.autograd.grad(losses_L.sum(), self._leaf)  # lanes share nothing: each gets its own
        if self._settings.momentum:
            self.momenta_LP.mul_(self._settings.momentum).add_(slopes_LP)
            slopes_LP = self.momenta_LP
        self.params_LP.sub_(slopes_LP, alpha=self._settings.lr)
        self.losses_L[: self.count].add_(losses_L.detach())


def turns(ended: Sequence[Ended]) -> list[list[Ended]]:
    """Split so that a turn holds every cohort at most once: sums are then added up in one order, always."""
    split: list[list[Ended]] = []
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
