"""A model as lanes run it: the losses of many rows of its parameters at once, in training and in evaluation.

Axes: L lanes (or models that are evaluated together), B batch, P parameters, Q running statistics of BatchNorm.
"""

import copy

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from cpfl import models
from cpfl.engines.client_training import called
from cpfl.engines.lanes.batch_stats import BatchStats
from cpfl.kernels import layers, recurrent
from cpfl.models import State
from cpfl.models.adapter import Inputs, mapped
from cpfl.models.layout import Layout
from cpfl.task.task import Task


class LaneEmbedding(nn.Embedding):
    """The same numbers and gradients. torch's own, under vmap, trains the vector of the padding too, and reads that of
    a token which it does not have from another lane: here such a vector is not a number."""

    def forward(self, x: Tensor) -> Tensor:
        """The vectors of tokens; that of the padding is constant."""
        weight, count = self.weight, self.num_embeddings
        if self.padding_idx is not None:
            padding = torch.arange(count, device=x.device).eq(self.padding_idx)
            weight = torch.where(padding[:, None], weight.detach(), weight)
        found = nn.functional.embedding(x.clamp(0, count - 1), weight, scale_grad_by_freq=self.scale_grad_by_freq)
        return torch.where(((x >= 0) & (x < count)).unsqueeze(-1), found, torch.nan)


class LaneModel:
    """The module with the layers that lanes need, and everything in it that is no trained parameter."""

    def __init__(self, task: Task, device: torch.device) -> None:
        self._precision, self._device, self._dtype = task.experiment.precision, device, task.data.transform.dtype
        self._objective = task.data.objective
        module = models.fresh(task.build, task.experiment.seed, "init", self._dtype).to(device).train()
        self.layout = Layout.from_module(module)
        # Layers that vmap takes lane by lane are slower, and as good.
        torch._C._functorch._set_vmap_fallback_warning_enabled(False)  # type: ignore[attr-defined]
        inputs = mapped(lambda x: x.to(device), task.data.inputs(2))
        self.stats = BatchStats(module, inputs)
        # A loop over time would take minutes to compile and seconds to record; captured as it is, it is one launch too.
        self.is_short = not recurrent.unroll(module)
        for part in module.modules():
            if type(part) is nn.Embedding:
                part.__class__ = LaneEmbedding
        kernels, pair = models.kernel_dtype(device, self._precision), (module, copy.deepcopy(module).eval())
        if kernels is not None:
            fitted = layers.fit(pair[0], kernels), layers.fit(pair[1], kernels)
            with models.arithmetic(device, self._precision):
                pair = fitted if models.takes(fitted[1], inputs) else pair
        self.module, self.eval_module = pair
        changing = {*self.stats.layout.shapes, *self.stats.batches}
        buffers = {name: value for name, value in self.layout.buffers.items() if name not in changing}
        self._constant = {**self.layout.frozen, **buffers}

    def losses(self, params: State, stats_LQ: Tensor, x: Inputs, y: Tensor, filled_LB: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of each lane's parameters on each of its samples in training, (L, B), and new running statistics.

        Only where a row of the batch is `filled`, 1 and not 0, its sample counts in statistics; its loss is any number.
        """

        def lane(params: State, stats: State, x: Inputs, y: Tensor, filled_B: Tensor) -> tuple[Tensor, list[Tensor]]:
            state = {**params, **stats, **self._constant, **dict.fromkeys(self.stats.filled, filled_B)}
            losses_B = self._losses(self.module, state, x, y)
            return losses_B, [state[name] for name in stats]

        stats = self.stats.layout.views(stats_LQ)
        with sdpa_kernel(SDPBackend.MATH):  # the others want aligned lanes, and add up in any order
            losses_LB, found = vmap(lane)(params, stats, x, y, filled_LB)
        return losses_LB, torch.cat(found, 1) if found else stats_LQ

    @torch.no_grad()
    def evaluation_losses(self, params_LP: Tensor, stats_LQ: Tensor, x: Inputs, y: Tensor) -> Tensor:
        """The same in evaluation."""
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # its kernels read beside rows that are not aligned
        try:
            with sdpa_kernel(SDPBackend.MATH):
                views = self.layout.views(params_LP) | self.stats.layout.views(stats_LQ)
                return vmap(self._evaluated)(views, x, y)
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)

    def _evaluated(self, state: State, x: Inputs, y: Tensor) -> Tensor:
        return self._losses(self.eval_module, state | self._constant, x, y)

    def _losses(self, module: nn.Module, state: State, x: Inputs, y: Tensor) -> Tensor:
        """The losses of one row; where layers renew their running statistics, these are in `state` afterwards."""
        with models.arithmetic(self._device, self._precision):
            if self._device.type == "cpu":
                logits = called(lambda x: functional_call(module, state, (x,)), x)
            else:  # compiled, and captured: errors come later
                logits = functional_call(module, state, (x,))
        return self._objective.losses(logits.to(self._dtype), y)
