"""A cohort's label counts over the grid: the four steps of a masked sum, or why the cohort keeps them to itself."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray

from cpfl.engines.flower import letters
from cpfl.engines.flower.letters import COUNTS, MASKED, REPORT, REVEAL, SHARES
from cpfl.engines.flower.post import Answer, Call, Post, Talk
from cpfl.engines.flower.roll import Place, Roll
from cpfl.errors import PrivacyError
from cpfl.privacy.counts import HIDDEN, clean
from cpfl.privacy.masked_sum import Reveal, Tally
from cpfl.problem import Problem


class Counting:
    """Asks cohorts for their label counts; what a cohort does not tell is HIDDEN, and a note says why."""

    def __init__(self, problem: Problem, post: Post, roll: Roll, note: Callable[[str], None], seconds: float) -> None:
        self._problem, self._post, self._roll, self._note, self._seconds = problem, post, roll, note, seconds

    def all(self) -> NDArray[np.int64]:
        """(N, C), all cohorts at once."""
        return np.stack(self._post.converse([self._cohort(i, group) for i, group in enumerate(self._problem.plan)]))

    def _cohort(self, cohort: int, clients: Sequence[int]) -> Talk:
        places = [self._roll.places[client] for client in clients if client in self._roll.places]
        hidden = np.full(self._problem.data.classes, HIDDEN)
        smallest = max([self._problem.experiment.privacy.smallest, *(place.smallest for place in places)])
        try:
            if len(places) < smallest:
                raise PrivacyError(f"{len(places)} clients are too few to hide one of them, {smallest} are needed")
            sent, total = yield from (self._alone(places[0]) if len(places) == 1 else self._sum(places))
        except PrivacyError as why:
            self._note(f"cohort {cohort} keeps its label counts and gets uniform weights: {why}")
            return hidden
        held = sum(self._roll.places[client].training for client in sent)
        if not self._problem.experiment.privacy.epsilon and total.sum() != held:
            self._note(
                f"cohort {cohort} gets uniform weights: its label counts add up to {total.sum()}, "
                f"its clients hold {held} samples"
            )
            return hidden
        return clean(total)

    def _alone(self, place: Place) -> Talk:
        told = yield from self._step(COUNTS, {place.client: ConfigRecord({})}, _values)
        if place.client not in told:
            raise PrivacyError(f"client {place.client} did not tell them")
        return [place.client], told[place.client].astype(np.int64)

    def _sum(self, places: Sequence[Place]) -> Talk:
        tally = Tally({place.client: place.keys for place in places})
        numbers = {place.client: tally.number(place.client) for place in places}
        roster: dict[str, Any] = {
            "who": list(tally.roster),
            "mask keys": [mask for mask, _ in tally.roster.values()],
            "letter keys": [letter for _, letter in tally.roster.values()],
        }
        asked = {client: ConfigRecord({**roster, "me": number}) for client, number in numbers.items()}
        dealt = yield from self._step(SHARES, asked, letters.by_number)
        passed = tally.pass_on({numbers[client]: shares for client, shares in dealt.items()})
        asked = {c: letters.numbered(passed[number]) for c, number in numbers.items() if number in passed}
        masked = yield from self._step(MASKED, asked, _values)
        for client, values in masked.items():
            if len(values) == self._problem.data.classes:
                tally.add(numbers[client], values)
        sent = [client for client in masked if numbers[client] in tally.sent()]
        asked = {client: ConfigRecord({"sent": tally.sent()}) for client in sent}
        revealed = yield from self._step(REVEAL, asked, _reveal)
        return sent, tally.result([(numbers[client], reveal) for client, reveal in revealed.items()])

    def _step(
        self, kind: str, configs: Mapping[int, ConfigRecord], how: Callable[[ConfigRecord], Any]
    ) -> Generator[Call, dict[int, Answer], dict[int, Any]]:
        """Ask clients, read what those say who answer; the others have dropped out."""
        classes, experiment = self._problem.data.classes, self._problem.experiment.model_dump_json()
        contents = {}
        for client, config in configs.items():
            about: dict[str, Any] = {"cpfl.classes": classes, "cpfl.experiment": experiment, "cpfl.client": client}
            contents[self._roll.places[client].node] = RecordDict({REPORT: ConfigRecord({**config, **about})})
        answers = yield Call(kind, contents, self._seconds)
        told = {}
        for client in configs:
            answer = answers[self._roll.places[client].node]
            try:
                if answer.content is None:
                    raise ValueError(answer.trouble)
                told[client] = how(answer.content.config_records[REPORT])
            except Exception as error:  # whatever a foreign answer makes us stumble over
                self._note(f"client {client} drops out of the sum of label counts: {error}")
        return told


def _values(report: ConfigRecord) -> NDArray[np.uint32]:
    return np.frombuffer(bytes(report["values"]), "<u4").astype(np.uint32)  # type: ignore[arg-type]


def _reveal(report: ConfigRecord) -> Reveal:
    found = letters.by_number(report)
    gone = set(report["gone"])  # type: ignore[arg-type]
    return Reveal(
        seeds={number: share for number, share in found.items() if number not in gone},
        keys={number: share for number, share in found.items() if number in gone},
    )
