"""A grid without a network: nodes are client apps in this process. Time passes only when the server waits."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from cpfl.engines.flower.clock import Clock


class VirtualClock(Clock):
    """Seconds are counted, not waited for."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class Nodes(Grid):
    """Answers every message at once, unless a test says otherwise."""

    def __init__(self) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1  # set by Flower's own processes
        self.apps: dict[int, tuple[ClientApp, Context]] = {}
        self.gone: set[int] = set()
        self.silent: dict[int, str] = {}  # node → the kind of message that it does not answer
        self.unanswered: dict[int, list[Message]] = {}  # by silent nodes
        self.sent: list[Message] = []
        self.replies: list[Message] = []  # all that a server ever saw
        self._waiting: dict[str, Message] = {}
        self._numbers = itertools.count(1)

    def add(self, node: int, app: ClientApp, **config: Any) -> None:
        """A node with this configuration."""
        self.apps[node] = app, Context(1, node, config, RecordDict(), {}, 0)

    def set_run(self, run: Run) -> None: ...

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(self, *words: Any, **named: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self.apps if node not in self.gone]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        number, node = f"message-{next(self._numbers)}", message.metadata.dst_node_id
        message.metadata.__dict__["_message_id"] = number
        self.sent.append(message)
        if self.silent.get(node) == message.metadata.message_type:
            self.unanswered.setdefault(node, []).append(message)
        elif node not in self.gone:
            self._answer(message)
        return number

    def _answer(self, message: Message) -> None:
        app, context = self.apps[message.metadata.dst_node_id]
        try:
            reply = app(message, context)
        except Exception as error:
            reply = Message(Error(1, f"{type(error)}:<'{error}'>"), reply_to=message)
        self._waiting[message.metadata.message_id] = reply

    def wake(self, node: int) -> None:
        """A silent node answers what it has received, and whatever comes."""
        del self.silent[node]
        for message in self.unanswered.pop(node, []):
            self._answer(message)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        found = [self._waiting.pop(number) for number in list(message_ids) if number in self._waiting]
        self.replies += found
        return found

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))
