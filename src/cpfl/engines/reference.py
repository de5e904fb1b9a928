"""The reference engine: one client at a time, in the order a reader expects. All other engines must equal it."""

import heapq
import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cpfl import models
from cpfl.engines.aggregation import RoundAggregator
from cpfl.engines.base import Engine, OnRound
from cpfl.engines.client_training import ClientTrainer
from cpfl.errors import DivergedError
from cpfl.federation import local_training, optimizers
from cpfl.federation.session import ClientResult, RoundRequest, RoundResult, Session
from cpfl.models import State, batch_norm
from cpfl.models.layout import Layout
from cpfl.task.task import Task


class ReferenceEngine(Engine):
    """Trains clients one after the other on one device."""

    name = "reference"

    def __init__(self, task: Task, device: torch.device) -> None:
        self._settings, self._device, self.device = task.experiment.federation, device, device.type
        models.choose_arithmetic(task.experiment.precision)
        self._module = models.fresh(task.build, task.experiment.seed, "init", task.data.transform.dtype).to(device)
        self._layout = Layout.from_module(self._module)
        self._local = batch_norm.local_names(self._settings, self._module)
        self._trainer = ClientTrainer(task, self._module, self._layout, device)
        self._server = optimizers.server_optimizer(self._settings)

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
        asked = (self._layout, self._server, request, self._device, self._trainer.optimizer, self._local)
        aggregator = RoundAggregator(*asked)
        results = []
        for client in request.participants:
            origin = request.origins.get(client)
            self._module.load_state_dict(aggregator.start_of(client))
            before_P = aggregator.row(aggregator.client_state(client))
            result, after_P = self._train(client, request, before_P, aggregator.mean_client_state_P)
            results.append(result)
            aggregator.keep_local(client, self._module.state_dict())
            aggregator.add(self._module.state_dict(), self._trainer.size(client), result.steps, origin)
            if after_P is not None:
                aggregator.add_client_state(client, before_P, after_P)
        model, algorithm_state = aggregator.result()
        self._module.load_state_dict(model)
        results = [replace(result, validation=self._validate(result.client, request)) for result in results]
        return RoundResult(model, results, algorithm_state=algorithm_state)

    def train(self, client: int, request: RoundRequest) -> tuple[State, ClientResult]:
        """One participant's own model and report, as a client of a real deployment sends them."""
        with models.threads(1), torch.random.fork_rng():
            self._module.load_state_dict(request.model)
            result, _ = self._train(client, request)
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
            return self._validate(client, request)

    def _train(
        self, client: int, request: RoundRequest, before_P: Tensor | None = None, mean_P: Tensor | None = None
    ) -> tuple[ClientResult, Tensor | None]:
        """Train the module's parameters; `before_P` is the client's state, `mean_P` the mean of its cohort's."""
        params_P = self._layout.row(self._module.state_dict(), self._device)
        number, fewer, size = request.origin(client).round, request.steps.get(client), self._trainer.size(client)
        loss, squared, after_P = self._trainer.train(
            client, number, params_P, fewer, request.squared_losses, before_P, mean_P
        )
        if not math.isfinite(loss):
            raise DivergedError(request.cohort, client, request.round, loss)
        steps = fewer or local_training.steps(self._settings, size)
        samples = local_training.samples_in_steps(self._settings, size, steps)
        return ClientResult(client, samples, steps, loss, None, squared_losses=squared), after_P

    @torch.no_grad()
    def _validate(self, client: int, request: RoundRequest) -> float | None:
        self._module.eval()
        total: float | Tensor = 0.0
        count = 0
        for x, y in self._trainer.validation_samples([client], request.round):
            total += self._trainer.objective.loss(self._trainer.forward(x, client), y, "sum")
            count += len(y)
        if count == 0:
            return None
        value = float(total) / count
        if not math.isfinite(value):
            raise DivergedError(request.cohort, client, request.round, value)
        return value
