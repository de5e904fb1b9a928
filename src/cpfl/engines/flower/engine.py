"""Drives sessions over a Flower grid: every cohort is a conversation, and all of them run side by side.

The message of round r + 1 brings the model of round r: the node evaluates it, then trains from it. So a round is one
message each way, and its evaluation comes with the next. If the session then stops, the newer models are discarded.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from flwr.app import ConfigRecord, RecordDict

from cpfl.engines.base import Engine, OnRound
from cpfl.engines.flower import checks, messages
from cpfl.engines.flower.algorithms import CohortAlgorithm, SessionAlgorithm
from cpfl.engines.flower.checks import Refused, Trained
from cpfl.engines.flower.client_registry import ClientRegistry
from cpfl.engines.flower.message_loop import BUSY, Answer, Call, Conversation, MessageLoop, pause
from cpfl.engines.flower.messages import ARRAYS, CONFIG, TRAIN, Instruction
from cpfl.errors import StalledError
from cpfl.federation.session import RoundResult, Session
from cpfl.models import State
from cpfl.task.task import Task

RETRY_SECONDS = 3.0  # before a round without answers is repeated


class FlowerEngine(Engine):
    """Trains on real nodes and measures real time."""

    name = "flower"

    def __init__(
        self,
        task: Task,
        loop: MessageLoop,
        registry: ClientRegistry,
        notify: Callable[[str], None],
        round_seconds: float,
        tries: int,
        algorithm: Callable[[Session], CohortAlgorithm] | None = None,
    ) -> None:
        """Nodes have `round_seconds` to answer; after `tries` rounds without answers a cohort has stalled."""
        self._task, self._loop, self._registry, self._notify = task, loop, registry, notify
        self._seconds, self._tries = round_seconds, tries
        self._algorithm = algorithm or (lambda session: SessionAlgorithm(session, task, registry))

    def train_cohorts(self, sessions: Sequence[Session], on_round: OnRound) -> None:
        """All cohorts at once, without a barrier between them."""
        cohorts = [self._cohort(session, on_round) for session in sessions if not session.stopped]
        self._loop.run(cohorts, [self._registry.enrol_late_nodes(self._loop)])

    def _cohort(self, session: Session, on_round: OnRound) -> Conversation:
        algorithm, began = self._algorithm(session), time.monotonic()
        trained: RoundResult | None = None  # the last round, until it is evaluated
        failed = 0
        while not session.stopped:
            number = session.round + (2 if trained else 1)
            model = trained.model if trained else session.model
            instructions, contents, excluded = self._prepare(session, algorithm, number, model, trained)
            nodes = {client: self._registry.enrolled[client].node for client in contents}
            by_node = {nodes[client]: content for client, content in contents.items()}
            replies = yield Call(TRAIN, by_node, self._seconds, f"{session.cohort}.{number}")
            answers = {client: replies[node] for client, node in nodes.items()}
            following = self._aggregate(algorithm, number, model, instructions, answers, excluded)
            if trained:
                result = _evaluated(trained, instructions, answers, time.monotonic() - began)
                began = time.monotonic()
                on_round(session, session.close_round(result))
            trained = following
            if trained or session.stopped:
                failed = 0
                continue
            failed += 1
            reasons = "; ".join(f"client {c}: {why}" for c, why in excluded.items()) or "there is none"
            who = "nobody" if algorithm.min_results == 1 else f"fewer than {algorithm.min_results}"
            self._notify(f"cohort {session.cohort}: {who} answered in round {number} ({reasons})")
            if failed >= self._tries:
                raise StalledError(session.cohort, number, failed, reasons, who)
            yield pause(RETRY_SECONDS)

    def _prepare(
        self, session: Session, algorithm: CohortAlgorithm, number: int, model: State, trained: RoundResult | None
    ) -> tuple[dict[int, Instruction], dict[int, RecordDict], dict[int, str]]:
        """Instructions and messages for clients that train or only evaluate, and why selected clients get none."""
        available, unavailable = {}, {}
        for client in session.clients:
            enrolled = self._registry.enrolled.get(client)
            if enrolled is None:
                unavailable[client] = "not enrolled yet"
            elif enrolled.node not in self._loop.connected():
                unavailable[client] = "not connected"
            elif enrolled.node in self._loop.busy:
                unavailable[client] = BUSY
            else:
                available[client] = enrolled.node
        selected = algorithm.open(number, model, available)
        evaluators = {result.client for result in trained.results} if trained else set()
        plain = RecordDict({ARRAYS: messages.packed(model), CONFIG: ConfigRecord({})})
        instructions, contents = {}, {}
        for client in sorted(available.keys() & (selected.keys() | evaluators)):
            train, evaluate = number * (client in selected), (number - 1) * (client in evaluators)
            instructions[client] = Instruction(session.cohort, client, train, evaluate)
            content, experiment = selected.get(client, plain), self._task.experiment
            config = instructions[client].stamp(content.config_records[CONFIG], experiment, self._task.data.classes)
            contents[client] = RecordDict({**content.array_records, CONFIG: config})
        return instructions, contents, {client: why for client, why in unavailable.items() if client in selected}

    def _aggregate(
        self,
        algorithm: CohortAlgorithm,
        number: int,
        like: State,
        instructions: Mapping[int, Instruction],
        answers: Mapping[int, Answer],
        excluded: dict[int, str],
    ) -> RoundResult | None:
        """The round from its valid answers, without an evaluation; None: there are too few."""
        valid: list[Trained] = []
        for client in sorted(client for client in answers if instructions[client].train):
            try:
                enrolled = self._registry.enrolled[client]
                valid.append(checks.trained(answers[client], enrolled, like, self._task.experiment.federation))
            except Refused as why:
                excluded[client] = str(why)
        model = algorithm.close(number, valid) if len(valid) >= algorithm.min_results else None
        if model is None:
            return None
        size = sum(answers[one.result.client].bytes for one in valid)
        return RoundResult(model, [one.result for one in valid], None, size, excluded, algorithm.state)


def _evaluated(
    trained: RoundResult, instructions: Mapping[int, Instruction], answers: Mapping[int, Answer], seconds: float
) -> RoundResult:
    """The round with its participants' evaluations of its model."""
    results, excluded = [], dict(trained.excluded)
    for result in trained.results:
        value = None
        try:
            value = checks.evaluated(answers[result.client]) if result.client in answers else None
        except Refused as why:
            excluded[result.client] = f"its evaluation: {why}"
        results.append(replace(result, validation=value))
    size = (trained.bytes or 0) + sum(answers[c].bytes for c, one in instructions.items() if not one.train)
    return replace(trained, results=results, seconds=seconds, bytes=size, excluded=excluded)
