"""Many conversations over one Flower grid at once.

A conversation is a generator: it yields a call (messages to nodes, and a time limit) and receives the answers. One loop
and one request to the SuperLink serve all of them, so cohorts run side by side without threads. The loop sleeps for a
twentieth of the time it has waited, between 0.1 and 3 seconds; Flower's `send_and_receive` always sleeps for three.
"""

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from cpfl.engines.flower import messages
from cpfl.engines.flower.clock import Clock
from cpfl.engines.flower.messages import Refused

Result = TypeVar("Result")

MIN_SLEEP, MAX_SLEEP, SLEEP_SHARE = 0.1, 3.0, 0.05  # seconds, and the share of the time waited
NODE_LIST_SECONDS = 5.0  # between requests for the list of connected nodes
GRACE_SECONDS = 60.0  # the SuperLink keeps a message so long after its call has ended


@dataclass(frozen=True)
class Call:
    """Messages of one kind by node, to nodes that are not busy, and the time limit for their answers."""

    kind: str
    contents: Mapping[int, RecordDict]
    seconds: float


@dataclass(frozen=True)
class Answer:
    """A node's reply, or the reason why there is none."""

    message: Message | None
    reason: str
    seconds: float = 0.0  # from the call to the answer
    bytes: int = 0  # of models, both ways

    def read(self, reader: Callable[[RecordDict], Result]) -> Result:
        """What `reader` makes of the reply's content; Refused if there is no reply, or a malformed one."""
        if self.message is None:
            raise Refused(self.reason)
        try:
            return reader(self.message.content)
        except Refused:
            raise
        except Exception as error:  # numpy and flwr raise many kinds for a malformed answer
            raise Refused(f"its answer cannot be read ({type(error).__name__})") from None


Conversation = Generator[Call, dict[int, Answer], Any]


@dataclass
class _OpenCall:
    conversation: Conversation
    call: Call
    began: float
    deadline: float
    waiting: dict[str, int] = field(default_factory=dict)  # message id → node
    answers: dict[int, Answer] = field(default_factory=dict)

    def take(self, number: str, reply: Message | None, reason: str, now: float) -> None:
        """Keep a node's reply, or the reason why there is none."""
        node = self.waiting.pop(number)
        size = messages.size(self.call.contents[node]) + (messages.size(reply.content) if reply else 0)
        self.answers[node] = Answer(reply, reason, now - self.began, size)


class MessageLoop:
    """Sends and receives all messages of the server."""

    def __init__(self, grid: Grid, clock: Clock | None = None) -> None:
        self.grid, self.clock = grid, clock or Clock()
        self._overdue: dict[str, int] = {}  # messages whose call has ended → node
        self._listed, self._connected = -math.inf, set[int]()

    @property
    def busy(self) -> set[int]:
        """Nodes that have not answered an earlier call."""
        return set(self._overdue.values())

    def connected(self, refresh: bool = False) -> set[int]:
        """The connected nodes, as of a few seconds ago at most."""
        now = self.clock.now()
        if refresh or now - self._listed >= NODE_LIST_SECONDS:
            self._listed, self._connected = now, set(self.grid.get_node_ids())
        return self._connected

    def run(self, conversations: Sequence[Conversation], background: Sequence[Conversation] = ()) -> list[Any]:
        """Hold all conversations at once until `conversations` have ended; what each of these returned."""
        results: dict[Conversation, Any] = {}
        opened: list[_OpenCall] = []

        def advance(conversation: Conversation, answers: Any = None) -> None:
            try:
                opened.append(self._send(conversation, conversation.send(answers)))
            except StopIteration as end:
                results[conversation] = end.value

        for conversation in (*conversations, *background):
            advance(conversation)
        while not set(conversations) <= results.keys():
            now = self.clock.now()
            waited, left = now - max(one.began for one in opened), min(one.deadline for one in opened) - now
            self.clock.sleep(max(0.0, min(max(MIN_SLEEP, SLEEP_SHARE * waited), MAX_SLEEP, left)))
            self._pull(opened)
            now = self.clock.now()
            for one in [one for one in opened if now >= one.deadline or (one.answers and not one.waiting)]:
                self._give_up(one, "no answer in time", one.waiting)
                opened.remove(one)
                advance(one.conversation, one.answers)
        return [results[one] for one in conversations]

    def _send(self, conversation: Conversation, call: Call) -> _OpenCall:
        now, ttl = self.clock.now(), call.seconds + GRACE_SECONDS
        opened = _OpenCall(conversation, call, now, now + call.seconds)
        outgoing = [Message(content, node, call.kind, ttl=ttl) for node, content in call.contents.items()]
        for node, number in zip(call.contents, self.grid.push_messages(outgoing) if outgoing else [], strict=True):
            if number:
                opened.waiting[number] = node
            else:
                opened.answers[node] = Answer(None, "the SuperLink did not accept the message")
        return opened

    def _pull(self, opened: list[_OpenCall]) -> None:
        waiting = {number: one for one in opened for number in one.waiting}
        if waiting or self._overdue:
            for reply in self.grid.pull_messages([*waiting, *self._overdue]):
                number = reply.metadata.reply_to_message_id
                self._overdue.pop(number, None)  # too late, but the node is free again
                if number in waiting:
                    failed = reply.has_error()
                    reason = _error_line(reply) if failed else ""
                    waiting[number].take(number, None if failed else reply, reason, self.clock.now())
        for one in opened if waiting else []:
            connected = self.connected()
            lost = {number: node for number, node in one.waiting.items() if node not in connected}
            self._give_up(one, "the node left", lost)

    def _give_up(self, call: _OpenCall, reason: str, numbers: Mapping[str, int]) -> None:
        for number, node in list(numbers.items()):
            call.take(number, None, reason, self.clock.now())
            if node in self.connected():  # a lost node will never answer
                self._overdue[number] = node


def pause(seconds: float) -> Call:
    """A call without messages: it only waits."""
    return Call("", {}, seconds)


def _error_line(reply: Message) -> str:
    """A node's error in one line."""
    text = (reply.error.reason or "an error without a reason").splitlines()[0]
    kind, _, rest = text.partition(":<'")  # flwr writes <class 'x.Y'>:<'…'>
    return (rest.removesuffix("'>") if rest else kind)[:300]
