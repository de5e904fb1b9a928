"""BatchNorm for batches with empty rows, whose running statistics are an input and an output of the model.

`mask` gives a model's BatchNorm layers the class of this module; their parameters, names and results stay. Which rows
hold samples is a buffer, `filled`. With `torch.func.functional_call` it is given like a parameter, and the new running
statistics are in the dictionary of parameters afterwards. Axes: B batch, C channels, S pixels.
"""

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
"""Those of torch; a subclass may have a forward pass of its own. In one process SyncBatchNorm is BatchNorm."""


class BatchNorm(nn.modules.batchnorm._BatchNorm):
    """The forward pass: in training with the mean and variance of the filled rows alone."""

    filled: Tensor  # (B,), 1 where a row is a sample and 0 where it is not
    running_mean: Any
    running_var: Any
    momentum: Any

    def forward(self, x_BCS: Tensor) -> Tensor:
        """As torch's; the counter of batches stays what it was."""
        given = x_BCS.dtype
        x_BCS, shape = x_BCS.to(self.running_mean.dtype), (1, -1, *[1] * (x_BCS.dim() - 2))
        if not self.training:
            centred_BCS, var_C = x_BCS - self.running_mean.view(shape), self.running_var
        else:
            axes = [axis for axis in range(x_BCS.dim()) if axis != 1]
            filled_BCS = self._rows(len(x_BCS)).view(-1, *[1] * (x_BCS.dim() - 1))
            count = filled_BCS.sum() * x_BCS[0, 0].numel()
            mean_C = (x_BCS * filled_BCS).sum(axes) / count.clamp(min=1)
            centred_BCS = x_BCS - mean_C.view(shape)
            var_C = (centred_BCS.square() * filled_BCS).sum(axes) / count.clamp(min=1)
            self._update(mean_C.detach(), var_C.detach() * count / (count - 1).clamp(min=1), count.clamp(max=1))
        y_BCS: Tensor = centred_BCS * torch.rsqrt(var_C + self.eps).view(shape)
        if self.weight is not None:
            y_BCS = y_BCS * self.weight.view(shape)
        if self.bias is not None:
            y_BCS = y_BCS + self.bias.view(shape)
        return y_BCS.to(given)

    def _rows(self, count: int) -> Tensor:
        """Which of so many rows belong to samples: a sample may have several, such as its positions."""
        samples = len(self.filled)
        if count % samples:
            raise NotImplementedError(f"{type(self).__name__} gets {count} rows for a batch of {samples}")
        return self.filled[:, None].expand(-1, count // samples).reshape(-1)

    def _update(self, mean_C: Tensor, var_C: Tensor, known: Tensor) -> None:
        share = self.momentum * known  # of a batch that is empty nothing is known
        self.running_mean = self.running_mean + share * (mean_C - self.running_mean)
        self.running_var = self.running_var + share * (var_C - self.running_var)


def supported(module: nn.Module) -> dict[str, nn.Module]:
    """The BatchNorm layers by name that can have this class.

    Without running statistics the model looks at batches in evaluation; without momentum they are means of all batches
    so far; and `functional_call` does not restore a layer that has two names.
    """
    named = list(module.named_modules(remove_duplicate=False))
    names = Counter(id(layer) for _, layer in named)
    return {
        name: layer
        for name, layer in named
        if type(layer) in KINDS and names[id(layer)] == 1 and layer.track_running_stats and layer.momentum is not None
    }


def mask(module: nn.Module) -> list[str]:
    """Change the classes of a model's BatchNorm layers; the names of `filled` in each."""
    layers = supported(module)
    for layer in layers.values():
        layer.__class__ = BatchNorm
        layer.register_buffer("filled", layer.running_mean.new_ones(1), persistent=False)  # type: ignore[operator]
    return [f"{name}.filled".lstrip(".") for name in layers]
