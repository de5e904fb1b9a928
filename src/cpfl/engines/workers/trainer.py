"""The work of one process: train one client, or evaluate a model on some clients' validation samples.

The arithmetic of the reference engine in the order that is fastest on a CPU: channels last, parameters and momentum as
one row each, bf16 where the experiment says so.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from cpfl import models
from cpfl.engines.client_training import ClientTrainer
from cpfl.engines.workers.model_rows import ModelRow, bind, model_rows
from cpfl.engines.workers.sequential import sequential_step
from cpfl.models.layout import Layout
from cpfl.task.task import Task

SMALL = 2**26  # bytes of samples of which every worker may have a copy, channels last: indexing is faster


@dataclass(frozen=True)
class Job:
    """A client to train, or a model to evaluate on some clients' validation samples."""

    kind: Literal["train", "evaluate"]
    cohort: int
    clients: tuple[int, ...]
    round: int
    steps: int | None = None  # only so many, the first ones
    squared_losses: bool = False  # the sum of the squared sample losses is wanted
    older: bool = False  # the client starts from an older model than its cohort's newest


class Trainer(ClientTrainer):
    """A model to train with, whose parameters lie in a row, and the data."""

    def __init__(self, task: Task, layout: Layout) -> None:
        data, experiment = task.data, task.experiment
        self._row = model_rows(task, layout, 1)[0]
        self._gradients_P = torch.zeros_like(self._row.parameters_P)
        module = models.fresh(task.build, experiment.seed, "init", data.transform.dtype)
        bind(module, self._row)
        super().__init__(task, module, layout, torch.device("cpu"))
        if not data.augmented and self.x.nbytes <= SMALL:
            self.x = layout.arranged(self.x)
        self._sequential = None
        if not self._row.others and layout.channels_last:
            axes, low = 1 + len(data.train.shape), experiment.precision == "bf16"
            self._sequential = sequential_step(
                module, axes, self._row.parameters_P, self._gradients_P, layout.views, low
            )
        self.seeds_torch = self._sequential is None  # plain layers draw nothing

    def train_client(self, job: Job, model: ModelRow, result: ModelRow) -> tuple[float, float | None]:
        """A client's round from its cohort's model, or from the older one in `result`; the trained one goes there.

        Returns the mean loss over the steps, and the sum of the squared sample losses if wanted.
        """
        self._load(result if job.older else model)
        asked = (job.steps, job.squared_losses, result.state_P, model.state_P)
        loss, squared, state_P = self.train(job.clients[0], job.round, self._row.parameters_P, *asked)
        if state_P is not None:
            result.state_P.copy_(state_P)
        self._store(result)
        return loss, squared

    @torch.no_grad()
    def evaluate(self, job: Job, model: ModelRow) -> list[float]:
        """The mean validation loss of a cohort's model for each of the job's clients, all of which have samples."""
        self._load(model)
        self.module.eval()
        losses = [
            nn.functional.cross_entropy(self.forward(x, job.clients[0]), y, reduction="none").double()
            for x, y in self.validation_samples(job.clients, job.round)
        ]
        sizes = self.task.data.clients.validation_sizes[list(job.clients)].tolist()
        return [float(values.mean()) for values in torch.split(torch.cat(losses), sizes)]

    def load(self, params_P: Tensor) -> None:
        """Nothing to do: the model's parameters are those of the row."""

    def gradient(self, x: Tensor, y: Tensor, client: int) -> tuple[Tensor, Tensor, Tensor]:
        """Without autograd where the model is a sequence of plain layers."""
        if self._sequential is None:
            return super().gradient(x, y, client)
        return *self._sequential(x, y), self._gradients_P

    def forward(self, x: Tensor, client: int) -> Tensor:
        """In the experiment's precision."""
        with models.arithmetic(x.device, self.task.experiment.precision):
            return super().forward(x, client).to(x.dtype)

    def _load(self, model: ModelRow) -> None:
        self._row.copy_from(model)
        if self._row.others:
            state = self.module.state_dict()
            for name, value in self._row.others.items():
                state[name].copy_(value)

    def _store(self, result: ModelRow) -> None:
        if self._row.others:
            state = self.module.state_dict()
            for name, value in self._row.others.items():
                value.copy_(state[name])
        result.copy_from(self._row)
