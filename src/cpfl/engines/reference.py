"""The reference engine: one client at a time, in the order a reader expects. All other engines must equal it."""

import heapq
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from cpfl import models
from cpfl.engines.aggregation import RoundAggregator
from cpfl.engines.base import Engine, OnRound
from cpfl.errors import DivergedError, ModelError, first_line
from cpfl.federation import local_training, optimizers
from cpfl.federation.optimizers.base import ClientState
from cpfl.federation.session import ClientResult, RoundRequest, RoundResult, Session
from cpfl.models import State
from cpfl.models.layout import Layout
from cpfl.task.task import Task

CHUNK = 1024  # validation samples in one forward pass


class ReferenceEngine(Engine):
    """Trains clients one after the other on one device."""

    name = "reference"

    def __init__(self, task: Task, device: torch.device) -> None:
        self._task, self._device, self.device = task, device, device.type
        models.choose_arithmetic(task.experiment.precision)
        self._x = torch.as_tensor(task.data.train.x).to(device)
        self._y = torch.as_tensor(task.data.train.y).to(device)
        self._module = models.fresh(task.build, task.experiment.seed, "init", task.data.transform.dtype).to(device)
        self._layout = Layout.from_module(self._module)
        self._optimizer = optimizers.client_optimizer(task.experiment.federation)
        self._server = optimizers.server_optimizer(task.experiment.federation)

    def train_cohorts(self, sessions: Sequence[Session], on_round: OnRound) -> None:
        """Always advance the cohort that is furthest behind in virtual time."""
        with models.threads(1), torch.random.fork_rng():
            queue = [(s.clock, s.cohort, s) for s in sessions if not s.idle]
            heapq.heapify(queue)
            while queue:
                _, _, session = heapq.heappop(queue)
                on_round(session, session.close_round(self.do(session.open_round())))
                if not session.idle:
                    heapq.heappush(queue, (session.clock, session.cohort, session))

    def do(self, request: RoundRequest) -> RoundResult:
        """One round of one cohort: its participants train, the server makes the new model, and they evaluate it."""
        aggregator = RoundAggregator(self._layout, self._server, request, self._device, self._optimizer)
        results = []
        for client in request.participants:
            origin = request.origins.get(client)
            self._module.load_state_dict(aggregator.start if origin is None else origin.model)
            start_P = aggregator.start_P if origin is None else aggregator.row(origin.model)
            before_P = aggregator.row(request.algorithm_state.clients.get(client))
            number = request.origin(client).round
            state = self._client_state(number, start_P, before_P, aggregator.mean_client_state_P)
            result, params_P = self._train(client, request, state)
            results.append(result)
            aggregator.add(self._module.state_dict(), self._size(client), result.steps, origin)
            if self._optimizer.has_client_state:
                aggregator.add_client_state(client, before_P, self._optimizer.update_client_state(params_P, state))
        model, algorithm_state = aggregator.result()
        self._module.load_state_dict(model)
        self._module.eval()
        results = [replace(result, validation=self._validate(result.client, request)) for result in results]
        return RoundResult(model, results, algorithm_state=algorithm_state)

    def train(self, client: int, request: RoundRequest) -> tuple[State, ClientResult]:
        """One participant's own model and report, as a client of a real deployment sends them."""
        with models.threads(1), torch.random.fork_rng():
            self._module.load_state_dict(request.model)
            start_P = self._layout.row(request.model, self._device)
            result, _ = self._train(client, request, self._client_state(request.round, start_P, None, None))
            return models.state_of(self._module), result

    def pull_back(self, mu: float, start: State) -> None:
        """FedProx as a Flower Strategy asks for it: from now on gradients also pull towards this start."""
        for name, parameter in models.trained(self._module).items():
            anchor = start[name].to(self._device)
            parameter.register_hook(lambda grad, p=parameter, s=anchor: grad + mu * (p.detach() - s))  # type: ignore[no-untyped-call]

    def evaluate(self, client: int, request: RoundRequest) -> float | None:
        """One client's validation loss of the cohort's model."""
        with models.threads(1):
            self._module.load_state_dict(request.model)
            self._module.eval()
            return self._validate(client, request)

    def _client_state(
        self, round: int, start_P: Tensor, client_P: Tensor | None, cohort_P: Tensor | None
    ) -> ClientState:
        """The state of a client at the start of its round."""
        memory = {name: torch.zeros_like(start_P) for name in self._optimizer.buffers}
        rate = local_training.rate(self._task.experiment.federation, round)
        return ClientState(rate, start_P.new_zeros(1), memory, start_P, client_P, cohort_P)

    def _train(self, client: int, request: RoundRequest, state: ClientState) -> tuple[ClientResult, Tensor]:
        experiment, module = self._task.experiment, self._module
        settings = experiment.federation
        number = request.origin(client).round
        whole = local_training.batches(settings, self._size(client), experiment.seed, client, number)
        chosen = whole[: request.steps.get(client)]
        x, y = self._inputs(client, number, np.concatenate(whole), sum(map(len, chosen)))
        module.train()
        models.seed_torch(experiment.seed, "model", client, number)
        own: State = {**models.trained(module)}
        params_P = self._layout.row(own, self._device)
        losses, squared_losses, done = [], [], 0
        for batch in chosen:
            logits = self._forward(x[done : done + len(batch)], client, request)
            loss = nn.functional.cross_entropy(logits, y[done : done + len(batch)])
            gradients = torch.autograd.grad(loss, list(own.values()), allow_unused=True, materialize_grads=True)
            state.steps += 1
            self._optimizer.clip_and_step(params_P, torch.cat([gradient.reshape(-1) for gradient in gradients]), state)
            with torch.no_grad():
                for name, value in self._layout.views(params_P).items():
                    own[name].copy_(value)
            losses.append(loss.detach())
            if request.squared_losses:
                squared_losses.append(models.squared_losses(logits, y[done : done + len(batch)]))
            done += len(batch)
        mean_loss = torch.stack(losses).mean().item()
        if not math.isfinite(mean_loss):
            raise DivergedError(request.cohort, client, request.round, mean_loss)
        summed = torch.stack(squared_losses).sum().item() if squared_losses else None
        return ClientResult(client, done, len(chosen), mean_loss, None, squared_losses=summed), params_P

    def _forward(self, x: Tensor, client: int, request: RoundRequest) -> Tensor:
        try:
            return self._module(x)  # type: ignore[no-any-return]
        except (ValueError, TypeError) as error:  # BatchNorm on a batch of one, for example
            raise ModelError(
                f"the model cannot take a batch of {len(x)} (client {client}, cohort {request.cohort}, "
                f"round {request.round}): {first_line(error)}"
            ) from None

    def _inputs(
        self, client: int, number: int, order: np.ndarray[tuple[int], np.dtype[np.int64]], count: int
    ) -> tuple[Tensor, Tensor]:
        """The first so many samples of a whole round."""
        data = self._task.data
        rows = torch.from_numpy(data.clients[client].training[order[:count]]).to(self._device)
        augmentation = None
        if data.augmented:
            drawn = local_training.augmentation(
                len(order), data.train.shape, self._task.experiment.seed, client, number
            )
            augmentation = torch.from_numpy(drawn[:count]).to(self._device)
        return data.transform(self._x[rows], augmentation), self._y[rows]

    @torch.no_grad()
    def _validate(self, client: int, request: RoundRequest) -> float | None:
        data, seed = self._task.data, self._task.experiment.seed
        held = data.clients[client].validation
        if len(held) == 0:
            return None
        rows = torch.from_numpy(held).to(self._device)
        augmentation = None
        if data.augmented and self._task.experiment.data.augment_validation:
            drawn = local_training.validation_augmentation(len(held), data.train.shape, seed, client, request.round)
            augmentation = torch.from_numpy(drawn).to(self._device)
        x, y = data.transform(self._x[rows], augmentation), self._y[rows]
        total = torch.zeros((), dtype=x.dtype, device=x.device)
        for start in range(0, len(held), CHUNK):
            logits = self._forward(x[start : start + CHUNK], client, request)
            total += nn.functional.cross_entropy(logits, y[start : start + CHUNK], reduction="sum")
        value = total.item() / len(held)
        if not math.isfinite(value):
            raise DivergedError(request.cohort, client, request.round, value)
        return value

    def _size(self, client: int) -> int:
        return int(self._task.data.clients.training_sizes[client])
