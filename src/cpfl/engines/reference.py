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
from cpfl.engines.gathering import Gathering
from cpfl.engines.lanes.stack import Layout
from cpfl.errors import DivergedError, ModelError
from cpfl.federation import local, parts, schedule
from cpfl.federation.local_part import Course
from cpfl.federation.memory import ROWS, Memory
from cpfl.federation.session import ClientResult, Outcome, Session, Work
from cpfl.models import State
from cpfl.problem import Problem

CHUNK = 1024  # validation samples in one forward pass


class ReferenceEngine:
    """Trains clients one after the other on one device."""

    name = "reference"

    def __init__(self, problem: Problem, device: torch.device) -> None:
        self._problem, self._device = problem, device
        models.choose_arithmetic(problem.experiment.precision)
        self._x = torch.as_tensor(problem.data.train.x).to(device)
        self._y = torch.as_tensor(problem.data.train.y).to(device)
        self._module = models.fresh(problem.build, problem.experiment.seed, "init", problem.data.transform.dtype).to(
            device
        )
        self._layout = Layout.of(self._module)
        self._local = parts.local_part(problem.experiment.federation)
        self._server = parts.server_part(problem.experiment.federation)

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
        """One round of one cohort: its participants train, the server makes the new model, and they judge it."""
        layout, gathering = self._layout, Gathering(self._layout, self._server, work, self._device)
        rows, results = dict[int, Tensor](), []
        mean_P, moved_P = gathering.row(work.memory.cohort.get(ROWS)), torch.zeros_like(gathering.start_P)
        for client in work.participants:
            origin = work.origins.get(client)
            self._module.load_state_dict(gathering.start if origin is None else origin.model)
            start_P = gathering.start_P if origin is None else gathering.row(origin.model)
            before_P = gathering.row(work.memory.clients.get(client))
            at = self._course(work.origin(client).round, start_P, before_P, mean_P)
            result, params_P = self._train(client, work, at)
            results.append(result)
            gathering.add(self._module.state_dict(), self._size(client), result.steps, origin)
            if self._local.keeps_rows:
                rows[client] = self._local.leave(params_P, at)
                moved_P += rows[client] - before_P
        model_P, kept = gathering.result(), dict(gathering.memory)
        if self._local.keeps_rows:
            kept[ROWS] = mean_P + moved_P / work.size
            model_P = self._local.settle(model_P, kept[ROWS])
        model = gathering.model(model_P)
        self._module.load_state_dict(model)
        self._module.eval()
        results = [replace(r, validation=self._validate(r.client, work)) for r in results]
        memory = Memory(
            {name: layout.views(row) for name, row in kept.items()},
            {client: layout.views(row) for client, row in rows.items()},
        )
        return Outcome(model, results, memory=memory)

    def train(self, client: int, work: Work) -> tuple[State, ClientResult]:
        """One participant's own model and report, as a client of a real fleet sends them."""
        with models.threads(1), torch.random.fork_rng():
            self._module.load_state_dict(work.model)
            start_P = self._layout.row(work.model, self._device)
            result, _ = self._train(client, work, self._course(work.round, start_P, None, None))
            return models.state_of(self._module), result

    def pull_back(self, mu: float, start: State) -> None:
        """FedProx as a Flower Strategy asks for it: from now on a slope also pulls towards this start."""
        for name, parameter in models.trained(self._module).items():
            anchor = start[name].to(self._device)
            parameter.register_hook(lambda grad, p=parameter, s=anchor: grad + mu * (p.detach() - s))  # type: ignore[no-untyped-call]

    def judge(self, client: int, work: Work) -> float | None:
        """What one client makes of the cohort's model."""
        with models.threads(1):
            self._module.load_state_dict(work.model)
            self._module.eval()
            return self._validate(client, work)

    def _course(self, round: int, start_P: Tensor, client_P: Tensor | None, cohort_P: Tensor | None) -> Course:
        """A client that begins a round."""
        memory = {name: torch.zeros_like(start_P) for name in self._local.memory}
        rate = schedule.rate(self._problem.experiment.federation, round)
        return Course(rate, start_P.new_zeros(1), memory, start_P, client_P, cohort_P)

    def _train(self, client: int, work: Work, at: Course) -> tuple[ClientResult, Tensor]:
        experiment, module = self._problem.experiment, self._module
        settings = experiment.federation
        number = work.origin(client).round
        whole = local.batches(settings, self._size(client), experiment.seed, client, number)
        chosen = whole[: work.steps.get(client)]
        x, y = self._inputs(client, number, np.concatenate(whole), sum(map(len, chosen)))
        module.train()
        models.seed_torch(experiment.seed, "model", client, number)
        own: State = {**models.trained(module)}
        params_P = self._layout.row(own, self._device)
        losses, squares, done = [], [], 0
        for batch in chosen:
            logits = self._forward(x[done : done + len(batch)], client, work)
            loss = nn.functional.cross_entropy(logits, y[done : done + len(batch)])
            slopes = torch.autograd.grad(loss, list(own.values()), allow_unused=True, materialize_grads=True)
            at.count += 1
            self._local.learn(params_P, torch.cat([slope.reshape(-1) for slope in slopes]), at)
            with torch.no_grad():
                for name, value in self._layout.views(params_P).items():
                    own[name].copy_(value)
            losses.append(loss.detach())
            if work.squares:
                squares.append(models.squares(logits, y[done : done + len(batch)]))
            done += len(batch)
        mean_loss = torch.stack(losses).mean().item()
        if not math.isfinite(mean_loss):
            raise DivergedError(work.cohort, client, work.round, mean_loss)
        summed = torch.stack(squares).sum().item() if squares else None
        return ClientResult(client, done, len(chosen), mean_loss, None, squares=summed), params_P

    def _forward(self, x: Tensor, client: int, work: Work) -> Tensor:
        try:
            return self._module(x)  # type: ignore[no-any-return]
        except (ValueError, TypeError) as error:  # BatchNorm on a batch of one, for example
            raise ModelError(
                f"the model cannot take a batch of {len(x)} (client {client}, cohort {work.cohort}, "
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
            logits = self._forward(x[at : at + CHUNK], client, work)
            total += nn.functional.cross_entropy(logits, y[at : at + CHUNK], reduction="sum")
        value = total.item() / len(held)
        if not math.isfinite(value):
            raise DivergedError(work.cohort, client, work.round, value)
        return value

    def _plan(self, plan: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Tensor:
        return torch.from_numpy(plan).to(self._device)

    def _size(self, client: int) -> int:
        return int(self._problem.data.clients.training_sizes[client])
