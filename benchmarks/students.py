"""Would students train faster as lanes of one batched step, than one after the other or on streams of their own?

A step of each student is its forward and backward pass and Adam, on its own batch: GN-LeNet, as in `cifar10`, or the
perceptron of `digits`. On a GPU each way is a graph, and lanes have the kernels of clients in training. All ways start
from the same models; after some steps they must agree (in float64 to 1e-9).

python benchmarks/students.py --out students.json
python benchmarks/students.py --model mlp --device cpu --precision float32 --students 12 --out students.json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from cpfl import models
from cpfl.distillation import student
from cpfl.engines.create import torch_device
from cpfl.engines.lanes.graphs import captured, faster, recorded
from cpfl.kernels import layers
from cpfl.models.layout import Layout

MODELS: dict[str, tuple[Callable[..., nn.Module], tuple[int, ...]]] = {
    "gn-lenet": (models.gn_lenet, (3, 32, 32)),
    "mlp": (models.mlp, (1, 8, 8)),
}
CLASSES, LR, SERIES = 10, 1e-3, 5
PRECISIONS = ("float64", "float32", "tf32", "bf16")
ROUNDING = 1e-9  # of float64, in parameters after STEPS steps; else Adam makes whole steps of what is only rounding
STEPS = 3


class Students:
    """The same students and batches for every way."""

    def __init__(self, words: argparse.Namespace, device: torch.device) -> None:
        make, shape = MODELS[words.model]
        self.device, self.precision, self.count = device, words.precision, words.students
        self.dtype = torch.float64 if words.precision == "float64" else torch.float32
        self.modules = [
            models.fresh(lambda: make(shape, CLASSES), seed, "student", self.dtype).to(device)
            for seed in range(self.count)
        ]
        draw = torch.Generator().manual_seed(0)
        self.x = torch.rand(self.count, words.batch, *shape, generator=draw, dtype=self.dtype).to(device)
        logits = torch.randn(self.count, words.batch, CLASSES, generator=draw, dtype=self.dtype)
        self.targets = torch.softmax(logits, -1).to(device)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean over the batch; of every student, if there are several."""
        losses = (targets * (targets.log() - torch.log_softmax(logits.to(self.dtype), -1))).sum(-1)
        return losses.mean(-1)

    def adam(self, parameters: list[Tensor]) -> Any:
        """As a student has it."""
        if self.device.type == "cuda":
            return torch.optim.Adam(parameters, LR, capturable=True)
        return student.Adam(parameters, LR)  # type: ignore[arg-type]

    def fitted(self, module: nn.Module) -> nn.Module:
        """With the kernels of this device and precision, if there are any."""
        kernels = models.kernel_dtype(self.device, self.precision)
        return module if kernels is None else layers.fit(module, kernels)

    def step_of(self, number: int) -> Callable[[], None]:
        """The step of one student by itself."""
        module, x, targets = self.fitted(self.modules[number]), self.x[number], self.targets[number]
        optimizer = self.adam([*module.parameters()])

        def step() -> None:
            with models.arithmetic(self.device, self.precision):
                logits = module(x)
            optimizer.zero_grad()
            self.loss(logits, targets).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        return step

    def one_after_the_other(self) -> Callable[[], None]:
        """A graph for each."""
        steps = [captured(self.step_of(number), self.device) for number in range(self.count)]

        def work() -> None:
            for step in steps:
                step()

        return work

    def on_streams(self) -> Callable[[], None]:
        """The same graphs, at the same time."""
        steps = [captured(self.step_of(number), self.device) for number in range(self.count)]
        streams = [torch.cuda.Stream(self.device) for _ in steps]  # type: ignore[no-untyped-call]

        def work() -> None:
            main = torch.cuda.current_stream(self.device)
            for step, stream in zip(steps, streams, strict=True):
                stream.wait_stream(main)
                with torch.cuda.stream(stream):
                    step()
            for stream in streams:
                main.wait_stream(stream)

        return work

    def in_lanes(self) -> Callable[[], None]:
        """One graph of one batched step."""
        module, layout = self.modules[0], Layout.from_module(self.modules[0])
        rows = torch.stack([layout.row(models.state_of(one), self.device) for one in self.modules]).requires_grad_()
        own, optimizer = self.fitted(module), self.adam([rows])

        def losses(rows: Tensor, x: Tensor, targets: Tensor) -> Tensor:
            def lane(state: models.State, x: Tensor) -> Tensor:
                with models.arithmetic(self.device, self.precision):
                    logits: Tensor = functional_call(own, state, (x,))
                return logits

            return self.loss(vmap(lane)(layout.views(rows), x), targets)

        forward = faster(losses) if self.device.type == "cuda" else losses

        def gradients(rows: Tensor, x: Tensor, targets: Tensor) -> Tensor:
            return torch.autograd.grad(forward(rows, x, targets).sum(), rows)[0]

        found = recorded(gradients) if self.device.type == "cpu" else gradients

        def step() -> None:
            rows.grad = found(rows, self.x, self.targets)
            optimizer.step()

        self.rows, self.layout = rows, layout
        return captured(step, self.device)


def seconds(work: Callable[[], None], device: torch.device, repeat: int) -> float:
    """Of one call, the best of some series."""
    best = float("inf")
    for _ in range(SERIES):
        began = time.perf_counter()
        for _ in range(repeat):
            work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - began) / repeat)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="gn-lenet")
    parser.add_argument("--precision", choices=PRECISIONS, default="bf16")
    parser.add_argument("--students", type=int, default=16)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    words = parser.parse_args()
    device = torch_device(words.device)
    models.choose_arithmetic(words.precision)
    single, lanes = Students(words, device), Students(words, device)
    if all(parameter.dim() < 3 for parameter in single.modules[0].parameters()):
        torch.set_num_threads(1)  # as a student has it without convolutions
    ways = {"one after the other": single.one_after_the_other(), "in lanes": lanes.in_lanes()}
    for _ in range(STEPS):  # after the same warm-ups, which train too
        for work in ways.values():
            work()
    found = [lanes.layout.row(models.state_of(one), device) for one in single.modules]
    apart = (torch.stack(found) - lanes.rows.detach()).abs().max().item()
    if device.type == "cuda":
        ways["on streams"] = Students(words, device).on_streams()
    took = {name: seconds(work, device, words.repeat) for name, work in ways.items()}
    outcome = {
        "machine": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        **{key: getattr(words, key) for key in ("model", "precision", "students", "batch")},
        "milliseconds of a step of all": {name: round(1000 * value, 3) for name, value in took.items()},
        "times as fast": {name: round(took["one after the other"] / value, 2) for name, value in took.items()},
        "parameters apart": apart,
        "ok": words.precision != "float64" or apart <= ROUNDING,
    }
    words.out.write_text(json.dumps(outcome, indent=1) + "\n")
    print(json.dumps(outcome, indent=1))
    sys.exit(not outcome["ok"])


if __name__ == "__main__":
    main()
