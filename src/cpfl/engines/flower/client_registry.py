"""Which node is which client of the experiment.

Cohorts are assigned over client numbers before any node is connected. A node takes the number that its own
configuration names (client=3), or else the lowest free one. A node that connects late, or again, takes part from the
next round on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from flwr.app import RecordDict

from cpfl.data.split import validation_counts
from cpfl.engines.flower import messages
from cpfl.engines.flower.message_loop import BUSY, Call, Conversation, MessageLoop, pause
from cpfl.engines.flower.messages import ENROL, REPORT, Refused
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

    def __init__(self, experiment: Experiment, loop: MessageLoop, notify: Callable[[str], None]) -> None:
        self._experiment, self.loop, self.notify = experiment, loop, notify
        self.enrolled: dict[int, EnrolledClient] = {}
        self._known: set[int] = set()  # nodes that have answered

    def wait_for_clients(self, seconds: float, needed: int) -> Conversation:
        """Wait until all clients have enrolled, or for so long; then at least `needed` must have."""
        clients, remaining = self._experiment.clients, seconds
        while len(self.enrolled) < clients and remaining > 0:
            yield from self._enrol(self.loop.connected(refresh=True), min(remaining, ENROL_SECONDS))
            if len(self.enrolled) < clients:
                yield pause(PAUSE_SECONDS)
                remaining -= PAUSE_SECONDS
        enrolled, missing = len(self.enrolled), sorted(set(range(clients)) - self.enrolled.keys())
        if enrolled < needed:
            raise CpflError(
                f"{enrolled} of {clients} clients enrolled in {seconds:.0f} s, {needed} are needed (begin-with)"
            )
        if missing:
            self.notify(f"starting without clients {missing}: they take part as soon as they enrol")

    def enrol_late_nodes(self) -> Conversation:
        """Enrol nodes that connect while other conversations run."""
        while True:
            yield pause(PAUSE_SECONDS)
            yield from self._enrol(self.loop.connected(), ENROL_SECONDS)

    def unavailable(self, client: int) -> str:
        """Why a client gets no message now; empty: it can get one."""
        enrolled = self.enrolled.get(client)
        if enrolled is None:
            return "not enrolled yet"
        if enrolled.node not in self.loop.connected():
            return "not connected"
        return BUSY if enrolled.node in self.loop.busy else ""

    def ask(self, kind: str, contents: Mapping[int, RecordDict], seconds: float, group: str = "") -> Conversation:
        """A call with messages by client; the answers by client."""
        nodes = {client: self.enrolled[client].node for client in contents}
        by_node = {nodes[client]: content for client, content in contents.items()}
        answers = yield Call(kind, by_node, seconds, group)
        return {client: answers[node] for client, node in nodes.items()}

    def _enrol(self, connected: set[int], seconds: float) -> Conversation:
        self._known &= connected  # a node that reconnects enrols again
        new = connected - self._known - self.loop.busy
        if not new:
            return
        answers = yield Call(ENROL, dict.fromkeys(sorted(new), messages.answer({})), seconds)
        self._known |= answers.keys()
        for node, answer in answers.items():
            try:
                client = answer.read(partial(self._checked, node, connected))
            except Refused as why:
                self.notify(f"node {node} cannot take part: {why}")
                continue
            self.enrolled[client.client] = client
            self.notify(f"client {client.client} is node {node}: {client.training} + {client.validation} samples")

    def _checked(self, node: int, connected: set[int], content: RecordDict) -> EnrolledClient:
        """The client that a node enrols for; Refused if it cannot be that one."""
        report, clients = content.config_records[REPORT], self._experiment.clients
        client, samples, min_clients = (report[key] for key in ("client", "samples", "min_clients"))
        if not (type(client) is int and type(samples) is int and type(min_clients) is int):
            raise Refused(f"{client!r}, {samples!r} and {min_clients!r} must be integers")
        if not 1 <= samples <= MAX_SAMPLES:
            raise Refused(f"{samples} samples: 1 to {MAX_SAMPLES} are possible")
        validation = int(validation_counts(self._experiment, np.array([samples]))[0])
        if client == ANY_CLIENT:
            own = [c for c, enrolled in self.enrolled.items() if enrolled.node == node]
            free = [c for c in range(clients) if c not in self.enrolled]
            client = (own or free or [clients])[0]
        if not 0 <= client < clients:
            raise Refused(f"client {client}: there are {clients}")
        mask_key, share_key = bytes(report["mask key"]), bytes(report["share key"])  # type: ignore[arg-type]
        if not len(mask_key) == len(share_key) == 32:
            raise Refused("its keys do not have 32 bytes")
        before, training = self.enrolled.get(client), samples - validation
        if before and before.node != node and before.node in connected:
            raise Refused(f"client {client} is node {before.node}, which is connected")
        if before and before.training != training:
            raise Refused(f"client {client} had {before.training} samples, it claims {training}")
        return EnrolledClient(client, node, training, validation, min_clients, (mask_key, share_key))
