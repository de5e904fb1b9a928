"""Sending and waiting on one grid for many conversations at once.

A conversation is a generator: it yields a call (letters to nodes, and how long to wait) and is sent the answers. All
conversations share one loop and one request to the SuperLink for all that is due, so cohorts run side by side without
threads and the stock three-second pause of `send_and_receive` is gone. How long the loop sleeps follows how long it
has waited: a tenth of a second at first, never more than a twentieth of the time that has passed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from cpfl.engines.flower import letters

SHORTEST, LONGEST, SHARE = 0.1, 3.0, 0.05  # seconds between looks, and their share of the time waited
ROLL_CALL = 5.0  # seconds between looks at who is connected
GRACE = 60.0  # seconds that a letter stays with the SuperLink after nobody waits for it any more


@dataclass(frozen=True)
class Call:
    """Letters by node, all of one kind, and how long to wait for the answers."""

    kind: str
    letters: Mapping[int, RecordDict]
    seconds: float
    group: str = ""


@dataclass(frozen=True)
class Answer:
    """What came back from a node: content, or why there is none."""

    message: Message | None
    trouble: str
    seconds: float  # from the call to the answer
    bytes: int  # of models, both ways

    @property
    def content(self) -> RecordDict | None:
        """What it says."""
        return self.message.content if self.message else None


Talk = Generator[Call, dict[int, Answer], Any]
T = TypeVar("T")


@dataclass
class _Open:
    """A call that waits for answers."""

    talk: Talk
    began: float
    until: float
    waiting: dict[str, int]  # message id → node
    answers: dict[int, Answer] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)


class Post:
    """The one loop that talks to the SuperLink."""

    def __init__(self, grid: Grid, clock: Callable[[], float] = time.monotonic) -> None:
        self._grid, self._clock = grid, clock
        self._overdue: dict[str, int] = {}  # letters that nobody waits for any more, and the node that has them
        self._looked, self._connected = -ROLL_CALL, set[int]()

    @property
    def busy(self) -> set[int]:
        """Nodes that still owe an answer to an earlier call."""
        return set(self._overdue.values())

    def connected(self) -> set[int]:
        """Nodes that the SuperLink hears of, as of a few seconds ago."""
        now = self._clock()
        if now - self._looked >= ROLL_CALL:
            self._looked, self._connected = now, set(self._grid.get_node_ids())
        return self._connected

    def forget(self) -> None:
        """Look again at once."""
        self._looked = -ROLL_CALL

    def converse(self, talks: Sequence[Talk], meanwhile: Sequence[Talk] = ()) -> list[Any]:
        """Hold all conversations at once until those of `talks` have ended; what each of them returned."""
        results: dict[Talk, Any] = {}
        opened: list[_Open] = []

        def go_on(talk: Talk, answers: dict[int, Answer] | None) -> None:
            try:
                call = next(talk) if answers is None else talk.send(answers)
                while not call.letters and not call.seconds:  # nothing to wait for
                    call = talk.send({})
            except StopIteration as end:
                results[talk] = end.value
                return
            opened.append(self._send(talk, call))

        for talk in (*talks, *meanwhile):
            go_on(talk, None)
        while not all(talk in results for talk in talks):
            self._look(opened)
            now = self._clock()
            for call in [c for c in opened if not c.waiting or now >= c.until]:
                if not call.waiting and not call.answers and now < call.until:
                    continue  # a pause: no letters, just time
                self._give_up(call, "no answer in time")
                opened.remove(call)
                go_on(call.talk, call.answers)
            if opened and not all(talk in results for talk in talks):
                self._sleep(opened)
        for talk in (*talks, *meanwhile):
            talk.close()
        return [results[talk] for talk in talks]

    def hold(self, talk: Generator[Call, dict[int, Answer], T]) -> T:
        """One conversation alone."""
        result: T = self.converse([talk])[0]
        return result

    def _send(self, talk: Talk, call: Call) -> _Open:
        now = self._clock()
        opened = _Open(talk, now, now + call.seconds, {})
        messages = []
        for node, content in call.letters.items():
            if node in self.busy:
                opened.answers[node] = Answer(None, "still busy with an earlier call", 0.0, 0)
                continue
            opened.sent[node] = letters.size(content)
            messages.append(Message(content, node, call.kind, ttl=call.seconds + GRACE, group_id=call.group))
        for message, number in zip(messages, self._grid.push_messages(messages) if messages else [], strict=True):
            node = message.metadata.dst_node_id
            if number:
                opened.waiting[number] = node
            else:
                opened.answers[node] = Answer(None, "the SuperLink did not take the message", 0.0, 0)
        return opened

    def _look(self, opened: list[_Open]) -> None:
        due = {number: call for call in opened for number in call.waiting}
        if due or self._overdue:
            for reply in self._grid.pull_messages([*due, *self._overdue]):
                number = reply.metadata.reply_to_message_id
                self._overdue.pop(number, None)  # too late, but the node is free again
                if number in due:
                    self._take(due[number], number, reply)
        if due:
            there = self.connected()
            for call in opened:
                gone = {number: node for number, node in call.waiting.items() if node not in there}
                if gone:
                    self._give_up(call, "the node left", gone)

    def _take(self, call: _Open, number: str, reply: Message) -> None:
        node, seconds = call.waiting.pop(number), self._clock() - call.began
        if reply.has_error():
            call.answers[node] = Answer(None, _reason(reply), seconds, call.sent[node])
        else:
            moved = call.sent[node] + letters.size(reply.content)
            call.answers[node] = Answer(reply, "", seconds, moved)

    def _give_up(self, call: _Open, why: str, numbers: Mapping[str, int] | None = None) -> None:
        for number, node in list((numbers or call.waiting).items()):
            del call.waiting[number]
            call.answers[node] = Answer(None, why, self._clock() - call.began, call.sent[node])
            if node in self.connected():  # else nothing will ever come
                self._overdue[number] = node

    def _sleep(self, opened: list[_Open]) -> None:
        now = self._clock()
        waited = min(now - call.began for call in opened)
        left = min(call.until for call in opened) - now
        time.sleep(max(0.0, min(max(SHORTEST, SHARE * waited), LONGEST, left)))


def pause(seconds: float) -> Call:
    """A call to nobody: just time."""
    return Call("", {}, seconds)


def _reason(reply: Message) -> str:
    """What a node says of its trouble, in one line."""
    text = (reply.error.reason or "an error without a reason").splitlines()[0]
    kind, _, rest = text.partition(":<'")  # flwr writes <class 'x.Y'>:<'…'>
    return (rest.removesuffix("'>") if rest else kind)[:300]
