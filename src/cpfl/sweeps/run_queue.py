"""The runs that wait for the shared slots of a cluster: which slot takes which one, and what it reports."""

from collections import deque
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

Event = tuple[Any, ...]
"""(kind, facts …): the name of a method of SweepCallback, or end."""


class RunQueue:
    """A queue for each slot. An actor beside the driver, so that a run is here, in a slot, or has ended."""

    def __init__(self, queues: Sequence[Sequence[Path]], steals: bool) -> None:
        """With `steals` a slot that has nothing to do takes runs of the slot that has the most."""
        self._waiting = [deque(queue) for queue in queues]
        self._in_work: list[list[Path]] = [[] for _ in queues]
        self._stealable = [steals] * len(queues)
        self._events: list[Event] = []

    def take(self, slot: int, allowed: Collection[Path]) -> Path | None:
        """The next run of a slot among these; None: there is none."""
        waiting = self._waiting[slot]
        if not waiting and not self._in_work[slot]:
            stealable = [queue for queue, may in zip(self._waiting, self._stealable, strict=True) if may]
            waiting = max(stealable, key=len, default=waiting)
        path = next((path for path in waiting if path in allowed), None)
        if path is not None:
            waiting.remove(path)
            self._in_work[slot].append(path)
        return path

    def report(self, slot: int, event: Event) -> None:
        """Something that the driver will be told."""
        if event[0] == "end":
            self._in_work[slot].remove(event[1])
        self._events.append(event)

    def events(self) -> list[Event]:
        """What was reported since the last call."""
        found, self._events = self._events, []
        return found

    def lost(self, slot: int) -> list[Path]:
        """A slot's process has died: the runs that it was making, or else the one that it would have taken first."""
        if not self._in_work[slot] and self._waiting[slot]:
            self._in_work[slot].append(self._waiting[slot].popleft())
        lost, self._in_work[slot] = self._in_work[slot], []
        return lost

    def put_back(self, slot: int, paths: Sequence[Path]) -> bool:
        """Runs that the slot makes again, before its others; whether it has any."""
        self._waiting[slot].extendleft(reversed(paths))
        return bool(self._waiting[slot])

    def add(self, paths: Sequence[Path]) -> int:
        """Another slot's queue, of which no other takes any; its number."""
        self._waiting.append(deque(paths))
        self._in_work.append([])
        self._stealable.append(False)
        return len(self._waiting) - 1

    def drop(self, slot: int) -> list[Path]:
        """All runs of a slot that cannot work: nobody makes them."""
        dropped = [*self._in_work[slot], *self._waiting[slot]]
        self._in_work[slot] = []
        self._waiting[slot].clear()
        return dropped
