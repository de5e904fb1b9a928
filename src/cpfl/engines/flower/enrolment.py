"""Before the first round: which node is which client of the experiment, and the label counts of each cohort.

Cohorts are assigned over client numbers before any node is connected. A node takes the number that its own
configuration names (client=3), or else the lowest free one. A node that connects late, or again, takes part from the
next round on. Label counts are sent once, under the masks of `cpfl.privacy.masked_sum`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from cpfl.data.split import validation_counts
from cpfl.engines.flower import messages
from cpfl.engines.flower.message_loop import Call, Conversation, MessageLoop, pause
from cpfl.engines.flower.messages import COUNTS, ENROL, MASKED, REPORT, REVEAL, SHARES, Refused
from cpfl.errors import CpflError, PrivacyError
from cpfl.privacy.label_counts import HIDDEN
from cpfl.privacy.masked_sum import MaskedSumServer, Reveal
from cpfl.settings import Experiment
from cpfl.task.task import Task

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
        clients, end = self._experiment.clients, self.loop.clock.now() + seconds
        while len(self.enrolled) < clients and (remaining := end - self.loop.clock.now()) > 0:
            yield from self._enrol(self.loop.connected(refresh=True), min(remaining, ENROL_SECONDS))
            if len(self.enrolled) < clients:
                yield pause(PAUSE_SECONDS)
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
        return "still busy with an earlier call" if enrolled.node in self.loop.busy else ""

    def ask(self, kind: str, contents: Mapping[int, RecordDict], seconds: float) -> Conversation:
        """A call with messages by client; the answers by client."""
        nodes = {client: self.enrolled[client].node for client in contents}
        by_node = {nodes[client]: content for client, content in contents.items()}
        answers = yield Call(kind, by_node, seconds)
        return {client: answers[node] for client, node in nodes.items()}

    def _enrol(self, connected: set[int], seconds: float) -> Conversation:
        self._known &= connected  # a node that reconnects enrols again
        new = connected - self._known - self.loop.busy
        if not new:
            return
        answers = yield Call(ENROL, dict.fromkeys(sorted(new), messages.answer({})), seconds)
        self._known |= answers.keys() - self.loop.busy  # one that is only slow is asked again
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


class SecureCounts:
    """Sums the label counts of cohorts; the counts of a cohort that keeps them are HIDDEN, and a message says why."""

    def __init__(self, task: Task, registry: ClientRegistry, seconds: float) -> None:
        self._task, self._registry, self._seconds = task, registry, seconds

    def collect(self) -> NDArray[np.int64]:
        """The counts (N, C) of all cohorts at once."""
        cohorts = [self._cohort(cohort, clients) for cohort, clients in enumerate(self._task.cohorts)]
        return np.stack(self._registry.loop.run(cohorts))

    def _cohort(self, cohort: int, clients: Sequence[int]) -> Conversation:
        enrolled, privacy = self._registry.enrolled, self._task.experiment.privacy
        members = [enrolled[client] for client in clients if client in enrolled]
        needed = max([privacy.min_clients, *(member.min_clients for member in members)])
        try:
            if len(members) < needed:
                raise PrivacyError(f"{len(members)} clients are too few to hide one of them, {needed} are needed")
            senders, total = yield from (self._single(members[0]) if len(members) == 1 else self._sum(members))
            samples = sum(enrolled[client].training for client in senders)
            if not privacy.epsilon and not self._task.data.can_count(int(total.sum()), samples):
                raise PrivacyError(f"they add up to {total.sum()}, its clients hold {samples} samples")
        except PrivacyError as why:
            self._registry.notify(f"no label counts of cohort {cohort} are used, it gets uniform weights: {why}")
            return np.full(self._task.data.classes, HIDDEN)
        return np.maximum(total, 0)  # noise may have made a count negative

    def _single(self, member: EnrolledClient) -> Conversation:
        counts = yield from self._step(COUNTS, {member.client: {}}, _values)
        if member.client not in counts:
            raise PrivacyError(f"client {member.client} did not send them")
        return [member.client], counts[member.client].astype(np.int64)

    def _sum(self, members: Sequence[EnrolledClient]) -> Conversation:
        server = MaskedSumServer({member.client: member.keys for member in members})
        numbers = server.numbers
        mask_keys, share_keys = map(list, zip(*server.roster.values(), strict=True))
        keys = {"members": list(server.roster), "mask keys": mask_keys, "share keys": share_keys}
        requests: dict[int, Any] = {client: {**keys, "member": number} for client, number in numbers.items()}
        dealt = yield from self._step(SHARES, requests, lambda content: messages.by_number(content[REPORT]))
        passed = server.relay({numbers[client]: shares for client, shares in dealt.items()})
        requests = {c: messages.numbered(passed[number]) for c, number in numbers.items() if number in passed}
        masked = yield from self._step(MASKED, requests, _values)
        for client, values in masked.items():
            if len(values) == self._task.data.classes:
                server.add(numbers[client], values)
        senders = [client for client in masked if numbers[client] in server.sent()]
        revealed = yield from self._step(REVEAL, {client: {"senders": server.sent()} for client in senders}, _reveal)
        return senders, server.result([(numbers[client], reveal) for client, reveal in revealed.items()])

    def _step(
        self, kind: str, requests: Mapping[int, Mapping[str, Any]], read: Callable[[RecordDict], Any]
    ) -> Conversation:
        """The answers of clients by client; clients without a valid answer have dropped out."""
        experiment, classes = self._task.experiment, self._task.data.classes
        contents = {
            client: messages.answer({**request, **messages.context(experiment, classes, client)})
            for client, request in requests.items()
        }
        answers = yield from self._registry.ask(kind, contents, self._seconds)
        found = {}
        for client, answer in answers.items():
            try:
                found[client] = answer.read(read)
            except Refused as why:
                self._registry.notify(f"client {client} drops out of the sum of label counts: {why}")
        return found


def _values(content: RecordDict) -> NDArray[np.uint32]:
    report: Any = content[REPORT]
    return np.frombuffer(bytes(report["values"]), "<u4").astype(np.uint32)


def _reveal(content: RecordDict) -> Reveal:
    report: Any = content[REPORT]
    shares, dropped = messages.by_number(report), set(report["dropped"])
    return Reveal(
        seeds={number: share for number, share in shares.items() if number not in dropped},
        keys={number: share for number, share in shares.items() if number in dropped},
    )
