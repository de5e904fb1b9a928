"""Any Flower Strategy inside a cohort: it sees a grid with the cohort's nodes and no others.

A Strategy's own `start` has no place for a stopping rule, so its four parts are called here, round by round, while the
session judges, stops and keeps records as always.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.supercore.run import Run

from cpfl.engines.flower import letters
from cpfl.engines.flower.checks import Trained
from cpfl.engines.flower.letters import ARRAYS, CONFIG
from cpfl.engines.flower.parts import Part
from cpfl.engines.flower.post import SHORTEST
from cpfl.federation.session import Session
from cpfl.models import State


class CohortGrid(Grid):
    """A grid that shows a part of another one."""

    def __init__(self, whole: Grid, nodes: Iterable[int] = ()) -> None:
        self._whole, self.nodes = whole, list(nodes)

    def set_run(self, run: Run) -> None:
        """Set already, on the whole grid."""

    @property
    def run(self) -> Run:
        """The run of the whole grid."""
        return self._whole.run

    def create_message(self, *words: object, **named: object) -> Message:
        """As on the whole grid."""
        return self._whole.create_message(*words, **named)  # type: ignore[arg-type]

    def get_node_ids(self) -> Iterable[int]:
        """The cohort's nodes."""
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """To the cohort's nodes only."""
        chosen = list(messages)
        foreign = {message.metadata.dst_node_id for message in chosen} - set(self.nodes)
        if foreign:
            raise ValueError(f"nodes {sorted(foreign)} are not of this cohort")
        return self._whole.push_messages(chosen)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """As on the whole grid."""
        return self._whole.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send, and look often."""
        waiting, replies = set(self.push_messages(messages)), list[Message]()
        until = None if timeout is None else time.monotonic() + timeout
        while waiting and (until is None or time.monotonic() < until):
            for reply in self.pull_messages(waiting):
                replies.append(reply)
                waiting.discard(reply.metadata.reply_to_message_id)
            if waiting:
                time.sleep(SHORTEST)
        return replies


class StrategyPart(Part):
    """Lets a Strategy choose who trains, with which settings, and how their models become one."""

    def __init__(self, strategy: Strategy, session: Session, grid: CohortGrid, note: Callable[[str], None]) -> None:
        self._strategy, self._session, self._grid, self._note = strategy, session, grid, note

    def open(self, number: int, model: State, there: Mapping[int, int]) -> dict[int, RecordDict]:
        """The Strategy's own letters. One that wants more nodes than there are would wait for ever: nobody is asked."""
        if not self._session.participants(number):  # there is no such round
            return {}
        needed = max(getattr(self._strategy, name, 0) for name in ("min_available_nodes", "min_train_nodes"))
        if len(there) < max(needed, 1):
            self._note(f"{type(self._strategy).__name__} wants {needed} nodes, {len(there)} of the cohort are there")
            return {}
        self._grid.nodes = list(there.values())
        clients = {node: client for client, node in there.items()}
        # A config of its own for every round: strategies write into it.
        messages = self._strategy.configure_train(number, letters.arrays(model), ConfigRecord({}), self._grid)
        return {clients[message.metadata.dst_node_id]: _plain(message.content) for message in messages}

    def close(self, number: int, answers: list[Trained]) -> State | None:
        """What the Strategy makes of answers that were checked before it sees them."""
        joined, _ = self._strategy.aggregate_train(number, [answer.message for answer in answers])
        if joined is None:
            return None
        found, like = letters.state(joined), answers[0].model
        model = {name: found[name].to(value.dtype).reshape(value.shape) for name, value in like.items()}
        if not all(torch.isfinite(value).all() for value in model.values()):
            self._note(f"{type(self._strategy).__name__} made a model of numbers that are not finite: it is not used")
            return None
        return model


def _plain(content: RecordDict) -> RecordDict:
    """The same under the names that our nodes know."""
    arrays, configs = list(content.array_records.values()), list(content.config_records.values())
    return RecordDict({ARRAYS: arrays[0], CONFIG: configs[0] if configs else ConfigRecord({})})
