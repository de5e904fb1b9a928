"""Drives sessions over a Flower grid: every cohort is a conversation, and all of them run side by side.

The message of round r + 1 brings the model of round r: the node evaluates it, then trains from it. So a round is one
message each way, and its evaluation comes with the next. If the session then stops, the newer models are discarded.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ConfigRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from cpfl.engines.base import Engine, OnRound
from cpfl.engines.flower import messages
from cpfl.engines.flower.algorithms import CohortAlgorithm, SessionAlgorithm, StrategyAlgorithm, Trained
from cpfl.engines.flower.enrolment import ClientRegistry, EnrolledClient
from cpfl.engines.flower.message_loop import Answer, Conversation, pause
from cpfl.engines.flower.messages import ARRAYS, CONFIG, EXAMPLES, METRICS, REPORT, TRAIN, Refused
from cpfl.errors import StalledError
from cpfl.federation import local_training
from cpfl.federation.session import ClientResult, RoundResult, Session
from cpfl.models import State
from cpfl.settings import Federation
from cpfl.task.task import Task

RETRY_SECONDS = 3.0  # before a round without answers is repeated


class FlowerEngine(Engine):
    """Trains on real nodes and measures real time."""

    name, device = "flower", ""  # nodes have devices of their own

    def __init__(
        self,
        task: Task,
        registry: ClientRegistry,
        round_seconds: float,
        tries: int,
        strategy: Callable[[int], Strategy] | None = None,
    ) -> None:
        """Nodes have `round_seconds` to answer; after `tries` rounds without answers a cohort has stalled."""
        self._task, self._registry, self._seconds, self._tries = task, registry, round_seconds, tries
        self._strategy = strategy

    def train_cohorts(self, sessions: Sequence[Session], on_round: OnRound) -> None:
        """All cohorts at once, without a barrier between them."""
        cohorts = [self._cohort(session, on_round) for session in sessions if not session.stopped]
        self._registry.loop.run(cohorts, [self._registry.enrol_late_nodes()])

    def _cohort(self, session: Session, on_round: OnRound) -> Conversation:
        algorithm, began = self._algorithm(session), time.monotonic()
        trained: RoundResult | None = None  # the last round, until it is evaluated
        failed = 0
        while not session.stopped:
            number = session.round + (2 if trained else 1)
            model = trained.model if trained else session.model
            selected, contents, excluded = self._prepare(session, algorithm, number, model, trained)
            answers = yield from self._registry.ask(TRAIN, contents, self._seconds)
            updates = {client: answer for client, answer in answers.items() if client in selected}
            following = self._aggregate(algorithm, number, model, updates, excluded)
            if trained:
                size = sum(answer.bytes for client, answer in answers.items() if client not in selected)
                result = _evaluated(trained, answers, time.monotonic() - began, size)
                began = time.monotonic()
                on_round(session, session.close_round(result))
            trained = following
            if trained or session.stopped:
                failed = 0
                continue
            failed += 1
            reasons = "; ".join(f"client {c}: {why}" for c, why in excluded.items()) or "there is none"
            who = "nobody" if algorithm.min_results == 1 else f"fewer than {algorithm.min_results}"
            self._registry.notify(f"cohort {session.cohort}: {who} answered in round {number} ({reasons})")
            if failed >= self._tries:
                raise StalledError(session.cohort, number, failed, reasons, who)
            yield pause(RETRY_SECONDS)

    def _algorithm(self, session: Session) -> CohortAlgorithm:
        if self._strategy is None:
            return SessionAlgorithm(session, self._task, self._registry)
        grid, notify = self._registry.loop.grid, self._registry.notify
        return StrategyAlgorithm(self._strategy(session.cohort), session, grid, notify)

    def _prepare(
        self, session: Session, algorithm: CohortAlgorithm, number: int, model: State, trained: RoundResult | None
    ) -> tuple[set[int], dict[int, RecordDict], dict[int, str]]:
        """Who was selected, messages for clients that train or only evaluate, and why selected clients get none."""
        reasons = {client: self._registry.unavailable(client) for client in session.clients}
        available = {client: self._registry.enrolled[client].node for client, why in reasons.items() if not why}
        selected = algorithm.open(number, model, available)
        evaluators = {result.client for result in trained.results} if trained else set()
        plain, contents = (messages.packed(model), dict[str, Any]()), {}
        for client in sorted(available.keys() & (selected.keys() | evaluators)):
            arrays, config = selected.get(client, plain)
            own = {
                **messages.context(self._task.experiment, self._task.data.classes, client),
                "cpfl.cohort": session.cohort,
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
        valid: list[Trained] = []
        for client, answer in sorted(answers.items()):
            try:
                enrolled = self._registry.enrolled[client]
                valid.append(_trained(answer, enrolled, like, self._task.experiment.federation))
            except Refused as why:
                excluded[client] = str(why)
        model = algorithm.close(number, valid) if len(valid) >= algorithm.min_results else None
        if model is None:
            return None
        size = sum(answers[one.result.client].bytes for one in valid)
        return RoundResult(model, [one.result for one in valid], None, size, excluded, algorithm.state)


def _trained(answer: Answer, client: EnrolledClient, like: State, federation: Federation) -> Trained:
    """A participant's answer to a train message; Refused if it is invalid."""

    def claims(content: RecordDict) -> tuple[Any, ...]:
        metrics, report = content.metric_records[METRICS], content.config_records[REPORT]
        return metrics[EXAMPLES], metrics["loss"], report["steps"], report["seconds"]

    examples, loss, steps, seconds = answer.read(claims)
    due_steps = local_training.steps(federation, client.training)
    due = local_training.samples_in_steps(federation, client.training, due_steps)
    if examples != due or steps != due_steps:
        raise Refused(f"it claims {examples} samples and {steps} steps; {due} were due")
    model = answer.read(lambda content: messages.checked_state(content, like))
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
