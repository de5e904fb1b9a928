"""Which node is which client of the experiment.

Cohorts are assigned over client numbers before any node is connected. A node takes the number that its own
configuration names (client=3), or else the lowest free one. A node that connects late, or again, takes part from the
next round on.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from flwr.app import ConfigRecord

from cpfl.data.split import validation_counts
from cpfl.engines.flower import messages
from cpfl.engines.flower.message_loop import Answer, Call, Conversation, MessageLoop, pause
from cpfl.engines.flower.messages import ENROL, REPORT
from cpfl.errors import CpflError
from cpfl.settings import Experiment

ANY_CLIENT = -1  # of a node that names no client number
ENROL_SECONDS = 120.0  # a node loads its data before it answers
PAUSE_SECONDS = 3.0  # between searches for new nodes
MAX_SAMPLES = 10**8  # a client that claims more is mistaken or lies


@dataclass(frozen=True)
class EnrolledClient:
    """A client of the experiment and the node that has its data."""

    client: int
    node: int
    training: int  # samples
    validation: int
    min_clients: int  # the smallest cohort in which it reveals its label counts
    keys: tuple[bytes, bytes]


class ClientRegistry:
    """The experiment's clients, and the nodes that have enrolled for them."""

    def __init__(self, experiment: Experiment, notify: Callable[[str], None]) -> None:
        self._experiment, self._notify = experiment, notify
        self.enrolled: dict[int, EnrolledClient] = {}
        self._known: set[int] = set()  # nodes that have answered

    def wait_for_clients(self, loop: MessageLoop, seconds: float, needed: int) -> Conversation:
        """Wait until all clients have enrolled, or for so long; then at least `needed` must have."""
        clients, remaining = self._experiment.clients, seconds
        while len(self.enrolled) < clients and remaining > 0:
            yield from self._enrol(loop, loop.connected(refresh=True), min(remaining, ENROL_SECONDS))
            if len(self.enrolled) < clients:
                yield pause(PAUSE_SECONDS)
                remaining -= PAUSE_SECONDS
        enrolled, missing = len(self.enrolled), sorted(set(range(clients)) - self.enrolled.keys())
        if enrolled < needed:
            raise CpflError(
                f"{enrolled} of {clients} clients enrolled in {seconds:.0f} s, {needed} are needed (begin-with)"
            )
        if missing:
            self._notify(f"starting without clients {missing}: they take part as soon as they enrol")

    def enrol_late_nodes(self, loop: MessageLoop) -> Conversation:
        """Enrol nodes that connect while other conversations run."""
        while True:
            yield pause(PAUSE_SECONDS)
            yield from self._enrol(loop, loop.connected(), ENROL_SECONDS)

    def _enrol(self, loop: MessageLoop, connected: set[int], seconds: float) -> Conversation:
        self._known &= connected  # a node that reconnects enrols again
        new = connected - self._known - loop.busy
        if not new:
            return
        answers = yield Call(ENROL, dict.fromkeys(sorted(new), messages.answer({})), seconds)
        for node, answer in answers.items():
            self._known.add(node)
            reason = self._take(node, answer, connected)
            if reason:
                self._notify(f"node {node} cannot take part: {reason}")

    def _take(self, node: int, answer: Answer, connected: set[int]) -> str:
        """Register a node, or the reason why not."""
        if answer.content is None:
            return answer.reason
        try:
            new = self._read(node, answer.content.config_records[REPORT])
        except (KeyError, ValueError, TypeError) as error:
            return f"its answer is not valid ({error})"
        before = self.enrolled.get(new.client)
        if before and before.node != node and before.node in connected:
            return f"client {new.client} is node {before.node}, which is connected"
        if before and before.training != new.training:
            return f"client {new.client} had {before.training} samples, it claims {new.training}"
        self.enrolled[new.client] = new
        self._notify(f"client {new.client} is node {node}: {new.training} + {new.validation} samples")
        return ""

    def _read(self, node: int, report: ConfigRecord) -> EnrolledClient:
        client, samples, min_clients = (_integer(report[key]) for key in ("client", "samples", "min_clients"))
        if not 1 <= samples <= MAX_SAMPLES:
            raise ValueError(f"{samples} samples: 1 to {MAX_SAMPLES} are possible")
        validation = int(validation_counts(self._experiment, np.array([samples]))[0])
        clients = self._experiment.clients
        if client == ANY_CLIENT:
            own = [c for c, enrolled in self.enrolled.items() if enrolled.node == node]
            free = [c for c in range(clients) if c not in self.enrolled]
            client = (own or free or [clients])[0]
        if not 0 <= client < clients:
            raise ValueError(f"client {client}: there are {clients}")
        keys = bytes(report["mask key"]), bytes(report["share key"])  # type: ignore[arg-type]
        if any(len(key) != 32 for key in keys):
            raise ValueError("its keys")
        return EnrolledClient(client, node, samples - validation, validation, min_clients, keys)


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is no integer")
    return value
