"""The student: a model that learns the teachers' targets on public samples."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from cpfl import models
from cpfl.distillation.ensemble import Ensemble, Precision, TeacherStates, to_device
from cpfl.distillation.objective import DistillationLoss
from cpfl.distillation.views import Views
from cpfl.engines.client_training import called
from cpfl.errors import CpflError, ModelError
from cpfl.models.layout import Layout, RunningMean
from cpfl.randomness import stream
from cpfl.settings import Distillation
from cpfl.task.task import Task

BETAS, EPS = (0.9, 0.999), 1e-8  # torch.optim.Adam's own
RISE = 0.2  # share of the steps in which one-cycle's rate rises
WARM_UPS = 3  # plain steps before the step becomes a graph


@dataclass(frozen=True)
class EpochRecord:
    """One line of a distillation's records."""

    epoch: int  # counted from 1
    loss: float
    accuracy: float  # on the test set, in per cent


def train_student(
    student: nn.Module,
    views: Views,
    loss: DistillationLoss,
    settings: Distillation,
    task: Task,
    precision: Precision,
    accuracy: Callable[[nn.Module], float],
    on_epoch: Callable[[EpochRecord], None],
    pause: Callable[[], None] = lambda: None,
) -> list[EpochRecord]:
    """Adam on the public samples, epoch after epoch, each in its own order; the records of all epochs.

    `pause` is called after every step.
    """
    device, seed, samples = next(student.parameters()).device, task.experiment.seed, len(task.data.public)
    step = Step(student, views, loss, settings, precision, min(settings.batch_size, samples))
    steps = settings.epochs * math.ceil(samples / settings.batch_size)
    done, records = 0, list[EpochRecord]()
    for epoch in range(settings.epochs):
        student.train()
        views.begin(epoch)
        order = torch.from_numpy(stream(seed, "distill", epoch).permutation(samples)).to(device)
        step.total.zero_()
        with torch.random.fork_rng():
            models.seed_torch(seed, "model-epoch", epoch)
            for rows in torch.split(order, settings.batch_size):
                if settings.lr_schedule == "one-cycle":
                    step.set_lr(settings.lr * one_cycle(done / steps))
                step(rows)
                done += 1
                pause()
        total = step.total.item()
        if not math.isfinite(total):
            raise CpflError(f"the student's loss became {total} in epoch {epoch + 1}: lower distillation.lr")
        records.append(EpochRecord(epoch + 1, total / samples, accuracy(student)))
        on_epoch(records[-1])
    return records


def initial_student(task: Task, ensemble: Ensemble, teachers: TeacherStates, settings: Distillation) -> nn.Module:
    """A student as cohort models start, or with the mean of the teachers' weights, on its device."""
    student = models.fresh(task.build_student, task.experiment.seed, "student", task.data.transform.dtype)
    frozen = Layout.from_module(student).frozen
    states = [module.state_dict() for module in (student, *dict.fromkeys(ensemble.modules))]
    shapes = [{name: value.shape for name, value in state.items()} for state in states]
    matching = all(shape == shapes[0] for shape in shapes)
    matching = matching and all(state[name].cpu().equal(frozen[name]) for state in states for name in frozen)
    if settings.student_init == "mean" or (settings.student_init == "auto" and matching):
        mean, names = RunningMean(), shapes[0].keys() - frozen.keys()
        for state in teachers():
            mean.add({name: state[name] for name in names}, 1.0)
        student.load_state_dict({**frozen, **mean.result()})
    return to_device(student, task, ensemble.precision)


def one_cycle(share: float) -> float:
    """The learning rate after this share of the steps, relative to its maximum: up linearly, down along a cosine."""
    if share < RISE:
        return share / RISE
    return 0.5 * (1 + math.cos(math.pi * (share - RISE) / (1 - RISE)))


class Adam:
    """What a distillation on a CPU needs of torch.optim.Adam, bit by bit the same, by torch's own function.

    torch.optim.Adam loads torch's compiler before its first step: seconds, more than a small run takes.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        self.lr = lr
        self._states = [(p, torch.zeros_like(p), torch.zeros_like(p), torch.tensor(0.0)) for p in parameters]

    def zero_grad(self) -> None:
        """Forget the last gradients."""
        for parameter, *_ in self._states:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter that has a gradient."""
        states = [state for state in self._states if state[0].grad is not None]
        if states:
            params, means, squares, counts = map(list, zip(*states, strict=True))
            gradients = [p.grad for p in params]
            beta1, beta2 = BETAS
            adam(
                params, gradients, means, squares, [], counts,
                amsgrad=False, beta1=beta1, beta2=beta2, lr=self.lr, weight_decay=0.0, eps=EPS, maximize=False,
            )  # fmt: skip


class Step:
    """One step of the student on a batch; on a GPU a graph from the fourth on, except for a short last batch."""

    def __init__(
        self,
        student: nn.Module,
        views: Views,
        loss: DistillationLoss,
        settings: Distillation,
        precision: Precision,
        batch: int,  # samples of a whole batch
    ) -> None:
        device = next(student.parameters()).device
        self._student, self._views, self._loss, self._precision = student, views, loss, precision
        self._on_gpu = device.type == "cuda"
        self._optimizer: Adam | torch.optim.Adam = Adam(student.parameters(), settings.lr)
        if self._on_gpu:  # a captured graph reads the rate where it lies
            self._optimizer = torch.optim.Adam(student.parameters(), settings.lr, capturable=True)
            self._lr = self._optimizer.param_groups[0]["lr"] = torch.tensor(settings.lr, device=device)
        self._rows = torch.zeros(batch, dtype=torch.int64, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None
        # cuDNN's dropout draws its state within the step, which would leave the generator unusable.
        draws = any(isinstance(part, nn.RNNBase) and part.dropout for part in student.modules())
        self._captures = self._on_gpu and not draws
        self._done = 0
        self.total = torch.zeros((), device=device)  # of the epoch: loss times samples

    def set_lr(self, lr: float) -> None:
        """Another learning rate from now on."""
        if isinstance(self._optimizer, Adam):
            self._optimizer.lr = lr
        else:
            self._lr.fill_(lr)

    def __call__(self, rows: Tensor) -> None:
        """Learn from these rows of the public set."""
        if not self._on_gpu or len(rows) < len(self._rows):
            self._step(rows)
            return
        self._rows.copy_(rows)
        if self._done < WARM_UPS:
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self._step(self._rows)
            torch.cuda.current_stream().wait_stream(side)
            self._done += 1
            return
        if self._graph is None and self._captures:
            self._capture()
        if self._graph is None:
            self._step(self._rows)
        else:
            self._graph.replay()

    def _capture(self) -> None:
        """Make the step a graph, unless the model does what no graph can hold, such as a copy from the host."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._step(self._rows)
        except (RuntimeError, ModelError):
            self._captures = False
            torch.cuda.synchronize()
        else:
            self._graph = graph

    def _step(self, rows: Tensor) -> None:
        inputs, targets = self._views.batch(rows)
        with models.arithmetic(*self._precision):
            logits = called(self._student, inputs)
        loss = self._loss(logits.to(targets.dtype), targets)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self.total += loss.detach() * len(rows)
