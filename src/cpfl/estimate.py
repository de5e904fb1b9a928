"""What a run will cost: time, memory and disk, estimated before it starts."""

import time
from dataclasses import dataclass

import torch
from torch import nn

from cpfl import models
from cpfl.distillation.views import augmentation, labelled_views
from cpfl.federation import local_training, optimizers
from cpfl.federation.selection.base import participants_per_round
from cpfl.settings import Experiment
from cpfl.task.task import Task

TRIALS = 4


@dataclass(frozen=True)
class Estimate:
    """Costs of one round of all cohorts, of the distillation, and of storage."""

    steps: float  # mini-batches in one round of all cohorts
    round_seconds: float | None  # None on a GPU: timing plain steps says nothing of lanes
    distillation_seconds: float | None
    memory_bytes: int
    disk_bytes: int  # without snapshots
    snapshot_bytes: int  # one snapshot of all cohorts

    def sentence(self, experiment: Experiment) -> str:
        """One line for a person."""
        rounds = min(experiment.max_rounds, experiment.stopping.rounds if experiment.stopping.rule == "rounds" else 100)
        snapshots = f" + {_size(self.snapshot_bytes)} a snapshot" if experiment.snapshots else ""
        storage = f"{_size(self.memory_bytes)} of memory, {_size(self.disk_bytes)} of disk{snapshots}"
        if self.round_seconds is None or self.distillation_seconds is None:
            return f"{self.steps:,.0f} steps in a round of all cohorts, {storage}"
        return (
            f"about {_duration(self.round_seconds * rounds)} for {rounds} rounds of all cohorts "
            f"({self.steps:,.0f} steps each), {_duration(self.distillation_seconds)} to distill, {storage}"
        )


def estimate(task: Task, device: torch.device) -> Estimate:
    """From the sizes of the work and, on a CPU, a few timed steps on this machine."""
    experiment, data = task.experiment, task.data
    sizes = data.clients.training_sizes
    steps = 0.0
    for clients in task.cohorts:
        share = participants_per_round(experiment.federation, len(clients)) / len(clients)
        steps += share * float(local_training.all_steps(experiment.federation, sizes[clients]).sum())
    training, distilling = (None, None) if device.type == "cuda" else _seconds(task, device)
    model = sum(value.numel() * value.element_size() for value in task.start.values())
    client_optimizer, server_optimizer = (
        optimizers.client_optimizer(experiment.federation),
        optimizers.server_optimizer(experiment.federation),
    )
    rows = (
        model * experiment.clients if client_optimizer.has_client_state else 0
    )  # and twice on disk, with two checkpoints
    updates = model * experiment.clients if server_optimizer.needs_all_models else 0
    held = data.train.x.nbytes + data.test.x.nbytes + data.public.x.nbytes
    return Estimate(
        steps=steps,
        round_seconds=None if training is None else steps * training,
        distillation_seconds=distilling,
        memory_bytes=2 * (held + rows)
        + updates
        + 4 * model * experiment.cohorts
        + 300_000_000,  # the interpreter, torch
        disk_bytes=(1 + 5 * experiment.cohorts) * model + 2 * rows,  # start; teacher and two checkpoints of two models
        snapshot_bytes=model * experiment.cohorts,
    )


def _seconds(task: Task, device: torch.device) -> tuple[float, float]:
    """Of a training step, and of the distillation."""
    experiment, data = task.experiment, task.data
    module = models.fresh(task.build, experiment.seed, "init", data.transform.dtype).to(device).eval()
    with models.threads(1):  # as engines do
        step = _timed(task, module, device, experiment.federation.batch_size)
    batch = min(experiment.distillation.batch_size, len(data.public), 64)
    per_sample = _timed(task, module, device, batch) / batch
    teachers = experiment.cohorts if experiment.cohorts > 1 else 0
    passes = teachers * labelled_views(experiment.distillation, experiment.data.augment)
    if (
        experiment.distillation.flip_average
        and augmentation(experiment.distillation, experiment.data.augment) != "none"
    ):
        passes *= 2
    # A forward pass is about a third of a training step.
    public = len(data.public) * per_sample * (passes / 3 + (experiment.distillation.epochs if teachers else 0))
    test = len(data.test) * per_sample / 3 * (teachers + experiment.distillation.epochs if teachers else 2)
    return step, public + test


def _timed(task: Task, module: nn.Module, device: torch.device, size: int) -> float:
    data = task.data
    x = data.transform(torch.as_tensor(data.train.x[:size]).to(device))
    y = torch.as_tensor(data.train.y)[: len(x)].to(device)
    params, seconds = list(module.parameters()), []
    for _ in range(TRIALS):
        began = time.perf_counter()
        loss = nn.functional.cross_entropy(module(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():  # torch.optim would load torch's compiler, seconds before the first step
            for param in params:
                if param.grad is not None:
                    param.sub_(param.grad, alpha=1e-6)
                param.grad = None
        loss.item()  # waits for a device
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def _duration(seconds: float) -> str:
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def _size(count: float) -> str:
    for size, unit in ((1e9, "GB"), (1e6, "MB")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1e3:.0f} kB"
