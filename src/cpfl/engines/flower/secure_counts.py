"""A cohort's label counts over the grid: the four steps of a masked sum."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ConfigRecord
from numpy.typing import NDArray

from cpfl.engines.flower import messages
from cpfl.engines.flower.client_registry import ClientRegistry, EnrolledClient
from cpfl.engines.flower.message_loop import Call, Conversation, MessageLoop
from cpfl.engines.flower.messages import COUNTS, MASKED, REPORT, REVEAL, SHARES
from cpfl.errors import PrivacyError
from cpfl.privacy.label_counts import HIDDEN, clean
from cpfl.privacy.masked_sum import MaskedSumServer, Reveal
from cpfl.task.task import Task


class SecureCounts:
    """Sums the label counts of cohorts; the counts of a cohort that keeps them are HIDDEN, and a message says why."""

    def __init__(self, task: Task, registry: ClientRegistry, notify: Callable[[str], None], seconds: float) -> None:
        self._task, self._enrolled, self._notify, self._seconds = task, registry.enrolled, notify, seconds

    def collect(self, loop: MessageLoop) -> NDArray[np.int64]:
        """The counts (N, C) of all cohorts at once."""
        return np.stack(loop.run([self._cohort(i, group) for i, group in enumerate(self._task.cohorts)]))

    def _cohort(self, cohort: int, clients: Sequence[int]) -> Conversation:
        members = [self._enrolled[client] for client in clients if client in self._enrolled]
        hidden, privacy = np.full(self._task.data.classes, HIDDEN), self._task.experiment.privacy
        needed = max([privacy.min_clients, *(member.min_clients for member in members)])
        try:
            if len(members) < needed:
                raise PrivacyError(f"{len(members)} clients are too few to hide one of them, {needed} are needed")
            senders, total = yield from (self._single(members[0]) if len(members) == 1 else self._sum(members))
        except PrivacyError as why:
            self._notify(f"cohort {cohort} keeps its label counts and gets uniform weights: {why}")
            return hidden
        samples = sum(self._enrolled[client].training for client in senders)
        if not privacy.epsilon and total.sum() != samples:
            self._notify(
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
        tally = MaskedSumServer({member.client: member.keys for member in members})
        numbers = {member.client: tally.number(member.client) for member in members}
        mask_keys, share_keys = map(list, zip(*tally.roster.values(), strict=True))
        keys = {"members": list(tally.roster), "mask keys": mask_keys, "share keys": share_keys}
        requests: dict[int, Any] = {client: {**keys, "member": number} for client, number in numbers.items()}
        dealt = yield from self._step(SHARES, requests, messages.by_number)
        passed = tally.relay({numbers[client]: shares for client, shares in dealt.items()})
        requests = {c: messages.numbered(passed[number]) for c, number in numbers.items() if number in passed}
        masked = yield from self._step(MASKED, requests, _values)
        for client, values in masked.items():
            if len(values) == self._task.data.classes:
                tally.add(numbers[client], values)
        senders = [client for client in masked if numbers[client] in tally.sent()]
        revealed = yield from self._step(REVEAL, {client: {"senders": tally.sent()} for client in senders}, _reveal)
        return senders, tally.result([(numbers[client], reveal) for client, reveal in revealed.items()])

    def _step(
        self, kind: str, requests: Mapping[int, Mapping[str, Any]], read: Callable[[ConfigRecord], Any]
    ) -> Conversation:
        """The answers of clients by client; clients without a valid answer have dropped out."""
        experiment, classes = self._task.experiment, self._task.data.classes
        nodes = {client: self._enrolled[client].node for client in requests}
        contents = {
            nodes[client]: messages.answer({**request, **messages.context(experiment, classes, client)})
            for client, request in requests.items()
        }
        answers = yield Call(kind, contents, self._seconds)
        found = {}
        for client, node in nodes.items():
            try:
                content = answers[node].content
                if content is None:
                    raise ValueError(answers[node].reason)
                found[client] = read(content.config_records[REPORT])
            except Exception as error:  # a malformed answer can raise anything
                self._notify(f"client {client} drops out of the sum of label counts: {error}")
        return found


def _values(report: ConfigRecord) -> NDArray[np.uint32]:
    return np.frombuffer(bytes(report["values"]), "<u4").astype(np.uint32)  # type: ignore[arg-type]


def _reveal(report: ConfigRecord) -> Reveal:
    shares, dropped = messages.by_number(report), set(report["dropped"])  # type: ignore[arg-type]
    return Reveal(
        seeds={number: share for number, share in shares.items() if number not in dropped},
        keys={number: share for number, share in shares.items() if number in dropped},
    )
