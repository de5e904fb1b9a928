"""One client's work in a round, in the reference engine and the workers: its samples, its steps, its validation."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cpfl import models
from cpfl.engines.gpu_errors import device_failed, out_of_memory
from cpfl.errors import FAILURES, ModelError, first_line
from cpfl.federation import local_training, optimizers
from cpfl.federation.optimizers.base import ClientState
from cpfl.models import adapter
from cpfl.models.adapter import Inputs
from cpfl.models.layout import Layout
from cpfl.task.task import Task

CHUNK = 1024  # validation samples in one forward pass


def called(module: Callable[[Inputs], Tensor], x: Inputs, client: int | None = None) -> Tensor:
    """The logits of a batch; what a user's model raises is the user's, unless the device is to blame."""
    try:
        return module(x)
    except FAILURES as error:  # BatchNorm on a batch of one, for example
        if out_of_memory(error) or device_failed(error):
            raise
        raise cannot_take(adapter.size(x), client, first_line(error)) from error


class ClientTrainer:
    """A model to train with, and the data, on one device; optimizers step a row of all its parameters."""

    seeds_torch = True  # False: the model draws no random numbers of its own, such as dropout's

    def __init__(self, task: Task, module: nn.Module, layout: Layout, device: torch.device) -> None:
        self.task, self.module, self.layout, self.device = task, module.to(device), layout, device
        self.x, self.y = (torch.as_tensor(values).to(device) for values in (task.data.train.x, task.data.train.y))
        own = models.trained(self.module)
        self.parameters = [own[name] for name in layout.shapes]
        self.optimizer, self.objective = optimizers.client_optimizer(task.experiment.federation), task.data.objective

    def load(self, params_P: Tensor) -> None:
        """Make the row's numbers the model's parameters."""
        with torch.no_grad():
            for parameter, value in zip(self.parameters, self.layout.views(params_P).values(), strict=True):
                parameter.copy_(value)

    def size(self, client: int) -> int:
        """Samples that a client trains on."""
        return int(self.task.data.clients.training_sizes[client])

    def train(
        self,
        client: int,
        round: int,
        params_P: Tensor,
        steps: int | None = None,
        squared_losses: bool = False,
        client_state_P: Tensor | None = None,
        mean_client_state_P: Tensor | None = None,
    ) -> tuple[float, float | None, Tensor | None]:
        """A client's round, or only its first steps; `params_P` holds the model's parameters and changes with them.

        Returns the mean loss over the steps, the sum of the squared sample losses if wanted, and the client's next
        state if the optimizer has one.
        """
        experiment, optimizer = self.task.experiment, self.optimizer
        whole = local_training.batches(experiment.federation, self.size(client), experiment.seed, client, round)
        chosen = whole[:steps]
        x, y = self.training_samples(client, round, np.concatenate(whole), sum(map(len, chosen)))
        if self.seeds_torch:
            self.module.train()
            models.seed_torch(experiment.seed, "model", client, round)
        state = ClientState(
            local_training.rate(experiment.federation, round),
            params_P.new_zeros(1),
            {name: torch.zeros_like(params_P) for name in optimizer.buffers},
            params_P.clone() if optimizer.needs_start else None,
            client_state_P,
            mean_client_state_P,
        )
        losses, squared, done = [], [], 0
        for batch in chosen:
            part = slice(done, done + len(batch))
            done += len(batch)
            loss, logits, gradient_P = self.gradient(adapter.part(x, part), y[part], client)
            state.steps += 1
            optimizer.clip_and_step(params_P, gradient_P, state)
            self.load(params_P)
            losses.append(loss)
            if squared_losses:
                own = self.objective.losses(logits.detach(), y[part])
                squared.append(own.double().square().sum())
        mean, total = torch.stack(losses).mean().item(), torch.stack(squared).sum().item() if squared else None
        return mean, total, optimizer.update_client_state(params_P, state) if optimizer.has_client_state else None

    def gradient(self, x: Inputs, y: Tensor, client: int) -> tuple[Tensor, Tensor, Tensor]:
        """A batch's mean loss, its logits, and the gradient of all parameters as a row, which may be overwritten."""
        logits = self.forward(x, client)
        loss = self.objective.loss(logits, y)
        gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True)
        return loss.detach(), logits, torch.cat([self.layout.flat(gradient) for gradient in gradients])

    def forward(self, x: Inputs, client: int) -> Tensor:
        """The logits of a client's batch, in the experiment's type whatever the model gives."""
        return called(self.module, x, client).to(self.task.data.transform.dtype)

    def training_samples(self, client: int, round: int, order: NDArray[np.int64], count: int) -> tuple[Inputs, Tensor]:
        """Inputs and labels of the first so many samples of a whole round."""
        data, arranged = self.task.data, self.layout.arranged
        rows = torch.from_numpy(data.clients[client].training[order[:count]]).to(self.device)
        x, y = self.x[rows], self.y[rows]
        if not data.augmented:
            return arranged(data.transform(arranged(x))), y  # early: stored samples are often bytes
        drawn = local_training.augmentation(len(order), data.train.shape, self.task.experiment.seed, client, round)
        return arranged(data.transform(x, torch.from_numpy(drawn[:count]).to(self.device))), y

    def validation_samples(self, clients: Sequence[int], round: int) -> Iterator[tuple[Inputs, Tensor]]:
        """Inputs and labels of these clients' validation samples, one client after the other, in chunks."""
        experiment, data, augmentation = self.task.experiment, self.task.data, None
        held = [data.clients[client].validation for client in clients]
        rows = torch.from_numpy(np.concatenate(held)).to(self.device)
        if data.augmented and experiment.data.augment_validation:
            drawn = [
                local_training.augmentation(len(own), data.train.shape, experiment.seed, client, round, "val-augment")
                for client, own in zip(clients, held, strict=True)
            ]
            augmentation = torch.from_numpy(np.concatenate(drawn)).to(self.device)
        for start in range(0, len(rows), CHUNK):
            part = slice(start, start + CHUNK)
            x = data.transform(self.x[rows[part]], None if augmentation is None else augmentation[part])
            yield self.layout.arranged(x), self.y[rows[part]]


def cannot_take(samples: int, client: int | None, reason: str) -> ModelError:
    """A batch that the model fails on, and whose it is; None: nobody's yet."""
    whose = "" if client is None else f" (client {client})"
    return ModelError(f"the model cannot take a batch of {samples}{whose}: {reason}")
