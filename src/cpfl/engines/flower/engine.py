"""Drives sessions over a Flower grid: every cohort is a conversation, and all of them run side by side.

The message of round r + 1 brings the model of round r: the node evaluates it, then trains from it. So a round is one
message each way, and its evaluation comes with the next. If the session stops or waits then, newer models are lost.

The algorithm inside a cohort is the experiment's own, or any Flower Strategy. A Strategy's own `start` has no room for
a stopping rule: its methods are called here, while the session evaluates, stops and keeps records. Both kinds have:

open     the train messages of a round; `available` are the cohort's reachable clients and their nodes
close    the cohort's next model from checked answers in the order of the clients; None: there is none
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from cpfl.engines.aggregation import RoundAggregator
from cpfl.engines.base import Engine, OnRound
from cpfl.engines.flower import messages
from cpfl.engines.flower.enrolment import ClientRegistry, EnrolledClient
from cpfl.engines.flower.message_loop import Answer, Conversation, pause
from cpfl.engines.flower.messages import ARRAYS, CONFIG, EXAMPLES, METRICS, REPORT, TRAIN, Refused
from cpfl.errors import StalledError
from cpfl.federation import local_training, optimizers
from cpfl.federation.messages import AlgorithmState
from cpfl.federation.session import ClientResult, RoundRequest, RoundResult, Session
from cpfl.models import State
from cpfl.models.layout import Layout
from cpfl.settings import Federation
from cpfl.task.task import Task

RETRY_SECONDS = 3.0  # before a round without answers is repeated

MakeStrategy = Callable[[int], Strategy] | None
"""A user's function: the Strategy of a cohort; None: the experiment's own algorithm."""

TrainMessages = Mapping[int, tuple[ArrayRecord, Mapping[str, Any]]]
"""A model and a config by client."""


@dataclass(frozen=True)
class Trained:
    """A participant's model and report, both checked."""

    model: State  # as it was sent, without frozen parameters
    result: ClientResult
    message: Message


class SessionAlgorithm:
    """The session's selection and the experiment's server optimizer, exactly as simulated."""

    def __init__(self, session: Session, task: Task, registry: ClientRegistry) -> None:
        self._session, self._registry = session, registry
        self.state = session.algorithm_state  # after the last round
        self._server = optimizers.server_optimizer(task.experiment.federation)
        self.min_results = self._server.min_results  # with fewer there is no next model, and the round is repeated
        self._layout = task.layout()

    def open(self, number: int, model: State, available: Mapping[int, int]) -> TrainMessages:
        """All selected clients, also unavailable ones: the round's record names them."""
        return dict.fromkeys(self._session.participants(number), (messages.packed(self._layout.sent(model)), {}))

    def close(self, number: int, model: State, answers: list[Trained]) -> State:
        """Weights are the sizes that clients enrolled with, not what they claim now."""
        request = RoundRequest(self._session.cohort, number, [], model, self.state)
        aggregator = RoundAggregator(self._layout, self._server, request, torch.device("cpu"))
        for one in answers:
            aggregator.add(one.model, self._registry.enrolled[one.result.client].training, one.result.steps)
        following, self.state = aggregator.result()
        return following


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

    def __init__(self, strategy: Strategy, session: Session, layout: Layout, registry: ClientRegistry) -> None:
        self._strategy, self._session, self._layout, self._registry = strategy, session, layout, registry
        self._name = type(strategy).__name__

    def open(self, number: int, model: State, available: Mapping[int, int]) -> TrainMessages:
        """The Strategy's own messages; none if it needs more nodes than are available, for which it would wait."""
        if not self._session.participants(number):  # there is no such round
            return {}
        needed = max(getattr(self._strategy, name, 0) for name in ("min_available_nodes", "min_train_nodes"))
        if len(available) < max(needed, 1):
            self._registry.notify(f"{self._name} needs {needed} nodes, {len(available)} of the cohort are available")
            return {}
        grid = cast(Grid, CohortGrid(self._registry.loop.grid, available.values()))
        clients, selected = {node: client for client, node in available.items()}, {}
        # A new config for every round: strategies write into it.
        sent = messages.arrays(self._layout.sent(model))
        for message in self._strategy.configure_train(number, sent, ConfigRecord({}), grid):
            arrays, *_ = message.content.array_records.values()
            config: Mapping[str, Any] = next(iter(message.content.config_records.values()), {})
            selected[clients[message.metadata.dst_node_id]] = arrays, config
        return selected

    def close(self, number: int, model: State, answers: list[Trained]) -> State | None:
        """The Strategy's aggregate of the checked answers."""
        aggregate, _ = self._strategy.aggregate_train(number, [answer.message for answer in answers])
        if aggregate is None:
            return None
        found = messages.state(aggregate)
        sent = self._layout.sent(model)
        following = {name: found[name].to(value.dtype).reshape(value.shape) for name, value in sent.items()}
        if not all(torch.isfinite(value).all() for value in following.values()):
            self._registry.notify(f"{self._name} made a model with numbers that are not finite: it is not used")
            return None
        return self._layout.received(following)


CohortAlgorithm = SessionAlgorithm | StrategyAlgorithm


class FlowerEngine(Engine):
    """Trains on real nodes and measures real time."""

    name, device = "flower", ""  # nodes have devices of their own
    real_time = True

    def __init__(
        self, task: Task, registry: ClientRegistry, round_seconds: float, tries: int, strategy: MakeStrategy
    ) -> None:
        """Nodes have `round_seconds` to answer; after `tries` rounds without answers a cohort has stalled."""
        self._task, self._registry, self._seconds, self._tries = task, registry, round_seconds, tries
        self._strategy, self._layout = strategy, task.layout()
        self._strategies: dict[int, Strategy] = {}  # by cohort: they remember earlier rounds, also across meetings
        self._frozen = messages.frozen_checksum(self._layout)

    def train_cohorts(self, sessions: Sequence[Session], on_round: OnRound) -> None:
        """All cohorts at once, without a barrier between them."""
        cohorts = [self._cohort(session, on_round) for session in sessions if not session.idle]
        self._registry.loop.run(cohorts, [self._registry.enrol_late_nodes()])

    def _cohort(self, session: Session, on_round: OnRound) -> Conversation:
        algorithm: CohortAlgorithm
        if self._strategy is None:
            algorithm = SessionAlgorithm(session, self._task, self._registry)
        else:
            if session.cohort not in self._strategies:
                self._strategies[session.cohort] = self._strategy(session.cohort)
            strategy = self._strategies[session.cohort]
            algorithm = StrategyAlgorithm(strategy, session, self._layout, self._registry)
        clock = self._registry.loop.clock
        began = clock.now()
        trained: RoundResult | None = None  # the last round, until it is evaluated
        failed = 0
        while not session.idle:
            number = session.round + (2 if trained else 1)
            model = trained.model if trained else session.model
            selected, contents, excluded = self._prepare(session, algorithm, number, model, trained)
            answers = yield from self._registry.ask(TRAIN, contents, self._seconds)
            updates = {client: answer for client, answer in answers.items() if client in selected}
            following = self._aggregate(algorithm, number, model, updates, excluded)
            if trained:
                size = sum(answer.bytes for client, answer in answers.items() if client not in selected)
                result = _evaluated(trained, answers, clock.now() - began, size)
                began = clock.now()
                on_round(session, session.close_round(result))
                if session.model is not trained.model:  # it has met: the round that was trained meanwhile is outdated
                    trained, algorithm.state, failed = None, session.algorithm_state, 0
                    continue
            trained = following
            if trained or session.idle:
                failed = 0
                continue
            failed += 1
            reasons = "; ".join(f"client {c}: {why}" for c, why in excluded.items()) or "there is none"
            who = "nobody" if algorithm.min_results == 1 else f"fewer than {algorithm.min_results}"
            self._registry.notify(f"cohort {session.cohort}: {who} answered in round {number} ({reasons})")
            if failed >= self._tries:
                raise StalledError(session.cohort, number, failed, reasons, who)
            yield pause(RETRY_SECONDS)

    def _prepare(
        self, session: Session, algorithm: CohortAlgorithm, number: int, model: State, trained: RoundResult | None
    ) -> tuple[set[int], dict[int, RecordDict], dict[int, str]]:
        """Who was selected, messages for clients that train or only evaluate, and why selected clients get none."""
        reasons = {client: self._registry.unavailable(client) for client in session.clients}
        available = {client: self._registry.enrolled[client].node for client, why in reasons.items() if not why}
        selected = algorithm.open(number, model, available)
        evaluators = {result.client for result in trained.results} if trained else set()
        plain, contents = (messages.packed(self._layout.sent(model)), dict[str, Any]()), {}
        for client in sorted(available.keys() & (selected.keys() | evaluators)):
            arrays, config = selected.get(client, plain)
            own = {
                **messages.context(self._task.experiment, self._task.data.classes, client),
                "cpfl.cohort": session.cohort,
                "cpfl.frozen": self._frozen,
                "cpfl.train": number * (client in selected),
                "cpfl.evaluate": (number - 1) * (client in evaluators),
            }
            contents[client] = RecordDict({ARRAYS: arrays, CONFIG: ConfigRecord({**config, **own})})
        excluded = {client: why for client, why in reasons.items() if why and client in selected}
        return set(selected), contents, excluded

    def _aggregate(
        self, algorithm: CohortAlgorithm, number: int, like: State, answers: dict[int, Answer], excluded: dict[int, str]
    ) -> RoundResult | None:
        """The round from its valid answers, without an evaluation; None: there are too few."""
        valid, sent = list[Trained](), self._layout.sent(like)
        for client, answer in sorted(answers.items()):
            try:
                enrolled, federation = self._registry.enrolled[client], self._task.experiment.federation
                valid.append(answer.read(partial(_trained, answer, enrolled, sent, federation)))
            except Refused as why:
                excluded[client] = str(why)
        model = algorithm.close(number, like, valid) if len(valid) >= algorithm.min_results else None
        if model is None:
            return None
        size = sum(answers[one.result.client].bytes for one in valid)
        return RoundResult(model, [one.result for one in valid], None, size, excluded, algorithm.state)


def _trained(
    answer: Answer, client: EnrolledClient, like: State, federation: Federation, content: RecordDict
) -> Trained:
    """A participant's answer to a train message; Refused if it is invalid."""
    metrics, report = content.metric_records[METRICS], dict[str, Any](content.config_records[REPORT])
    examples, loss, steps, seconds = metrics[EXAMPLES], metrics["loss"], report["steps"], report["seconds"]
    due_steps = local_training.steps(federation, client.training)
    due = local_training.samples_in_steps(federation, client.training, due_steps)
    if examples != due or steps != due_steps:
        raise Refused(f"it claims {examples} samples and {steps} steps; {due} were due")
    model = messages.checked_state(content, like)
    if not (isinstance(loss, float) and math.isfinite(loss)):
        raise Refused(f"its loss is {loss!r}")
    if not (isinstance(seconds, float) and 0 <= seconds <= answer.seconds):
        seconds = answer.seconds  # a wrong clock is no reason to discard the model
    assert answer.message is not None, "it was read"
    result = ClientResult(client.client, due, due_steps, loss, None, seconds, answer.seconds)
    return Trained(model, result, answer.message)


def _evaluated(trained: RoundResult, answers: Mapping[int, Answer], seconds: float, size: int) -> RoundResult:
    """The round with its participants' evaluations of its model, which took so long and so many bytes more."""
    results, excluded = [], dict(trained.excluded)
    for result in trained.results:
        try:
            value = answers[result.client].read(_validation) if result.client in answers else None
        except Refused as why:
            value, excluded[result.client] = None, f"its evaluation: {why}"
        results.append(replace(result, validation=value))
    bytes = (trained.bytes or 0) + size
    return replace(trained, results=results, seconds=seconds, bytes=bytes, excluded=excluded)


def _validation(content: RecordDict) -> float | None:
    """A participant's validation loss of the cohort's model; None: it has no validation samples."""
    value = content.config_records[REPORT].get("validation")
    if value is not None and not (isinstance(value, float) and math.isfinite(value) and value >= 0):
        raise Refused(f"its validation loss is {value!r}")
    return value
