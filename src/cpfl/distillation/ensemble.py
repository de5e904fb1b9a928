"""The ensemble of teachers: z̃ = Σ_i p_i ⊙ z_i, and the forward passes behind it.

Axes: N cohorts, T samples, C classes.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cpfl import models
from cpfl.distillation.objective import DistillationLoss, distillation_loss, teacher_aggregation, teacher_weights
from cpfl.distillation.outputs import TeacherOutputs
from cpfl.engines.client_training import called
from cpfl.errors import SettingError
from cpfl.kernels import layers
from cpfl.models import State
from cpfl.models.adapter import Inputs, mapped, tensors
from cpfl.runs import files
from cpfl.settings import Distillation
from cpfl.task.task import Task

CHUNK = {"cuda": 4096}  # samples of a forward pass; on other devices few enough for a core's caches
SMALL_CHUNK = 128
MAX_CACHED = 2**30  # bytes of inputs that are kept for the next teacher instead of being made again

TeacherStates = Callable[[], Iterable[State]]
"""The teachers' models, one after the other: never all in memory."""

MakeInputs = Callable[[slice], Inputs]
"""The model inputs at these positions, made when they are needed."""


class Precision(NamedTuple):
    """The device of forward and backward passes, and the arithmetic there."""

    device: torch.device
    name: str

    @property
    def dtype(self) -> torch.dtype:
        """What models are stored as, and logits given as."""
        return torch.float64 if self.name == "float64" else torch.float32


def check_distillation(settings: Distillation, task: Task) -> None:
    """Refuse weights, an aggregation or a loss that cannot be used, before anything is trained or written."""
    teacher_weights(settings, task.label_counts, range(len(task.cohorts)))
    objective = task.data.objective
    loss = distillation_loss(settings, teacher_aggregation(settings, objective).probabilities, objective)
    if ":" in settings.loss:
        _check_scalar(loss, settings, task.data.answer.shape)


def _check_scalar(loss: DistillationLoss, settings: Distillation, shape: tuple[int, ...]) -> None:
    """Call a user's loss once: targets are positive with sum 1, valid in either form."""
    answer = loss(torch.zeros(2, *shape, requires_grad=True), torch.full((2, *shape), 1 / shape[-1]))
    if not isinstance(answer, Tensor) or answer.ndim:
        kind = f"shape {tuple(answer.shape)}" if isinstance(answer, Tensor) else type(answer).__name__
        raise SettingError(f"distillation.loss = {settings.loss!r} returned {kind}: a scalar tensor is needed")


def to_device(module: nn.Module, task: Task, precision: Precision) -> nn.Module:
    """The module on the device with the fastest layers; on a CPU, channels last is three times as fast."""
    kernels = models.kernel_dtype(precision.device, precision.name)
    if kernels is not None:
        fitted = layers.fit(module, kernels).to(precision.device)
        inputs = mapped(lambda x: x.to(precision.device), task.data.inputs(2))
        with models.arithmetic(*precision):
            return fitted if models.takes(fitted, inputs) else module.to(precision.device)
    if precision.device.type == "cpu" and precision.name != "float64":
        convolutions = [part for part in module.modules() if isinstance(part, nn.Conv2d)]
        inputs = task.data.inputs(2)
        for order in (torch.channels_last, torch.contiguous_format):
            for part in convolutions:
                part.to(memory_format=order)  # type: ignore[call-overload]
            if models.takes(module, inputs):
                break
    return module.to(precision.device)


class Chunks:
    """Inputs in the pieces that a forward pass takes, cached where they are few."""

    def __init__(self, count: int, inputs: MakeInputs, precision: Precision, key: Hashable = None) -> None:
        """`key` names what they show of a task, for answers that are remembered; None: they are not."""
        self.precision, self.key, self._inputs, self._count = precision, key, inputs, count
        self._size = CHUNK.get(precision.device.type, SMALL_CHUNK)
        self._cached: list[Inputs] = []  # the first ones

    def __iter__(self) -> Iterator[Inputs]:
        yield from self._cached
        free = MAX_CACHED - sum(map(_bytes, self._cached))
        for start in range(len(self._cached) * self._size, self._count, self._size):
            inputs = self._inputs(slice(start, min(start + self._size, self._count)))
            free -= _bytes(inputs)
            if free >= 0:
                self._cached.append(inputs)
            yield inputs


def _bytes(inputs: Inputs) -> int:
    return sum(value.nbytes for value in tensors(inputs))


@torch.no_grad()
def logits_of(module: nn.Module, inputs: Chunks) -> Tensor:
    """A model's logits z on all these inputs, (T, C); whatever it answers, for another objective."""
    module.eval()
    with models.arithmetic(*inputs.precision):
        # Copies: what one model writes into its inputs, the next one must not see.
        return torch.cat([called(module, mapped(Tensor.clone, x)).to(inputs.precision.dtype) for x in inputs])


class Ensemble:
    """The teachers of some cohorts, and what they predict together."""

    def __init__(
        self,
        task: Task,
        cohorts: Sequence[int],
        settings: Distillation,
        precision: Precision,
        weights_NC: NDArray[np.float64] | None = None,  # if they are known already
        outputs: TeacherOutputs | None = None,  # what teachers answered in other distillations of the task
    ) -> None:
        self.cohorts, self.precision, self._outputs = cohorts, precision, outputs
        self.aggregation = teacher_aggregation(settings, task.data.objective)
        self.weights_NC = teacher_weights(settings, task.label_counts, cohorts) if weights_NC is None else weights_NC
        self._weights_NO = task.data.objective.output_weights(self.weights_NC)
        self.modules: list[nn.Module] = []
        built: dict[int, nn.Module] = {}  # cohorts that train the same model share one module
        self._builds = [task.for_cohort(cohort).build for cohort in cohorts]
        for build in self._builds:
            if id(build) not in built:
                module = models.fresh(build, task.experiment.seed, "init", task.data.transform.dtype)
                built[id(build)] = to_device(module, task, precision)
            self.modules.append(built[id(build)])

    def terms(self, teachers: Iterable[State], inputs: Sequence[Chunks]) -> Iterator[tuple[Tensor, Tensor]]:
        """Teacher by teacher: its logits z_i on the first inputs, and its term p_i ⊙ z_i of the weighted sum.

        Several inputs show the same samples; the mean of the outputs counts.
        """
        for k, (module, state, weight_O) in enumerate(zip(self.modules, teachers, self._weights_NO, strict=True)):
            module.load_state_dict(state)
            logits = self._logits(k, state, inputs)
            output = torch.stack([self.aggregation.teacher_output(z) for z in logits]).mean(dim=0)
            yield logits[0], output * torch.as_tensor(weight_O, dtype=output.dtype, device=output.device)

    def _logits(self, k: int, state: State, inputs: Sequence[Chunks]) -> list[Tensor]:
        """The k-th teacher's logits on these inputs; its model is loaded."""
        module, device = self.modules[k], self.precision.device
        if self._outputs is None:
            return [logits_of(module, each) for each in inputs]
        assert all(each.key is not None for each in inputs), "what is remembered has a name"
        teacher = id(self._builds[k]), files.tensors_checksum(state)
        return [
            self._outputs.logits((teacher, each.key, self.precision), partial(logits_of, module, each)).to(device)
            for each in inputs
        ]

    def __call__(self, teachers: Iterable[State], *inputs: Chunks) -> Tensor:
        """The targets z̃ = Σ_i p_i ⊙ z_i, one teacher after the other: never N × T × C numbers at once."""
        total: Tensor | None = None
        for _, term in self.terms(teachers, inputs):
            total = term if total is None else total + term
        assert total is not None, "there is always a teacher"
        return self.aggregation.targets(total)
