"""A model as lanes run it: the losses of many rows of its parameters at once, in training and in evaluation.

Axes: L lanes (or models that are evaluated together), B batch, P parameters.
"""

import copy
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from cpfl import models
from cpfl.kernels import layers, recurrent
from cpfl.models.adapter import Inputs, mapped
from cpfl.models.layout import Layout
from cpfl.task.task import Task


class PaddedEmbedding(nn.Embedding):
    """The same numbers and gradients: torch's own, under vmap, trains the vector of the padding too."""

    def forward(self, x: Tensor) -> Tensor:
        """The vectors of tokens; that of the padding is constant."""
        padding = torch.arange(self.num_embeddings, device=x.device).eq(self.padding_idx or 0)
        weight = torch.where(padding[:, None], self.weight.detach(), self.weight)
        return nn.functional.embedding(x, weight, None, self.max_norm, self.norm_type, self.scale_grad_by_freq)


class LaneModel:
    """The module with the layers that lanes need, and everything in it that is no trained parameter."""

    def __init__(self, task: Task, device: torch.device) -> None:
        self._precision, self._device, self._dtype = task.experiment.precision, device, task.data.transform.dtype
        module = models.fresh(task.build, task.experiment.seed, "init", self._dtype).to(device).train()
        self.layout = Layout.from_module(module)
        # Layers that vmap takes lane by lane are slower, and as good.
        torch._C._functorch._set_vmap_fallback_warning_enabled(False)  # type: ignore[attr-defined]
        # A loop over time would take minutes to compile; captured as it is, it is one launch too.
        self.compiles = not recurrent.unroll(module)
        for part in module.modules():
            if type(part) is nn.Embedding and part.padding_idx is not None:
                part.__class__ = PaddedEmbedding
        kernels, pair = models.kernel_dtype(device, self._precision), (module, copy.deepcopy(module).eval())
        if kernels is not None:
            fitted = layers.fit(pair[0], kernels), layers.fit(pair[1], kernels)
            inputs = mapped(lambda x: x.to(device), task.data.inputs(2))
            with models.arithmetic(device, self._precision):
                pair = fitted if models.takes(fitted[1], inputs) else pair
        self.module, self.eval_module = pair
        self._constant = {**self.layout.frozen, **self.layout.buffers}

    def losses(self, params_LP: Tensor, x: Inputs, y: Tensor) -> Tensor:
        """The loss of each row of parameters on each of its samples in training, (L, B)."""
        with sdpa_kernel(SDPBackend.MATH):  # the others want aligned lanes, and add up in any order
            return vmap(partial(self._losses, self.module))(self.layout.views(params_LP), x, y)

    @torch.no_grad()
    def evaluation_losses(self, params_LP: Tensor, x: Inputs, y: Tensor) -> Tensor:
        """The same in evaluation."""
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # its kernels read beside rows that are not aligned
        try:
            with sdpa_kernel(SDPBackend.MATH):
                return vmap(partial(self._losses, self.eval_module))(self.layout.views(params_LP), x, y)
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)

    def _losses(self, module: nn.Module, params: dict[str, Tensor], x: Inputs, y: Tensor) -> Tensor:
        with models.arithmetic(self._device, self._precision):
            logits = functional_call(module, {**params, **self._constant}, (x,))
        return nn.functional.cross_entropy(logits.to(self._dtype), y, reduction="none")
