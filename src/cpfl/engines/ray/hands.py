"""The workers as the driver sees them: made, asked for letters, found dead, made again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RaySystemError,
    RayTaskError,
    WorkerCrashedError,
)

from cpfl.engines.ray.cluster import Cluster
from cpfl.engines.ray.fitness import fitness
from cpfl.engines.ray.letters import Charge, Letter
from cpfl.engines.ray.worker import Worker
from cpfl.errors import ClusterError, CpflError

WAIT_SECONDS = 1.0  # that a worker waits for something to tell
ROOM_SECONDS = 300.0  # for a worker to find room, the first as well as another: others may hold what it needs
THREADS = 4  # of an actor: one answers with letters, the others take orders
PACE_SECONDS = 10.0  # over which a worker's speed is taken
TRIES = 3  # to fill a worker's place, after which the others go on without it
WITH_ITS_NODE = "its node has died"  # in Ray's words
# How a worker's death shows: a call that fails, or an answer that lay in the store of its node and went with it, as all
# beyond 100 KB do.
DEATHS = (RayActorError, ObjectLostError, NodeDiedError, OutOfMemoryError, WorkerCrashedError)


@dataclass(eq=False)
class Hand:
    """One worker."""

    number: int
    actor: Any
    arriving: Any  # the answer to whether it has found room
    opening: Any  # the answer to its opening
    tries: int = 1  # to fill its place, this one included
    bereft: bool = False  # it died with its node, which the cluster had not known to be lost
    arrived: bool = False  # it has room, and opens the problem, which may take long where much is compiled
    trouble: str = ""  # what its GPU said before it was let go
    facts: dict[str, Any] = field(default_factory=dict)
    cohorts: set[int] = field(default_factory=set)  # that it has been given
    leaving: set[int] = field(default_factory=set)  # of those, the ones that it was asked to give up
    busy: float = 0.0
    trained: deque[tuple[float, int]] = field(default_factory=deque)  # when, so many samples

    @property
    def ready(self) -> bool:
        """It has the problem."""
        return bool(self.facts)

    def did(self, samples: int) -> None:
        """It has closed a round."""
        self.trained.append((time.monotonic(), samples))

    def pace(self) -> float:
        """Samples a second of late."""
        now = time.monotonic()
        while self.trained and now - self.trained[0][0] > PACE_SECONDS:
            self.trained.popleft()
        return sum(samples for _, samples in self.trained) / PACE_SECONDS

    def row(self, load: float, pace: float) -> dict[str, Any]:
        """For those who look on."""
        known = {key: self.facts.get(key) for key in ("worker", "node", "pid", "device")}
        return {
            **known,
            "cohorts": sorted(self.cohorts),
            "load": round(load, 3),
            "samples_per_second": round(pace, 1),
        }


class Hands:
    """All workers of a run."""

    def __init__(self, cluster: Cluster, problem: Any) -> None:
        self._cluster, self._problem = cluster, problem
        self._made, self._here = 0, fitness("")
        self.there: list[Hand] = []
        self._asked: dict[Any, Hand] = {}  # what is waited for: an opening, or letters

    def begin(self) -> None:
        """Make them and wait until all that fit are there; their first trouble is told before anything is written."""
        for _ in range(self._cluster.workers):
            self.make()
        places = {hand.arriving: hand for hand in self.there}
        _, late = ray.wait(list(places), num_returns=len(places), timeout=ROOM_SECONDS)
        waiting = [hand.opening for hand in self.there if hand.arriving not in late]
        while waiting:
            (opening,), waiting = ray.wait(waiting, num_returns=1)
            hand = self._asked.pop(opening)
            self._asked.pop(hand.arriving)
            hand.arrived = True
            try:
                hand.facts = ray.get(opening)
                self._listen(hand)
            except RayTaskError as error:
                raise raised(error) from None
            except DEATHS as error:
                last = (str(error).strip().splitlines() or [""])[-1]
                raise ClusterError(f"a worker of the Ray cluster does not start: {last}") from None
        if late:
            raise ClusterError(
                f"{len(late)} of {len(places)} workers found no room on the Ray cluster in {ROOM_SECONDS:.0f} s, "
                "which others may use: wait, or ask for fewer --workers"
            )

    def make(self, tries: int = 1) -> Hand:
        """One more, as soon as the cluster has room for it."""
        share = {"num_cpus": self._cluster.cpus, "num_gpus": self._cluster.gpus}
        actor = (
            ray.remote(Worker)
            .options(**share, max_concurrency=THREADS)
            .remote(self._cluster.device, self._cluster.gpus)
        )
        arriving = actor.there.remote()
        opening = actor.open.remote([self._problem], f"worker {self._made}", self._here)
        hand = Hand(self._made, actor, arriving, opening, tries)
        self._made += 1
        self.there.append(hand)
        self._asked[arriving] = self._asked[opening] = hand
        return hand

    def replace(self, dead: Hand, why: str) -> str:
        """Have another in its place; if so many in a row could not begin there, what is to be said of that instead."""
        if dead.ready or dead.bereft or dead.tries < TRIES:
            self.make(1 if dead.ready else dead.tries + (not dead.bereft))
            return ""
        told = f"{TRIES} workers one after the other could not begin, the last one because: {why}"
        if not self.there:
            raise ClusterError(f"no worker of the Ray cluster is left, and {told}")
        return f"{told}; the other {len(self.there)} go on"

    @property
    def ready(self) -> list[Hand]:
        """Those that can be given work."""
        return [hand for hand in self.there if hand.ready]

    @property
    def coming(self) -> bool:
        """Whether somebody can be given work, or soon."""
        return any(hand.arrived for hand in self.there)

    def hear(self, seconds: float) -> tuple[list[tuple[Hand, list[Letter]]], list[tuple[Hand, str]]]:
        """Letters of those that had something to tell, and who was found dead, and why."""
        heard: list[tuple[Hand, list[Letter]]] = []
        dead: list[tuple[Hand, str]] = []
        answers, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0) if self._asked else ([], [])
        if not answers and self._asked:
            answers, _ = ray.wait(list(self._asked), num_returns=1, timeout=seconds)
        for answer in answers:
            hand = self._asked.pop(answer)
            if hand not in self.there:  # another answer of the same worker has told of its death
                continue
            try:
                found = ray.get(answer)
            except RayTaskError as error:
                if hand.ready:
                    raise raised(error) from None
                self._lose(hand)
                told = raised(error)
                dead.append((hand, _line(told if isinstance(told, CpflError) else error.cause)))
                continue
            except DEATHS as error:
                self._lose(hand)
                hand.bereft = WITH_ITS_NODE in str(error)
                dead.append((hand, hand.trouble or _line(error)))
                continue
            if answer == hand.arriving:
                hand.arrived = True
                continue
            if answer == hand.opening:
                hand.facts = found
            else:
                letters, hand.busy = found
                if letters:
                    heard.append((hand, letters))
            self._listen(hand)
        return heard, dead

    def wait_for_death(self, hand: Hand) -> list[tuple[Hand, str]]:
        """Until a worker that does not answer counts no more; who was found dead meanwhile, and why."""
        dead: list[tuple[Hand, str]] = []
        ray.kill(hand.actor)  # only the one answer may be lost
        while hand in self.there:
            dead += self.hear(WAIT_SECONDS)[1]
        return dead

    def dismiss(self, hand: Hand, why: str) -> None:
        """Its GPU fails it: it is found dead in a moment, and another takes its place."""
        hand.trouble = why
        ray.kill(hand.actor)

    def _lose(self, hand: Hand) -> None:
        self.there.remove(hand)
        ray.kill(hand.actor)  # it may only be out of reach: nobody may do its rounds twice

    def _listen(self, hand: Hand) -> None:
        self._asked[hand.actor.letters.remote(WAIT_SECONDS)] = hand

    def give(self, hand: Hand, charges: Sequence[Charge]) -> None:
        """Cohorts to train."""
        hand.cohorts.update(charge.cohort for charge in charges)
        hand.actor.take.remote(list(charges))

    def ask_back(self, hand: Hand, cohorts: Sequence[int]) -> None:
        """Cohorts to give up between rounds."""
        hand.leaving.update(cohorts)
        hand.actor.leave.remote(list(cohorts))

    def end(self) -> None:
        """Let all go."""
        if ray.is_initialized():
            for hand in self.there:
                ray.kill(hand.actor)
        self.there.clear()
        self._asked.clear()


def raised(error: RayTaskError) -> Exception:
    """What went wrong on a worker, as the driver tells it."""
    cause = error.cause
    if isinstance(cause, RaySystemError):  # what it was sent could not be read there: a module is missing, as a rule
        why = (str(cause).strip().splitlines() or [""])[0].removeprefix("System error: ")
        return ClusterError(
            f"a worker of the Ray cluster cannot load the experiment ({why}): every node needs your own modules, "
            "installed or in a folder of the driver's path that it sees"
        )
    return cause if isinstance(cause, CpflError) else error


def _line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:300] if lines else type(error).__name__
