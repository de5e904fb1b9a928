"""Many conversations over one Flower grid at once.

A conversation is a generator: it yields a call (messages to nodes, and a time limit) and receives the answers. One loop
and one request to the SuperLink serve all of them, so cohorts run side by side without threads. The loop sleeps for a
twentieth of the time it has waited, between 0.1 and 3 seconds; Flower's `send_and_receive` always sleeps for three.
"""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from cpfl.engines.flower import messages

MIN_SLEEP, MAX_SLEEP, SLEEP_SHARE = 0.1, 3.0, 0.05  # seconds, and the share of the time waited
NODE_LIST_SECONDS = 5.0  # between requests for the list of connected nodes
GRACE_SECONDS = 60.0  # the SuperLink keeps a message so long after its call has ended
BUSY = "still busy with an earlier call"


@dataclass(frozen=True)
class Call:
    """Messages of one kind by node, and the time limit for their answers."""

    kind: str
    contents: Mapping[int, RecordDict]
    seconds: float
    group: str = ""


@dataclass(frozen=True)
class Answer:
    """A node's reply, or the reason why there is none."""

    message: Message | None
    reason: str
    seconds: float = 0.0  # from the call to the answer
    bytes: int = 0  # of models, both ways

    @property
    def content(self) -> RecordDict | None:
        """The content of the reply."""
        return self.message.content if self.message else None


Conversation = Generator[Call, dict[int, Answer], Any]


@dataclass
class _OpenCall:
    conversation: Conversation
    began: float
    deadline: float
    waiting: dict[str, int] = field(default_factory=dict)  # message id → node
    answers: dict[int, Answer] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)  # bytes by node


class MessageLoop:
    """The only part of the server that uses the grid."""

    def __init__(self, grid: Grid, clock: Callable[[], float] = time.monotonic) -> None:
        self._grid, self._clock = grid, clock
        self._overdue: dict[str, int] = {}  # messages whose call has ended → node
        self._listed, self._connected = -NODE_LIST_SECONDS, set[int]()

    @property
    def busy(self) -> set[int]:
        """Nodes that have not answered an earlier call."""
        return set(self._overdue.values())

    def connected(self, refresh: bool = False) -> set[int]:
        """The connected nodes, as of a few seconds ago at most."""
        now = self._clock()
        if refresh or now - self._listed >= NODE_LIST_SECONDS:
            self._listed, self._connected = now, set(self._grid.get_node_ids())
        return self._connected

    def run(self, conversations: Sequence[Conversation], background: Sequence[Conversation] = ()) -> list[Any]:
        """Hold all conversations at once until `conversations` have ended; what each of these returned."""
        results: dict[Conversation, Any] = {}
        opened: list[_OpenCall] = []

        def advance(conversation: Conversation, answers: dict[int, Answer] | None) -> None:
            try:
                call = next(conversation) if answers is None else conversation.send(answers)
                while not call.contents and not call.seconds:  # nothing to wait for
                    call = conversation.send({})
            except StopIteration as end:
                results[conversation] = end.value
                return
            opened.append(self._send(conversation, call))

        for conversation in (*conversations, *background):
            advance(conversation, None)
        while not all(one in results for one in conversations):
            self._pull(opened)
            now = self._clock()
            for call in [c for c in opened if now >= c.deadline or (c.answers and not c.waiting)]:
                self._give_up(call, "no answer in time", call.waiting)
                opened.remove(call)
                advance(call.conversation, call.answers)
            if opened and not all(one in results for one in conversations):
                self._sleep(opened)
        for conversation in (*conversations, *background):
            conversation.close()
        return [results[one] for one in conversations]

    def _send(self, conversation: Conversation, call: Call) -> _OpenCall:
        now = self._clock()
        opened = _OpenCall(conversation, now, now + call.seconds)
        outgoing, ttl = [], call.seconds + GRACE_SECONDS
        for node, content in call.contents.items():
            if node in self.busy:
                opened.answers[node] = Answer(None, BUSY)
                continue
            opened.sent[node] = messages.size(content)
            outgoing.append(Message(content, node, call.kind, ttl=ttl, group_id=call.group))
        for message, number in zip(outgoing, self._grid.push_messages(outgoing) if outgoing else [], strict=True):
            node = message.metadata.dst_node_id
            if number:
                opened.waiting[number] = node
            else:
                opened.answers[node] = Answer(None, "the SuperLink did not accept the message")
        return opened

    def _pull(self, opened: list[_OpenCall]) -> None:
        waiting = {number: call for call in opened for number in call.waiting}
        if waiting or self._overdue:
            for reply in self._grid.pull_messages([*waiting, *self._overdue]):
                number = reply.metadata.reply_to_message_id
                self._overdue.pop(number, None)  # too late, but the node is free again
                if number in waiting:
                    self._take(waiting[number], number, reply)
        for call in opened if waiting else []:
            connected = self.connected()
            lost = {number: node for number, node in call.waiting.items() if node not in connected}
            self._give_up(call, "the node left", lost)

    def _take(self, call: _OpenCall, number: str, reply: Message) -> None:
        node, seconds = call.waiting.pop(number), self._clock() - call.began
        if reply.has_error():
            call.answers[node] = Answer(None, _error_line(reply), seconds, call.sent[node])
        else:
            call.answers[node] = Answer(reply, "", seconds, call.sent[node] + messages.size(reply.content))

    def _give_up(self, call: _OpenCall, reason: str, numbers: Mapping[str, int]) -> None:
        for number, node in list(numbers.items()):
            del call.waiting[number]
            call.answers[node] = Answer(None, reason, self._clock() - call.began, call.sent[node])
            if node in self.connected():  # a lost node will never answer
                self._overdue[number] = node

    def _sleep(self, opened: list[_OpenCall]) -> None:
        now = self._clock()
        waited = min(now - call.began for call in opened)
        left = min(call.deadline for call in opened) - now
        time.sleep(max(0.0, min(max(MIN_SLEEP, SLEEP_SHARE * waited), MAX_SLEEP, left)))


def pause(seconds: float) -> Call:
    """A call without messages: it only waits."""
    return Call("", {}, seconds)


def _error_line(reply: Message) -> str:
    """A node's error in one line."""
    text = (reply.error.reason or "an error without a reason").splitlines()[0]
    kind, _, rest = text.partition(":<'")  # flwr writes <class 'x.Y'>:<'…'>
    return (rest.removesuffix("'>") if rest else kind)[:300]
