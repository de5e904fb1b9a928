"""The work of one process: train one client, or evaluate a model on some clients' validation samples.

The arithmetic of the reference engine in the order that is fastest on a CPU: channels last, parameters and momentum as
one row each, bf16 where the experiment says so.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cpfl import models
from cpfl.engines.workers.model_rows import ModelRow, bind, model_rows
from cpfl.engines.workers.sequential import sequential_step
from cpfl.errors import ModelError, first_line
from cpfl.federation import local_training, optimizers
from cpfl.federation.optimizers.base import ClientState
from cpfl.models import State
from cpfl.models.layout import IMAGE_AXES, Layout
from cpfl.task.task import Task

CHUNK = 1024  # validation samples in one forward pass
SMALL = 2**26  # bytes of samples of which every worker may have a copy, channels last: indexing is faster

ClientStateRows = tuple[Tensor, Tensor, Tensor]
"""A client's state, the mean of its cohort's, and where its new one goes."""


class Trainer:
    """A model to train with, and the data."""

    def __init__(self, task: Task, layout: Layout) -> None:
        self._task, self._layout, experiment = task, layout, task.experiment
        self._x, self._y = torch.as_tensor(task.data.train.x), torch.as_tensor(task.data.train.y)
        if not task.data.augmented and self._x.nbytes <= SMALL:
            self._x = layout.arranged(self._x)
        self._row, self._older, self._gradients = (model_rows(task, layout, 1)[0] for _ in range(3))
        self._module = models.fresh(task.build, experiment.seed, "init", task.data.transform.dtype)
        bind(self._module, self._row)
        own = models.trained(self._module)
        self._parameters = [own[name] for name in layout.shapes]
        self._optimizer = optimizers.client_optimizer(experiment.federation)
        # Buffers, second names and frozen parameters.
        self._others = {name: value for name, value in self._row.tensors.items() if name not in own}
        self._sequential = None
        if not self._others and layout.channels_last:
            axes, low = 1 + len(task.data.train.shape), experiment.precision == "bf16"
            rows = (self._row.floats_P, self._gradients.floats_P)
            self._sequential = sequential_step(self._module, axes, *rows, layout.views, low)

    def older(self, state: State) -> ModelRow:
        """A model that is not a cohort's newest, as a row."""
        self._older.write(state)
        return self._older

    def train(
        self,
        start: ModelRow,
        result: ModelRow,
        client: int,
        round: int,
        steps: int | None = None,
        squared_losses: bool = False,
        client_state: ClientStateRows | None = None,
    ) -> tuple[float, float | None]:
        """A client's round, or only its first steps, from one model; the trained one goes into `result`.

        Returns the mean loss over the steps, and the sum of the squared sample losses if wanted.
        """
        experiment = self._task.experiment
        self._load(start)
        size = int(self._task.data.clients.training_sizes[client])
        whole = local_training.batches(experiment.federation, size, experiment.seed, client, round)
        chosen = whole[:steps]
        x, y = self._training_inputs(client, round, np.concatenate(whole), sum(map(len, chosen)))
        if self._sequential is None:  # whose layers draw nothing
            self._module.train()
            models.seed_torch(experiment.seed, "model", client, round)
        params_P = self._row.parameters_P
        state = ClientState(
            local_training.rate(experiment.federation, round),
            params_P.new_zeros(1),
            {name: torch.zeros_like(params_P) for name in self._optimizer.buffers},
            params_P.clone() if self._optimizer.needs_start else None,
            *((None, None) if client_state is None else client_state[:2]),
        )
        losses, squared, done = [], [], 0
        for batch in chosen:
            part = slice(done, done + len(batch))
            done += len(batch)
            loss, logits, gradient_P = self._gradient(x[part], y[part], client)
            state.steps += 1
            self._optimizer.clip_and_step(params_P, gradient_P, state)
            losses.append(loss)
            if squared_losses:
                squared.append(models.squared_losses(logits, y[part]))
        if client_state is not None:
            client_state[2].copy_(self._optimizer.update_client_state(params_P, state))
        self._store(result)
        return torch.stack(losses).mean().item(), torch.stack(squared).sum().item() if squared else None

    def _gradient(self, x: Tensor, y: Tensor, client: int) -> tuple[Tensor, Tensor, Tensor]:
        """A batch's mean loss, its logits, and the gradient of all parameters as a row, which may be written over."""
        if self._sequential is not None:
            return *self._sequential(x, y), self._gradients.floats_P
        logits = self._forward(x, client)
        loss = nn.functional.cross_entropy(logits, y)
        gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True, materialize_grads=True)
        return loss.detach(), logits, torch.cat([self._layout.flat(gradient) for gradient in gradients])

    @torch.no_grad()
    def evaluate(self, model: ModelRow, clients: Sequence[int], round: int) -> list[float]:
        """The mean validation loss of a cohort's model for each of these clients, all of which have samples."""
        data, seed = self._task.data, self._task.experiment.seed
        self._load(model)
        self._module.eval()
        held = [data.clients[client].validation for client in clients]
        rows = np.concatenate(held)
        augmentation = None
        if data.augmented and self._task.experiment.data.augment_validation:
            drawn = [
                local_training.validation_augmentation(len(part), data.train.shape, seed, client, round)
                for client, part in zip(clients, held, strict=True)
            ]
            augmentation = torch.from_numpy(np.concatenate(drawn))
        losses = []
        for start in range(0, len(rows), CHUNK):
            part = slice(start, start + CHUNK)
            x = data.transform(self._x[rows[part]], None if augmentation is None else augmentation[part])
            logits = self._forward(self._layout.arranged(x), clients[0])
            losses.append(nn.functional.cross_entropy(logits, self._y[rows[part]], reduction="none").double())
        each = torch.split(torch.cat(losses), [len(part) for part in held])
        return [float(values.mean()) for values in each]

    def _forward(self, x: Tensor, client: int) -> Tensor:
        try:
            with models.arithmetic(x.device, self._task.experiment.precision):
                logits: Tensor = self._module(x)
        except (ValueError, TypeError) as error:  # BatchNorm on a batch of one, for example
            raise ModelError(
                f"the model cannot take a batch of {len(x)} (client {client}): {first_line(error)}"
            ) from None
        return logits.to(x.dtype)

    def _training_inputs(self, client: int, round: int, order: NDArray[np.int64], count: int) -> tuple[Tensor, Tensor]:
        """The first so many samples of a whole round."""
        data, layout = self._task.data, self._layout
        rows = torch.from_numpy(data.clients[client].training[order[:count]])
        x, y = self._samples(rows), self._y[rows]
        if not data.augmented:
            return layout.arranged(data.transform(layout.arranged(x))), y  # early: stored samples are often bytes
        drawn = local_training.augmentation(len(order), data.train.shape, self._task.experiment.seed, client, round)
        return layout.arranged(data.transform(x, torch.from_numpy(drawn[:count]))), y

    def _samples(self, rows: Tensor) -> Tensor:
        """These samples, channels last if all are."""
        x, last = self._x, torch.channels_last
        if x.dim() != IMAGE_AXES or not self._layout.channels_last or not x.is_contiguous(memory_format=last):
            return x.index_select(0, rows)
        return x.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)

    def _load(self, model: ModelRow) -> None:
        self._row.copy_from(model)
        if self._others:
            state = self._module.state_dict()
            for name, value in self._others.items():
                state[name].copy_(value)

    def _store(self, result: ModelRow) -> None:
        if self._others:
            state = self._module.state_dict()
            for name, value in self._others.items():
                value.copy_(state[name])
        result.copy_from(self._row)
