"""A cohort's label counts over the grid: the four steps of a masked sum."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from cpfl.engines.flower import messages
from cpfl.engines.flower.client_registry import ClientRegistry, EnrolledClient
from cpfl.engines.flower.message_loop import Conversation
from cpfl.engines.flower.messages import COUNTS, MASKED, REPORT, REVEAL, SHARES, Refused
from cpfl.errors import PrivacyError
from cpfl.privacy.label_counts import HIDDEN, clean
from cpfl.privacy.masked_sum import MaskedSumServer, Reveal
from cpfl.task.task import Task


class SecureCounts:
    """Sums the label counts of cohorts; the counts of a cohort that keeps them are HIDDEN, and a message says why."""

    def __init__(self, task: Task, registry: ClientRegistry, seconds: float) -> None:
        self._task, self._registry, self._seconds = task, registry, seconds

    def collect(self) -> NDArray[np.int64]:
        """The counts (N, C) of all cohorts at once."""
        cohorts = [self._cohort(cohort, clients) for cohort, clients in enumerate(self._task.cohorts)]
        return np.stack(self._registry.loop.run(cohorts))

    def _cohort(self, cohort: int, clients: Sequence[int]) -> Conversation:
        enrolled, notify, privacy = self._registry.enrolled, self._registry.notify, self._task.experiment.privacy
        members = [enrolled[client] for client in clients if client in enrolled]
        hidden = np.full(self._task.data.classes, HIDDEN)
        needed = max([privacy.min_clients, *(member.min_clients for member in members)])
        try:
            if len(members) < needed:
                raise PrivacyError(f"{len(members)} clients are too few to hide one of them, {needed} are needed")
            senders, total = yield from (self._single(members[0]) if len(members) == 1 else self._sum(members))
        except PrivacyError as why:
            notify(f"cohort {cohort} keeps its label counts and gets uniform weights: {why}")
            return hidden
        samples = sum(enrolled[client].training for client in senders)
        if not privacy.epsilon and total.sum() != samples:
            notify(
                f"cohort {cohort} gets uniform weights: its label counts add up to {total.sum()}, "
                f"its clients hold {samples} samples"
            )
            return hidden
        return clean(total)

    def _single(self, member: EnrolledClient) -> Conversation:
        counts = yield from self._step(COUNTS, {member.client: {}}, _values)
        if member.client not in counts:
            raise PrivacyError(f"client {member.client} did not send them")
        return [member.client], counts[member.client].astype(np.int64)

    def _sum(self, members: Sequence[EnrolledClient]) -> Conversation:
        server = MaskedSumServer({member.client: member.keys for member in members})
        numbers = {member.client: server.number(member.client) for member in members}
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
