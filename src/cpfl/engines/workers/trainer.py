"""What a worker does: train one client, or judge a model by some clients' validation samples.

The arithmetic of the reference engine in the order that is fastest on a CPU: channels last, parameters and momentum as
one row each, bf16 where the experiment says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cpfl import models
from cpfl.engines.workers.chain import chain
from cpfl.engines.workers.form import IMAGES, Form, Rows
from cpfl.errors import ModelError
from cpfl.federation import local, parts, schedule
from cpfl.federation.local_part import Course
from cpfl.problem import Problem

CHUNK = 1024  # validation samples in one forward pass
SMALL = 2**26  # bytes of samples that every worker may have a copy of, channels last: taking them is quicker


@dataclass(frozen=True)
class Kept:
    """Rows that a local part keeps: of clients, their means by cohort, and new ones on their way, by slot."""

    clients: Rows
    cohorts: Rows
    leaving: Rows


class Trainer:
    """A model to train with, and the data."""

    def __init__(self, problem: Problem) -> None:
        self._problem, experiment = problem, problem.experiment
        self._x, self._y = torch.as_tensor(problem.data.train.x), torch.as_tensor(problem.data.train.y)
        self._form = models_form(problem)
        if not problem.data.augmented and self._x.nbytes <= SMALL:
            self._x = self._form.laid(self._x)
        self._row, self._older = self._form.rows(1), self._form.rows(1)
        self._module = bound(problem, self._row)
        state = self._row.views(0)
        own = models.trained(self._module)
        self._parameters = [own[name] for name in self._form.floats if name in own]  # in the order of the row
        self._places = places_of(self._form.floats, set(own))
        self._local = parts.local_part(experiment.federation)
        # Buffers, second names, and what is frozen.
        self._others = {name: value for name, value in state.items() if name not in own}
        self._slopes = self._form.rows(1)
        self._chain = None
        if not self._others and self._form.last:
            row_P, slopes_P = self._row.floats_KP[0], self._slopes.floats_KP[0]
            axes, low = 1 + len(problem.data.train.shape), experiment.precision == "bf16"
            self._chain = chain(self._module, axes, row_P, self._form.views, slopes_P, low)

    def older(self, model: dict[str, NDArray[Any]]) -> Rows:
        """A model that lies in no place, as a row."""
        self._older.put(0, {name: torch.from_numpy(value) for name, value in model.items()})
        return self._older

    def train(
        self,
        start: Rows,
        place: int,
        into: Rows,
        slot: int,
        client: int,
        round: int,
        kept: Kept | None = None,
        steps: int | None = None,
        squares: bool = False,
    ) -> tuple[float, float | None]:
        """A client's round from a cohort's model, or its first steps; its own model goes into a slot. The mean loss
        over its steps, and the sum of the squared sample losses if wanted."""
        experiment, settings = self._problem.experiment, self._problem.experiment.federation
        self._load(start, place)
        size = int(self._problem.data.clients.training_sizes[client])
        whole = local.batches(settings, size, experiment.seed, client, round)
        chosen = whole[:steps]
        x, y = self._training_inputs(client, round, np.concatenate(whole), sum(map(len, chosen)))
        if self._chain is None:  # a chain draws nothing
            self._module.train()
            models.seed_torch(experiment.seed, "model", client, round)
        weights = self._row.floats_KP[0]
        params_P = weights if self._places is None else weights[self._places]
        at = self._course(params_P, place, client, round, kept)
        losses, squared, done = [], [], 0
        for batch in chosen:
            part = slice(done, done + len(batch))
            done += len(batch)
            loss, logits, slope_P = self._slope(x[part], y[part], client)
            at.count += 1
            self._local.learn(params_P, slope_P, at)
            if self._places is not None:  # floating-point buffers lie between the parameters
                weights.index_copy_(0, self._places, params_P)
            losses.append(loss)
            if squares:
                squared.append(models.squares(logits, y[part]))
        if kept is not None:
            kept.leaving.floats_KP[slot].copy_(self._local.leave(params_P, at))
        self._keep(into, slot)
        return torch.stack(losses).mean().item(), torch.stack(squared).sum().item() if squared else None

    def _slope(self, x: Tensor, y: Tensor, client: int) -> tuple[Tensor, Tensor, Tensor]:
        """A batch's mean loss, its logits, and the slope of all parameters as a row, which may be written over."""
        if self._chain is not None:
            return *self._chain.step(x, y), self._slopes.floats_KP[0]
        logits = self._forward(x, client)
        loss = nn.functional.cross_entropy(logits, y)
        slopes = torch.autograd.grad(loss, self._parameters, allow_unused=True, materialize_grads=True)
        return loss.detach(), logits, torch.cat([self._form.flat(part) for part in slopes])

    def _course(self, params_P: Tensor, place: int, client: int, round: int, kept: Kept | None) -> Course:
        return Course(
            schedule.rate(self._problem.experiment.federation, round),
            params_P.new_zeros(1),
            {name: torch.zeros_like(params_P) for name in self._local.memory},
            params_P.clone() if self._local.needs_start else None,
            None if kept is None else kept.clients.floats_KP[client],
            None if kept is None else kept.cohorts.floats_KP[place],
        )

    @torch.no_grad()
    def judge(self, model: Rows, place: int, clients: Sequence[int], round: int) -> list[float]:
        """The mean validation loss of a cohort's model for each of these clients, all of which have samples."""
        data, seed = self._problem.data, self._problem.experiment.seed
        self._load(model, place)
        self._module.eval()
        held = [data.clients[client].validation for client in clients]
        rows = np.concatenate(held)
        plan = None
        if data.augmented and self._problem.experiment.data.augment_validation:
            drawn = [
                local.validation_augmentation(len(part), data.train.shape, seed, client, round)
                for client, part in zip(clients, held, strict=True)
            ]
            plan = torch.from_numpy(np.concatenate(drawn))
        losses = []
        for at in range(0, len(rows), CHUNK):
            part = slice(at, at + CHUNK)
            x = data.transform(self._x[rows[part]], None if plan is None else plan[part])
            logits = self._forward(self._form.laid(x), clients[0])
            losses.append(nn.functional.cross_entropy(logits, self._y[rows[part]], reduction="none").double())
        each = torch.split(torch.cat(losses), [len(part) for part in held])
        return [float(values.mean()) for values in each]

    def _forward(self, x: Tensor, client: int) -> Tensor:
        try:
            with models.arithmetic(x.device, self._problem.experiment.precision):
                logits: Tensor = self._module(x)
        except (ValueError, TypeError) as error:  # BatchNorm on a batch of one, for example
            raise ModelError(
                f"the model cannot take a batch of {len(x)} (client {client}): {models.first_line(error)}"
            ) from None
        return logits.to(x.dtype)

    def _training_inputs(
        self, client: int, round: int, order: np.ndarray[tuple[int], np.dtype[np.int64]], count: int
    ) -> tuple[Tensor, Tensor]:
        """The first so many samples of a whole round."""
        data = self._problem.data
        rows = torch.from_numpy(data.clients[client].training[order[:count]])
        x, y = self._taken(rows), self._y[rows]
        if not data.augmented:
            return self._form.laid(data.transform(self._form.laid(x))), y  # at once: stored samples are often bytes
        seed = self._problem.experiment.seed
        plan = torch.from_numpy(local.augmentation(len(order), data.train.shape, seed, client, round)[:count])
        return self._form.laid(data.transform(x, plan)), y

    def _taken(self, rows: Tensor) -> Tensor:
        """These samples, channels last if all are."""
        x = self._x
        if x.dim() != IMAGES or not self._form.last or not x.is_contiguous(memory_format=torch.channels_last):
            return x.index_select(0, rows)
        return x.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)

    def _load(self, rows: Rows, place: int) -> None:
        self._row.floats_KP[0].copy_(rows.floats_KP[place])
        self._row.wholes_KQ[0].copy_(rows.wholes_KQ[place])
        if self._others:
            state = self._module.state_dict()
            for name, value in self._others.items():
                state[name].copy_(value)

    def _keep(self, rows: Rows, slot: int) -> None:
        if self._others:
            state = self._module.state_dict()
            for name, value in self._others.items():
                value.copy_(state[name])
        rows.floats_KP[slot].copy_(self._row.floats_KP[0])
        rows.wholes_KQ[slot].copy_(self._row.wholes_KQ[0])


def models_form(problem: Problem) -> Form:
    """The form of the problem's model: channels last, if it can be shown images so and hold its own parameters so."""
    data = problem.data
    form = Form.of(problem.start, data.transform.dtype)
    inputs = form.laid(data.transform(torch.as_tensor(data.train.x[:2])))
    return form if models.takes(bound(problem, form.rows(1)), inputs) else replace(form, last=False)


def bound(problem: Problem, rows: Rows) -> nn.Module:
    """A model whose parameters are the first of these rows."""
    module = models.fresh(problem.build, problem.experiment.seed, "init", problem.data.transform.dtype)
    state = rows.views(0)
    for name, value in module.named_parameters():
        value.data = state[name]
    return module


def places_of(floats: dict[str, torch.Size], parameters: set[str]) -> Tensor | None:
    """Where the parameters' numbers lie among a row's floats; None: they are all there is."""
    if set(floats) == parameters:
        return None
    at, places = 0, []
    for name, shape in floats.items():
        if name in parameters:
            places.append(torch.arange(at, at + shape.numel()))
        at += shape.numel()
    return torch.cat(places)
