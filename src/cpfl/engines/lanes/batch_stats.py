"""What lanes know of a model's BatchNorm layers: where their running statistics lie in a row, and how they are counted.

Axes: Q running statistics.
"""

import copy

import torch
from torch import Tensor, nn

from cpfl.errors import first_line
from cpfl.kernels import batch_norm
from cpfl.models import State
from cpfl.models.adapter import Inputs, part
from cpfl.models.layout import Layout

STATISTICS = ("running_mean", "running_var")


class BatchStats:
    """The BatchNorm layers of a model, which get the class that lanes need."""

    def __init__(self, module: nn.Module, inputs: Inputs) -> None:
        """`inputs` are those of two samples."""
        before = module.state_dict()
        self.batches: dict[str, int] = {}  # what a training step adds to the counters
        self.refusal = ""  # what the model says of a batch of one sample; empty: it takes it
        if layers := batch_norm.supported(module):
            tried = copy.deepcopy(module)
            with torch.no_grad():
                tried(inputs)
                counters = {name: value for name, value in tried.state_dict().items() if _counts(name)}
                self.batches = {name: int(value - before[name]) for name, value in counters.items()}
                try:
                    tried(part(inputs, slice(1)))
                except (ValueError, TypeError) as error:
                    self.refusal = first_line(error)
        names = [f"{name}.{key}".lstrip(".") for name in layers for key in STATISTICS]
        shapes = {name: before[name].shape for name in names}
        self.layout = Layout(shapes, sum(shape.numel() for shape in shapes.values()), {}, {}, {})
        self.filled = batch_norm.mask(module)

    def row(self, state: State, device: torch.device) -> Tensor:
        """A new row with a model's running statistics."""
        return self.layout.row(state, device) if self.layout.shapes else torch.zeros(0, device=device)

    def state(self, row_Q: Tensor, before: State, steps: int) -> State:
        """The part of a model's state that so many steps have changed; the row must not change any more."""
        return self.layout.state(row_Q) | self.counters(before, steps)

    def counters(self, before: State, steps: int) -> State:
        """The counters after so many steps."""
        return {name: before[name] + added * steps for name, added in self.batches.items()}


def _counts(name: str) -> bool:
    return name.rpartition(".")[2] == "num_batches_tracked"
