"""Who is there: which node is which client of the experiment.

The plan of cohorts is made over client numbers, before anybody has to be there. A node takes the number that its own
configuration names (client=3), or else the lowest that is free; one that comes late, or comes back, takes its place and
is in from the next round on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from cpfl.data.split import held_back
from cpfl.engines.flower.letters import ENROL, REPORT
from cpfl.engines.flower.post import Answer, Call, Post, Talk, pause
from cpfl.experiment import Experiment

ANYWHERE = -1  # a node that names no client number
SECONDS = 120.0  # a node may take so long to say who it is: it loads its data first
LOOK = 3.0  # seconds between looks for new nodes
MOST = 10**8  # samples that a client may claim; more is a mistake or a lie


@dataclass(frozen=True)
class Place:
    """A client of the experiment and the node that has its data."""

    client: int
    node: int
    training: int  # samples
    validation: int
    smallest: int  # the smallest cohort in which it tells its label counts
    keys: tuple[bytes, bytes]


class Roll:
    """The experiment's clients, and the nodes that have shown up for them."""

    def __init__(self, experiment: Experiment, note: Callable[[str], None]) -> None:
        self.clients, self._experiment, self._note = experiment.clients, experiment, note
        self.places: dict[int, Place] = {}
        self._known: set[int] = set()  # nodes that were asked

    def node(self, client: int) -> int | None:
        """The node that has this client's data."""
        place = self.places.get(client)
        return place.node if place else None

    def gather(self, post: Post, seconds: float, begin: int) -> Talk:
        """Wait until all are there, or for so long; then at least `begin` of them are needed."""
        left = seconds
        while len(self.places) < self.clients and left > 0:
            post.forget()
            yield from self._ask(post, min(left, SECONDS))
            if len(self.places) < self.clients:
                yield pause(LOOK)
                left -= LOOK
        return len(self.places) >= begin

    def watch(self, post: Post) -> Talk:
        """Let in whoever comes late, for as long as others talk."""
        while True:
            yield pause(LOOK)
            yield from self._ask(post, SECONDS)

    def _ask(self, post: Post, seconds: float) -> Talk:
        here = post.connected()
        self._known &= here  # one that left and comes back is asked again
        new = here - self._known - post.busy
        if not new:
            return
        letter = RecordDict({REPORT: ConfigRecord({})})
        answers = yield Call(ENROL, dict.fromkeys(sorted(new), letter), seconds)
        for node, answer in answers.items():
            self._known.add(node)
            self._take(node, answer, here)

    def _take(self, node: int, answer: Answer, here: set[int]) -> None:
        if answer.content is None:
            self._note(f"node {node} cannot take part: {answer.trouble}")
            return
        try:
            place = self._read(node, answer.content.config_records[REPORT])
        except (KeyError, ValueError, TypeError) as error:
            self._note(f"node {node} cannot take part: what it says of itself is no answer ({error})")
            return
        before = self.places.get(place.client)
        if before and before.node != node and before.node in here:
            self._note(f"node {node} cannot take part: client {place.client} is node {before.node}, which is there")
            return
        if before and before.training != place.training:
            self._note(
                f"node {node} cannot take part: client {place.client} had {before.training} samples, "
                f"it claims {place.training}"
            )
            return
        self.places[place.client] = place
        self._note(f"client {place.client} is node {node}: {place.training} + {place.validation} samples")

    def _read(self, node: int, told: ConfigRecord) -> Place:
        wanted, samples, smallest = (_whole(told[key]) for key in ("client", "samples", "smallest"))
        if not 1 <= samples <= MOST:
            raise ValueError(f"{samples} samples: 1 to {MOST} are possible")
        validation = int(held_back(self._experiment, np.array([samples]))[0])
        mine = [c for c, place in self.places.items() if place.node == node]
        free = [client for client in range(self.clients) if client not in self.places]
        if wanted == ANYWHERE:
            wanted = (mine or free or [self.clients])[0]
        if not 0 <= wanted < self.clients:
            raise ValueError(f"client {wanted}: there are {self.clients}")
        keys = bytes(told["mask key"]), bytes(told["letter key"])  # type: ignore[arg-type]
        if any(len(key) != 32 for key in keys):
            raise ValueError("its keys")
        return Place(wanted, node, samples - validation, validation, smallest, keys)


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is no whole number")
    return value
