"""The plain engine: one client at a time, in the order a reader would expect. All other engines must equal it."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from cpfl import models
from cpfl.engines.base import OnRound
from cpfl.errors import DivergedError, ModelError
from cpfl.federation import local, server, staleness
from cpfl.federation.session import ClientResult, Outcome, Session, Work
from cpfl.problem import Problem

CHUNK = 1024  # validation samples in one forward pass


class ReferenceEngine:
    """Trains clients one after the other on one device."""

    name = "reference"

    def __init__(self, problem: Problem, device: torch.device) -> None:
        self._problem, self._device = problem, device
        self._x = torch.as_tensor(problem.data.train.x).to(device)
        self._y = torch.as_tensor(problem.data.train.y).to(device)
        self._module = models.fresh(problem.build, problem.experiment.seed, "init", problem.data.transform.dtype).to(
            device
        )

    def federate(self, sessions: Sequence[Session], on_round: OnRound) -> None:
        """Always advance the cohort that is furthest behind in virtual time."""
        with models.threads(1), torch.random.fork_rng():
            self._federate(sessions, on_round)

    def _federate(self, sessions: Sequence[Session], on_round: OnRound) -> None:
        waiting = [(s.clock, s.cohort, s) for s in sessions if not s.idle]
        heapq.heapify(waiting)
        while waiting:
            _, _, session = heapq.heappop(waiting)
            on_round(session, session.close_round(self.do(session.open_round())))
            if not session.idle:
                heapq.heappush(waiting, (session.clock, session.cohort, session))

    def do(self, work: Work) -> Outcome:
        """One round of one cohort: its participants train, their mean is the new model, and they judge it."""
        start = {name: value.to(self._device) for name, value in work.model.items()}
        mean, results, arrived = server.Mean(), [], []
        for client in work.participants:
            origin = work.origins.get(client)
            own = start if origin is None else {n: v.to(self._device) for n, v in origin.model.items()}
            self._module.load_state_dict(own)
            results.append(self._train(client, work))
            weight = server.weight(self._problem.experiment.federation.weights, self._size(client))
            if work.rule == "mean":
                mean.add(self._module.state_dict(), weight)
            else:
                age = work.round - work.origin(client).round
                arrived.append(staleness.Arrived(models.state_of(self._module), own, age, weight))
        model = staleness.merged(work.rule, start, arrived) if arrived else mean.result()
        self._module.load_state_dict(model)
        self._module.eval()
        return Outcome(model, [replace(r, validation=self._validate(r.client, work)) for r in results])

    def _train(self, client: int, work: Work) -> ClientResult:
        experiment, module = self._problem.experiment, self._module
        settings = experiment.federation
        number = work.origin(client).round
        whole = local.batches(settings, self._size(client), experiment.seed, client, number)
        chosen = whole[: work.steps.get(client)]
        x, y = self._inputs(client, number, np.concatenate(whole), sum(map(len, chosen)))
        module.train()
        models.seed_torch(experiment.seed, "model", client, number)
        optimizer = torch.optim.SGD(module.parameters(), settings.lr, settings.momentum)
        losses, squares, at = [], [], 0
        for batch in chosen:
            logits = self._forward(x[at : at + len(batch)], client, work)
            loss = nn.functional.cross_entropy(logits, y[at : at + len(batch)])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.detach())
            if work.squares:
                squares.append(models.squares(logits, y[at : at + len(batch)]))
            at += len(batch)
        mean_loss = torch.stack(losses).mean().item()
        if not math.isfinite(mean_loss):
            raise DivergedError(work.cohort, client, work.round, mean_loss)
        summed = torch.stack(squares).sum().item() if squares else None
        return ClientResult(client, at, len(chosen), mean_loss, None, summed)

    def _forward(self, x: Tensor, client: int, work: Work) -> Tensor:
        try:
            return self._module(x)  # type: ignore[no-any-return]
        except (ValueError, TypeError) as error:  # BatchNorm on a batch of one, for example
            raise ModelError(
                f"the model cannot train on a batch of {len(x)} (client {client}, cohort {work.cohort}, "
                f"round {work.round}): {models.first_line(error)}"
            ) from None

    def _inputs(
        self, client: int, number: int, order: np.ndarray[tuple[int], np.dtype[np.int64]], count: int
    ) -> tuple[Tensor, Tensor]:
        """The first so many samples of a whole round."""
        data = self._problem.data
        rows = torch.from_numpy(data.clients[client].training[order[:count]]).to(self._device)
        plan = None
        if data.augmented:
            seed = self._problem.experiment.seed
            plan = self._plan(local.augmentation(len(order), data.train.shape, seed, client, number)[:count])
        return data.transform(self._x[rows], plan), self._y[rows]

    @torch.no_grad()
    def _validate(self, client: int, work: Work) -> float | None:
        data, seed = self._problem.data, self._problem.experiment.seed
        held = data.clients[client].validation
        if len(held) == 0:
            return None
        rows = torch.from_numpy(held).to(self._device)
        plan = None
        if data.augmented and self._problem.experiment.data.augment_validation:
            plan = self._plan(local.validation_augmentation(len(held), data.train.shape, seed, client, work.round))
        x, y = data.transform(self._x[rows], plan), self._y[rows]
        total = torch.zeros((), dtype=x.dtype, device=x.device)
        for at in range(0, len(held), CHUNK):
            logits = self._module(x[at : at + CHUNK])
            total += nn.functional.cross_entropy(logits, y[at : at + CHUNK], reduction="sum")
        value = total.item() / len(held)
        if not math.isfinite(value):
            raise DivergedError(work.cohort, client, work.round, value)
        return value

    def _plan(self, plan: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Tensor:
        return torch.from_numpy(plan).to(self._device)

    def _size(self, client: int) -> int:
        return int(self._problem.data.clients.training_sizes[client])
