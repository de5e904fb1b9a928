"""Drives sessions over a Flower grid: every cohort is a conversation, all of them go on side by side.

A letter of round r + 1 brings the model of round r: the node judges it, then trains from it. So a round is one letter
each way, and its judgement comes with the next. If it says stop, what was trained meanwhile is dropped without a trace.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from flwr.app import ConfigRecord, RecordDict

from cpfl.engines.base import OnRound
from cpfl.engines.flower import checks, letters
from cpfl.engines.flower.checks import Refused, Trained
from cpfl.engines.flower.letters import ARRAYS, CONFIG, TRAIN, Task
from cpfl.engines.flower.parts import Own, Part
from cpfl.engines.flower.post import Answer, Call, Post, Talk, pause
from cpfl.engines.flower.roll import Roll
from cpfl.errors import StalledError
from cpfl.federation.memory import Memory
from cpfl.federation.session import ClientResult, Outcome, Session
from cpfl.models import State
from cpfl.problem import Problem

PAUSE = 3.0  # seconds before a round in which nobody answered is tried again


@dataclass(frozen=True)
class _Round:
    """A round that was trained and waits for its judgement."""

    model: State
    results: list[ClientResult]
    left_out: dict[int, str]
    bytes: int
    memory: Memory


class FlowerEngine:
    """Trains on real nodes, by the wall clock."""

    name = "flower"

    def __init__(
        self,
        problem: Problem,
        post: Post,
        roll: Roll,
        note: Callable[[str], None],
        round_seconds: float,
        tries: int,
        part: Callable[[Session], Part] | None = None,
    ) -> None:
        """Nodes have `round_seconds` to answer; a round is tried so often before the cohort counts as stalled."""
        self._problem, self._post, self._roll, self._note = problem, post, roll, note
        self._seconds, self._tries = round_seconds, tries
        self._part = part or (lambda session: Own(session, problem, roll))

    def federate(self, sessions: Sequence[Session], on_round: OnRound) -> None:
        """All cohorts at once, each at its own pace."""
        talks = [self._cohort(session, on_round) for session in sessions if not session.stopped]
        self._post.converse(talks, [self._roll.watch(self._post)])

    def _cohort(self, session: Session, on_round: OnRound) -> Talk:
        part, began = self._part(session), time.monotonic()
        waiting: _Round | None = None
        failed = 0
        while not session.stopped:
            number = session.round + (2 if waiting else 1)
            model = waiting.model if waiting else session.model
            tasks, contents, left_out = self._letters(session, part, number, model, waiting)
            nodes = {client: self._roll.places[client].node for client in contents}
            by_node = yield Call(
                TRAIN,
                {nodes[c]: content for c, content in contents.items()},
                self._seconds,
                f"{session.cohort}.{number}",
            )
            answers = {client: by_node[node] for client, node in nodes.items()}
            following = self._trained(part, number, model, tasks, answers, left_out)
            if waiting:
                closed = session.close_round(self._judged(waiting, tasks, answers, time.monotonic() - began))
                began = time.monotonic()
                on_round(session, closed)
            waiting = following
            if waiting is None and not session.stopped:
                failed += 1
                reasons = "; ".join(f"client {c}: {why}" for c, why in left_out.items()) or "there is none"
                who = "nobody" if part.least == 1 else f"fewer than {part.least}"
                self._note(f"cohort {session.cohort}: {who} answered in round {number} ({reasons})")
                if failed >= self._tries:
                    raise StalledError(session.cohort, number, failed, reasons, who)
                yield pause(PAUSE)
            else:
                failed = 0

    def _letters(
        self, session: Session, part: Part, number: int, model: State, waiting: _Round | None
    ) -> tuple[dict[int, Task], dict[int, RecordDict], dict[int, str]]:
        """Who gets what: those who train, those who only judge, and those who are not there."""
        there, left_out = {}, {}
        for client in session.clients:
            node = self._roll.node(client)
            if node is None:
                left_out[client] = "not there yet"
            elif node not in self._post.connected():
                left_out[client] = "not connected"
            elif node in self._post.busy:
                left_out[client] = "still busy with an earlier call"
            else:
                there[client] = node
        wanted = part.open(number, model, there)
        judges = {result.client for result in waiting.results} if waiting else set()
        plain = RecordDict({ARRAYS: letters.packed(model), CONFIG: ConfigRecord({})})
        tasks, contents = {}, {}
        for client in sorted(there.keys() & (wanted.keys() | judges)):
            task = Task(
                session.cohort, client, number if client in wanted else 0, number - 1 if client in judges else 0
            )
            letter = wanted.get(client, plain)
            config = task.stamp(letter.config_records[CONFIG], self._problem.experiment, self._problem.data.classes)
            tasks[client] = task
            contents[client] = RecordDict({**letter.array_records, CONFIG: config})
        return tasks, contents, {client: why for client, why in left_out.items() if client in wanted}

    def _trained(
        self,
        part: Part,
        number: int,
        like: State,
        tasks: dict[int, Task],
        answers: dict[int, Answer],
        left_out: dict[int, str],
    ) -> _Round | None:
        """The round's next model from answers that are in order; None: there were none, or too few."""
        good: list[Trained] = []
        for client in sorted(answers):
            if tasks[client].train:
                try:
                    place = self._roll.places[client]
                    good.append(checks.trained(answers[client], place, like, self._problem.experiment.federation))
                except Refused as why:
                    left_out[client] = str(why)
        model = part.close(number, good) if len(good) >= part.least else None
        if model is None:
            return None
        moved = sum(answers[t.result.client].bytes for t in good)
        return _Round(model, [t.result for t in good], left_out, moved, part.memory)

    def _judged(self, waiting: _Round, tasks: dict[int, Task], answers: dict[int, Answer], seconds: float) -> Outcome:
        """The round with its participants' judgement of the model it made."""
        results, left_out = [], dict(waiting.left_out)
        for result in waiting.results:
            value, answer = None, answers.get(result.client)
            try:
                value = checks.judged(answer) if answer else None
            except Refused as why:
                left_out[result.client] = f"its judgement: {why}"
            results.append(replace(result, validation=value))
        only = sum(answers[c].bytes for c, task in tasks.items() if not task.train)
        return Outcome(waiting.model, results, seconds, waiting.bytes + only, left_out, waiting.memory)
