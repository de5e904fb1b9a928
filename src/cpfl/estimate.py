"""What a run will cost: time, memory and disk, estimated before it starts."""

import time

import torch
from torch import nn

from cpfl import models
from cpfl.distillation.views import augmentation, labelled_views
from cpfl.engines.client_training import called
from cpfl.federation import local_training, optimizers
from cpfl.federation.selection.base import participants_per_round
from cpfl.models import adapter
from cpfl.task.task import Task

TRIALS = 6  # the first ones allocate; of the others the fastest counts, where other programs disturb
MOST = 256  # samples of a batch that is timed
PROGRAM_BYTES = 300_000_000  # the interpreter and torch


def estimate(task: Task, device: torch.device) -> str:
    """One line for a person, from the sizes of the work and, on a CPU, a few timed steps on this machine."""
    experiment, data = task.experiment, task.data
    federation, cohorts = experiment.federation, experiment.cohorts
    steps = 0.0  # mini-batches in one round of all cohorts
    for clients in task.cohorts:
        share = participants_per_round(federation, len(clients)) / len(clients)
        steps += share * float(local_training.all_steps(federation, data.clients.training_sizes[clients]).sum())
    model = sum(value.numel() * value.element_size() for value in task.start.values())
    all_clients = task.layout().size * task.data.transform.dtype.itemsize * experiment.clients
    states = all_clients if optimizers.client_optimizer(federation).has_client_state else 0
    updates = all_clients if optimizers.server_optimizer(federation).needs_all_models else 0
    samples = data.train.x.nbytes + data.test.x.nbytes + data.public.x.nbytes
    memory = 2 * (samples + states) + updates + 4 * model * cohorts + PROGRAM_BYTES
    disk = (1 + 5 * cohorts) * model + 2 * states  # start; each cohort's teacher and two checkpoints of two models
    storage = f"{_size(memory)} of memory, {_size(disk)} of disk"
    if experiment.snapshots:
        storage += f" + {_size(model * cohorts)} a snapshot"
    if device.type == "cuda":  # timing plain steps says nothing of lanes
        return f"{steps:,.0f} steps in a round of all cohorts, {storage}"
    step, distillation = _seconds(task, device)
    rounds = min(experiment.max_rounds, experiment.stopping.rounds if experiment.stopping.rule == "rounds" else 100)
    return (
        f"about {_duration(steps * step * rounds)} for {rounds} rounds of all cohorts "
        f"({steps:,.0f} steps each), {_duration(distillation)} to distill, {storage}"
    )


def _seconds(task: Task, device: torch.device) -> tuple[float, float]:
    """Of a training step, and of the distillation."""
    experiment, data, distillation = task.experiment, task.data, task.experiment.distillation
    module = models.fresh(task.build, experiment.seed, "init", data.transform.dtype).to(device).eval()
    with models.threads(1):  # as engines do
        largest = local_training.largest_batch(experiment.federation, int(data.clients.training_sizes.max()))
        step = _timed(task, module, device, largest)
    batch = max(1, min(distillation.batch_size, len(data.public), len(data.train), MOST))
    with models.threads_for(task.start):  # as the student does: threads of a small model would wait for each other
        per_sample = _timed(task, module, device, batch) / batch
    teachers = experiment.cohorts if experiment.cohorts > 1 and not experiment.merges else 0
    passes = teachers * labelled_views(distillation, experiment.data.augment)
    if distillation.flip_average and augmentation(distillation, experiment.data.augment) != "none":
        passes *= 2
    # A forward pass is about a third of a training step.
    public = len(data.public) * per_sample * (passes / 3 + (distillation.epochs if teachers else 0))
    test = len(data.test) * per_sample / 3 * (teachers + distillation.epochs if teachers else 2)
    return step, public + test


def _timed(task: Task, module: nn.Module, device: torch.device, size: int) -> float:
    data = task.data
    x = data.transform(torch.as_tensor(data.train.x[:size].copy()).to(device))
    y = torch.as_tensor(data.train.y)[: adapter.size(x)].to(device)
    params, seconds = list(module.parameters()), []
    for _ in range(TRIALS):
        began = time.perf_counter()
        loss = task.data.objective.loss(called(module, x), y)
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
