"""The step that advances all lanes, and the look that judges cohort models. On a GPU both are captured as graphs.

Whatever a captured graph reads keeps its address for life: all tensors here are made once and only written into.
Axes: L lanes, S steps, B batch, P parameters, V models judged at once, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from cpfl.engines.lanes.plans import EMPTY
from cpfl.engines.lanes.stack import Layout
from cpfl.problem import Problem

WARM_UPS = 3


class Samples:
    """The training set on the device."""

    def __init__(self, problem: Problem, device: torch.device) -> None:
        self.x = torch.as_tensor(problem.data.train.x).to(device)
        self.y = torch.as_tensor(problem.data.train.y).to(device)
        self._transform = problem.data.transform

    def inputs(self, rows: Tensor, plan: Tensor | None) -> Tensor:
        """Model inputs for rows of any shape; empty rows give some sample that the caller leaves out."""
        flat = rows.reshape(-1).clamp(min=0)
        augmentation = None if plan is None else plan.reshape(-1, plan.shape[-1]).long()
        x = self._transform(self.x[flat], augmentation)
        return x.reshape(*rows.shape, *x.shape[1:])

    def labels(self, rows: Tensor) -> Tensor:
        """Labels for rows of any shape."""
        return self.y[rows.clamp(min=0)]


class Lanes:
    """L clients in training: their parameters, momenta, plans and losses."""

    def __init__(
        self,
        problem: Problem,
        module: nn.Module,
        layout: Layout,
        samples: Samples,
        count: int,
        steps: int,
        compiled: bool,
    ) -> None:
        device, dtype = samples.x.device, problem.data.transform.dtype
        settings = problem.experiment.federation
        self.count = count
        self.params_LP = torch.zeros(count, layout.size, dtype=dtype, device=device)
        self.momenta_LP = torch.zeros_like(self.params_LP)
        self.losses_L = torch.zeros(count, dtype=dtype, device=device)
        self.at_L = torch.zeros(count, dtype=torch.long, device=device)
        self.rows_LSB = torch.full((count, steps, settings.batch_size), EMPTY, dtype=torch.int32, device=device)
        augmented = problem.data.augmented
        self.plan_LSB5 = torch.zeros(*self.rows_LSB.shape, 5, dtype=torch.int8, device=device) if augmented else None
        self._lane = torch.arange(count, device=device)
        self._layout, self._samples, self._settings = layout, samples, settings
        self._each = vmap(grad_and_value(self._loss(module, problem.experiment.precision)))
        self._slopes: Callable[..., tuple[Tensor, Tensor]] = (
            torch.compile(self._gradients, dynamic=False) if compiled else self._gradients
        )
        self.step: Callable[[], None] = captured(self._step, device)

    def _loss(self, module: nn.Module, precision: str) -> Callable[..., Tensor]:
        def loss(params: dict[str, Tensor], x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
            with autocast(x.device, precision):
                logits = functional_call(module, {**params, **self._layout.buffers}, (x,))
            each = nn.functional.cross_entropy(logits.to(x.dtype), y, reduction="none")
            return (each * mask).sum() / mask.sum().clamp(min=1)

        return loss

    def _gradients(self, params_LP: Tensor, rows_LB: Tensor, plan_LB5: Tensor | None) -> tuple[Tensor, Tensor]:
        x = self._samples.inputs(rows_LB, plan_LB5)
        mask = (rows_LB != EMPTY).to(x.dtype)
        gradients, losses_L = self._each(self._layout.views(params_LP), x, self._samples.labels(rows_LB), mask)
        return torch.cat([gradients[name].reshape(self.count, -1) for name in self._layout.names], dim=1), losses_L

    def _step(self) -> None:
        at = self.at_L.clamp(max=self.rows_LSB.shape[1] - 1)
        rows_LB = self.rows_LSB[self._lane, at]
        plan_LB5 = None if self.plan_LSB5 is None else self.plan_LSB5[self._lane, at]
        slopes_LP, losses_L = self._slopes(self.params_LP, rows_LB, plan_LB5)
        if self._settings.momentum:
            self.momenta_LP.mul_(self._settings.momentum).add_(slopes_LP)
            slopes_LP = self.momenta_LP
        self.params_LP.sub_(slopes_LP, alpha=self._settings.lr)
        self.losses_L.add_(losses_L)
        self.at_L.add_(1)


class Judge:
    """Losses of V models at once on validation samples."""

    def __init__(
        self,
        problem: Problem,
        module: nn.Module,
        layout: Layout,
        samples: Samples,
        models: int,
        batch: int,
    ) -> None:
        device, dtype = samples.x.device, problem.data.transform.dtype
        self.models, self.batch = models, batch
        self.params_VP = torch.zeros(models, layout.size, dtype=dtype, device=device)
        self.rows_VB = torch.full((models, batch), EMPTY, dtype=torch.int32, device=device)
        self.losses_VB = torch.zeros(models, batch, dtype=dtype, device=device)
        self.plan_VB5 = None
        if problem.data.augmented and problem.experiment.data.augment_validation:
            self.plan_VB5 = torch.zeros(models, batch, 5, dtype=torch.int8, device=device)

        def losses(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            with autocast(x.device, problem.experiment.precision):
                logits = functional_call(module, {**params, **layout.buffers}, (x,))
            return nn.functional.cross_entropy(logits.to(x.dtype), y, reduction="none")

        each = vmap(losses)

        @torch.no_grad()
        def look() -> None:
            x = samples.inputs(self.rows_VB, self.plan_VB5)
            self.losses_VB.copy_(each(layout.views(self.params_VP), x, samples.labels(self.rows_VB)))

        self.look: Callable[[], None] = captured(look, device)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """bf16 arithmetic where it is asked for; parameters stay in full precision."""
    if precision != "bf16":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


def captured(work: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The same work as a CUDA graph: one launch instead of hundreds. Elsewhere the work itself."""
    if device.type != "cuda":
        return work
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            work()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay
