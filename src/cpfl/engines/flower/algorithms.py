"""The algorithm inside a cohort: the experiment's own, or any Flower Strategy.

A Strategy's own `start` has no room for a stopping rule. So its methods are called here, round by round, while the
session evaluates, stops and keeps records. Both kinds of algorithm have the same two methods:

open     the train messages of a round; `available` are the cohort's reachable clients and their nodes
close    the cohort's next model from checked answers in the order of the clients; None: there is none
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from cpfl import models
from cpfl.engines.aggregation import RoundAggregator
from cpfl.engines.flower import messages
from cpfl.engines.flower.enrolment import ClientRegistry
from cpfl.federation import optimizers
from cpfl.federation.messages import AlgorithmState
from cpfl.federation.session import ClientResult, RoundRequest, Session
from cpfl.models import State
from cpfl.models.layout import Layout
from cpfl.task.task import Task

TrainMessages = Mapping[int, tuple[ArrayRecord, Mapping[str, Any]]]
"""A model and a config by client."""


@dataclass(frozen=True)
class Trained:
    """A participant's model and report, both checked."""

    model: State
    result: ClientResult
    message: Message


class SessionAlgorithm:
    """The session's selection and the experiment's server optimizer, exactly as simulated."""

    def __init__(self, session: Session, task: Task, registry: ClientRegistry) -> None:
        self._session, self._registry = session, registry
        self.state = session.algorithm_state  # after the last round
        self._server = optimizers.server_optimizer(task.experiment.federation)
        self.min_results = self._server.min_results  # with fewer there is no next model, and the round is repeated
        module = models.fresh(task.build, task.experiment.seed, "init", task.data.transform.dtype)
        self._layout, self._start = Layout.from_module(module), session.model

    def open(self, number: int, model: State, available: Mapping[int, int]) -> TrainMessages:
        """All selected clients, also unavailable ones: the round's record names them."""
        self._start = model
        return dict.fromkeys(self._session.participants(number), (messages.packed(model), {}))

    def close(self, number: int, answers: list[Trained]) -> State:
        """Weights are the sizes that clients enrolled with, not what they claim now."""
        request = RoundRequest(self._session.cohort, number, [], self._start, self.state)
        aggregator = RoundAggregator(self._layout, self._server, request, torch.device("cpu"))
        for one in answers:
            aggregator.add(one.model, self._registry.enrolled[one.result.client].training, one.result.steps)
        model, self.state = aggregator.result()
        return model


class CohortGrid:
    """A Flower grid that shows a cohort's nodes only; everything else is that of the whole grid."""

    def __init__(self, grid: Grid, nodes: Iterable[int]) -> None:
        self._grid, self._nodes = grid, list(nodes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def get_node_ids(self) -> Iterable[int]:
        """The cohort's nodes."""
        return self._nodes


class StrategyAlgorithm:
    """Lets a Flower Strategy select the clients, configure their training and aggregate their models."""

    min_results = 1
    state = AlgorithmState()  # a Strategy keeps its own

    def __init__(self, strategy: Strategy, session: Session, grid: Grid, notify: Callable[[str], None]) -> None:
        self._strategy, self._session, self._grid, self._notify = strategy, session, grid, notify
        self._name = type(strategy).__name__

    def open(self, number: int, model: State, available: Mapping[int, int]) -> TrainMessages:
        """The Strategy's own messages; none if it needs more nodes than are available, for which it would wait."""
        if not self._session.participants(number):  # there is no such round
            return {}
        needed = max(getattr(self._strategy, name, 0) for name in ("min_available_nodes", "min_train_nodes"))
        if len(available) < max(needed, 1):
            self._notify(f"{self._name} needs {needed} nodes, {len(available)} of the cohort are available")
            return {}
        grid = cast(Grid, CohortGrid(self._grid, available.values()))
        clients, selected = {node: client for client, node in available.items()}, {}
        # A new config for every round: strategies write into it.
        for message in self._strategy.configure_train(number, messages.arrays(model), ConfigRecord({}), grid):
            arrays, *_ = message.content.array_records.values()
            config: Mapping[str, Any] = next(iter(message.content.config_records.values()), {})
            selected[clients[message.metadata.dst_node_id]] = arrays, config
        return selected

    def close(self, number: int, answers: list[Trained]) -> State | None:
        """The Strategy's aggregate of the checked answers."""
        aggregate, _ = self._strategy.aggregate_train(number, [answer.message for answer in answers])
        if aggregate is None:
            return None
        found, like = messages.state(aggregate), answers[0].model
        model = {name: found[name].to(value.dtype).reshape(value.shape) for name, value in like.items()}
        if not all(torch.isfinite(value).all() for value in model.values()):
            self._notify(f"{self._name} made a model with numbers that are not finite: it is not used")
            return None
        return model


CohortAlgorithm = SessionAlgorithm | StrategyAlgorithm
