"""The engine of a cluster: workers train whole cohorts, the driver closes every round and keeps what it brought.

A session's outcomes do not depend on who trained its rounds, so cohorts may move between rounds: to a worker that has
become free, and from one that died, where they go on from the last round that the driver closed.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import ray
from ray.exceptions import RayTaskError

from cpfl.engines.base import OnRound
from cpfl.engines.mishaps import device_failed
from cpfl.engines.ray import cluster, letters, packing, shipping
from cpfl.engines.ray.hands import DEATHS, ROOM_SECONDS, Hand, Hands, raised
from cpfl.engines.ray.letters import Done, Left, Letter, Trouble
from cpfl.engines.ray.place import Place
from cpfl.errors import ClusterError
from cpfl.federation import local, selection
from cpfl.federation.session import Session
from cpfl.problem import Problem

Note = Callable[[str], None]
R = TypeVar("R")
LISTEN_SECONDS = 1.0
NOBODY_CAME = (
    f"no worker of the Ray cluster is left, and none came in {ROOM_SECONDS:.0f} s: resume the run when there are some"
)
VAIN = 3  # deaths in a row of a cohort's workers without a round in between, or of those with a part of the targets


class RayEngine:
    """Trains cohorts on the workers of a Ray cluster."""

    name = "ray"

    def __init__(self, problem: Problem, place: Place, workers: int, note: Note) -> None:
        """Reach the cluster, check it, and open the problem on its workers: what is wrong is told now."""
        self._problem, self._note = problem, note
        self.on_event: Callable[..., None] = lambda event, **facts: None  # worth a line in the run's log
        self.on_load: Callable[[dict[str, Any]], None] = lambda load: None  # about every second
        self.moved = 0  # cohorts that a free worker has taken over
        shipped = shipping.packed(problem, place.node_data)
        ours = cluster.connect(place)
        try:
            self.cluster = cluster.look(place, len(problem.plan), workers, ours)
            self._hands = Hands(self.cluster, ray.put(shipped))
            self._hands.begin()
        except BaseException:
            if ours:
                ray.shutdown()
            raise
        self._end = weakref.finalize(self, _end, self._hands, ours)
        note(self._sentence())
        for text in {text for hand in self._hands.ready for text in hand.facts["said"]}:
            note(text)

    def close(self) -> None:
        """Let the workers go, and the cluster if it was begun for this engine."""
        self._end()

    @property
    def device(self) -> str:
        """What cohorts train on; the driver may have another."""
        return self.cluster.device

    def federate(self, sessions: Sequence[Session], on_round: OnRound) -> None:
        """Do all rounds of all sessions."""
        try:
            Federation(self, self._problem, self._hands, sessions, on_round).work()
        except BaseException:
            self.close()
            raise

    def share(self, items: Iterable[Any]) -> list[Any]:
        """Have items in the object store, from where every node fetches them once."""
        return [ray.put(item) for item in items]

    def spread(self, job: Callable[..., R], shared: list[Any], pieces: Sequence[Any]) -> list[R]:
        """What `job(problem, device, shared, piece)` makes of each piece, on the workers; the pieces of one that dies
        are done by the others."""
        answers: dict[int, R] = {}
        deaths = dict.fromkeys(range(len(pieces)), 0)
        while len(answers) < len(pieces):
            hands = self._there()
            left = [k for k in range(len(pieces)) if k not in answers]
            asked = {k: hands[place % len(hands)] for place, k in enumerate(left)}
            coming = {k: hand.actor.apply.remote(job, shared, pieces[k]) for k, hand in asked.items()}
            lost: dict[Hand, list[Any]] = {}
            for k, answer in coming.items():
                while not ray.wait([answer], timeout=LISTEN_SECONDS)[0]:
                    self._tell_labelling({hand for at, hand in asked.items() if at not in answers})
                try:
                    answers[k] = ray.get(answer)
                except RayTaskError as error:
                    asked[k].trouble = device_failed(error.cause)
                    if not asked[k].trouble:
                        raise raised(error) from None
                    lost.setdefault(asked[k], []).append(pieces[k])
                    deaths[k] += 1
                except DEATHS:
                    lost.setdefault(asked[k], []).append(pieces[k])
                    deaths[k] += 1
            if max(deaths.values()) >= VAIN:
                raise ClusterError(
                    f"{VAIN} workers died one after the other with the same part of the targets, for want of memory "
                    "perhaps: resume the run with fewer --workers"
                )
            for dead in lost:
                for hand, why in self._hands.wait_for_death(dead):
                    again = [{"piece": piece} for piece in lost.get(hand, [])]
                    self.bury(hand, why, again, f"{len(again)} of {len(pieces)} parts of the targets")
        self._tell_labelling(set())
        return [answers[k] for k in range(len(pieces))]

    def tell(self, rows: list[dict[str, Any]]) -> None:
        """Who does what, for those who look on."""
        self.on_load({"workers": rows, "moved": self.moved, "dashboard": self.cluster.dashboard})

    def _tell_labelling(self, busy: set[Hand]) -> None:
        self.tell([hand.row(float(hand in busy), 0.0) for hand in self._hands.ready])

    def _there(self) -> list[Hand]:
        """Workers that can be given work, waited for if there is none."""
        end = time.monotonic() + ROOM_SECONDS
        while True:
            _, dead = self._hands.hear(0.0 if self._hands.ready else LISTEN_SECONDS)
            for hand, why in dead:
                self.bury(hand, why, [], "nothing")
            if self._hands.ready:
                return self._hands.ready
            if self._hands.coming:
                end = time.monotonic() + ROOM_SECONDS
            elif time.monotonic() > end:
                raise ClusterError(NOBODY_CAME)

    def bury(self, hand: Hand, why: str, again: list[dict[str, Any]], told: str) -> None:
        """Say what is run again, and have another worker take its place as soon as there is room."""
        name = hand.facts.get("worker", f"worker {hand.number}")
        node, pid = hand.facts.get("node"), hand.facts.get("pid")
        self.on_event("worker died", worker=name, node=node, pid=pid, why=why, run_again=again)
        self._note(f"{name} died; run again elsewhere: {told}" if hand.ready else f"{name} could not begin: {why}")
        given_up = self._hands.replace(hand, why)
        if given_up:
            self.on_event("worker given up", worker=name, why=given_up)
            self._note(given_up)

    @property
    def width(self) -> int:
        """Pieces that can be done at once."""
        return max(1, len(self._hands.ready))

    def _sentence(self) -> str:
        found = self.cluster
        each = f"{found.gpus:g} GPU" if found.gpus else "a core"
        link = f"; Ray's dashboard: {found.dashboard}" if found.dashboard else ""
        nodes = f"{found.nodes} node{'s' if found.nodes != 1 else ''}"
        return f"Ray: {found.workers} worker{'s' if found.workers != 1 else ''} on {nodes}, {each} each{link}"


class Federation:
    """The work of one call to `federate`."""

    def __init__(
        self, engine: RayEngine, problem: Problem, hands: Hands, sessions: Sequence[Session], on_round: OnRound
    ) -> None:
        self._engine, self._hands, self._on_round = engine, hands, on_round
        self._going = {session.cohort: session for session in sessions if not session.idle}
        self._samples = {cohort: _samples_a_round(problem, cohort) for cohort in self._going}
        self._waiting = set(self._going)  # cohorts that no worker has
        self._deaths = dict.fromkeys(self._going, 0)
        self._told = 0.0
        self._alone = time.monotonic()

    def work(self) -> None:
        """Until every session is idle."""
        while self._going:
            self._place()
            heard, dead = self._hands.hear(LISTEN_SECONDS)
            for hand, found in heard:
                for letter in found:
                    self._read(hand, letter)
            for hand, why in dead:
                self._bury(hand, why)
            self._steal()
            self._tell(LISTEN_SECONDS)
        self._tell(0.0)

    def _cost(self, cohort: int) -> float:
        return packing.cost(self._samples[cohort], self._going[cohort].round)

    def _place(self) -> None:
        """Give cohorts that nobody has to workers: free ones first, else beside what they have."""
        hands = self._hands.ready
        if self._hands.coming:
            self._alone = time.monotonic()
        elif time.monotonic() - self._alone > ROOM_SECONDS:
            raise ClusterError(NOBODY_CAME)
        if not hands or not self._waiting:
            return
        free = [hand for hand in hands if not hand.cohorts] or hands
        loads = [sum(map(self._cost, hand.cohorts)) for hand in free]
        shares = packing.pack({cohort: self._cost(cohort) for cohort in self._waiting}, loads)
        for hand, cohorts in zip(free, shares, strict=True):
            if cohorts:
                self._hands.give(hand, [letters.charge(self._going[cohort]) for cohort in cohorts])
        self._waiting.clear()

    def _read(self, hand: Hand, letter: Letter) -> None:
        if isinstance(letter, Trouble) and letter.device:
            self._hands.dismiss(hand, letter.device)
            return
        if isinstance(letter, Trouble):
            raise letter.error or RuntimeError(f"a worker failed:\n{letter.story}")
        if letter.cohort not in hand.cohorts:
            return
        if isinstance(letter, Left):
            self._release(hand, letter.cohort)
            self._waiting.add(letter.cohort)
            self._engine.moved += 1
            return
        session = self._going[letter.cohort]
        if letter.round == session.round + 1:
            self._close(hand, session, letter)

    def _close(self, hand: Hand, session: Session, letter: Done) -> None:
        outcome = letters.outcome(letter)
        self._deaths[session.cohort] = 0
        hand.did(sum(result.samples for result in outcome.results))
        self._on_round(session, session.close_round(outcome))
        if session.idle:
            del self._going[session.cohort]
            self._release(hand, session.cohort)

    def _release(self, hand: Hand, cohort: int) -> None:
        hand.cohorts.discard(cohort)
        hand.leaving.discard(cohort)

    def _bury(self, hand: Hand, why: str) -> None:
        """Its cohorts go on elsewhere."""
        again = {cohort: self._going[cohort].round + 1 for cohort in sorted(hand.cohorts)}
        for cohort in again:
            self._deaths[cohort] += 1
            if self._deaths[cohort] >= VAIN:
                raise ClusterError(
                    f"{VAIN} workers died one after the other with cohort {cohort}, which came no further than round "
                    f"{again[cohort] - 1}, for want of memory perhaps: resume the run with fewer --workers"
                )
        self._waiting.update(again)
        rounds = ", ".join(f"round {number} of cohort {cohort}" for cohort, number in again.items())
        lost = [{"cohort": cohort, "round": number} for cohort, number in again.items()]
        self._engine.bury(hand, why, lost, rounds or "nothing")

    def _steal(self) -> None:
        """A worker that has nothing to do takes from the one with the most, unless something is on its way to it."""
        hands = self._hands.ready
        free = sum(not hand.cohorts for hand in hands) - sum(bool(hand.leaving) for hand in hands) - len(self._waiting)
        while free > 0:
            held = [{c: self._cost(c) for c in hand.cohorts if not hand.leaving} for hand in hands]
            found = packing.spoils(held)
            if found is None:
                return
            self._hands.ask_back(hands[found[0]], found[1])
            free -= 1

    def _tell(self, seconds: float) -> None:
        """Who does what, for those who look on."""
        now = time.monotonic()
        if now - self._told < seconds:
            return
        self._told = now
        on = bool(self._going)  # else what it was a moment ago is over
        self._engine.tell([hand.row(on * hand.busy, on * hand.pace()) for hand in self._hands.ready])


def _samples_a_round(problem: Problem, cohort: int) -> float:
    """Those of a cohort's clients that take part, on average."""
    settings, clients = problem.experiment.federation, problem.plan[cohort]
    steps = local.all_steps(settings, problem.data.clients.training_sizes[np.asarray(clients)])
    return float(steps.mean()) * settings.batch_size * selection.size(settings, len(clients))


def _end(hands: Hands, ours: bool) -> None:
    hands.end()
    if ours and ray.is_initialized():
        ray.shutdown()
