"""One cohort among others: its rounds, and the phases after which it waits to be evaluated with them or meets them."""

import math
from collections.abc import Sequence
from dataclasses import replace

from cpfl.federation.cohort_training import CohortTraining
from cpfl.federation.intervals import Met, models_at_a_meeting
from cpfl.federation.messages import (
    CLIENT_STATE_MEAN,
    ClientResult,
    ClosedRound,
    Cost,
    Origin,
    RoundRecord,
    RoundRequest,
    RoundResult,
    Snapshot,
)
from cpfl.federation.stopping import ROUNDING, Share
from cpfl.models import State

__all__ = ["ClientResult", "ClosedRound", "Origin", "RoundRecord", "RoundRequest", "RoundResult", "Session", "Snapshot"]


class Session(CohortTraining):
    """The training of one cohort that may wait for others, and continue from the model of a meeting."""

    @property
    def waiting(self) -> bool:
        """At the end of a phase, waiting until all cohorts are evaluated or meet."""
        return not self.stopped and (self._arrived or self.round >= self._phase_end)

    def continue_training(self, closed: ClosedRound, clock: float, share: Share) -> ClosedRound:
        """Begin another phase after an evaluation, unless a limit is reached.

        Parameters
        ----------
        closed
            The last round of the phase. The result is the same round with what the wait adds to it.
        clock
            When the evaluation ended.
        share
            What it cost this cohort, and what the cohort may spend from now on.
        """
        arrived = Snapshot(self.cohort, self.round, self.clock, self._shown)
        self.phases += 1
        self.clock = clock
        self._pay(share)
        self.stopped = self._limit_reached(closed.record)
        return self._waited(closed, arrived)

    def meet(
        self,
        closed: ClosedRound,
        number: int,
        clock: float,
        model: State,
        server_state: dict[str, State] | None,
        share: Share | None = None,
        clients: Sequence[int] | None = None,
    ) -> ClosedRound:
        """Begin another phase from the model of a meeting, unless a limit is reached.

        Parameters
        ----------
        closed
            The last round of the phase. The result is the same round with what the wait adds to it.
        number, clock
            That of the meeting, counted from 1, and when it was.
        model
            What the cohort continues from.
        server_state
            What takes the place of the server optimizer's state, by name; None: it stays.
        share
            What the evaluation of the merged model cost this cohort, and what it may spend from now on; None: there was
            none.
        clients
            With whom the cohort continues; None: with its own.
        """
        arrived = Snapshot(self.cohort, self.round, self.clock, self._shown)
        self.phases = number
        self.clock, self.met, self._arrived = clock, Met(self.round, clock), False
        self._plans.clear()  # they were made for an earlier clock
        if clients is not None:
            self._regroup(clients)
        self.model = self._shown = model
        self._kept = None
        if server_state is not None:
            others = {k: v for k, v in self.algorithm_state.cohort.items() if k == CLIENT_STATE_MEAN}
            self.algorithm_state = replace(self.algorithm_state, cohort={**others, **server_state})
        self.bytes += self.meeting_bytes
        if share is not None:
            self._pay(share)
        self.stopped = self._limit_reached(closed.record)
        return self._waited(closed, arrived)

    def stop(self, closed: ClosedRound, reason: str, clock: float | None = None) -> ClosedRound:
        """Stop at the end of a phase: because of an evaluation that ended at `clock`, or without one."""
        arrived = Snapshot(self.cohort, self.round, self.clock, self._shown)
        if clock is not None:
            self.clock, self.phases = clock, self.phases + 1
        self.stopped = reason
        return self._waited(closed, arrived)

    def _pay(self, share: Share) -> None:
        self.cpu_seconds, self.cpu_budget = self.cpu_seconds + share.cpu_seconds, share.cpu_budget
        self.bytes, self.byte_budget = self.bytes + share.bytes, share.byte_budget

    def _waited(self, closed: ClosedRound, arrived: Snapshot) -> ClosedRound:
        """The round with its own end, and with a snapshot if one became due while the cohort waited."""
        due = self.round not in {snapshot.round for snapshot in closed.snapshots} and self._due(arrived)
        record = self._with_unfinished(replace(closed.record, stop=self.stopped))
        return ClosedRound(record, [*closed.snapshots, arrived] if due else closed.snapshots)

    @property
    def meeting_bytes(self) -> int:
        """What a meeting sends between this cohort's server and the global one, as long as the cohort continues."""
        return self._model_bytes * models_at_a_meeting(self._experiment) if self._experiment.meets else 0

    @property
    def reserved_bytes(self) -> int:
        """What of a limit in traffic is kept back: the cohort's model at the end, and the next meeting, to which a
        cohort that has stopped sends its model."""
        stopped = self._model_bytes if self._experiment.meets else 0
        return self._model_bytes + (stopped if self.stopped else self.meeting_bytes)

    @property
    def server_state(self) -> dict[str, State]:
        """What the server optimizer keeps from round to round, by name."""
        return {name: state for name, state in self.algorithm_state.cohort.items() if name != CLIENT_STATE_MEAN}

    @property
    def meeting_due(self) -> float:
        """When the next meeting is, in virtual seconds; -inf: as soon as all cohorts have come."""
        return self._interval.after(self.met.clock)

    @property
    def soonest_meeting(self) -> float:
        """If cohorts come one by one: before when this one, which waits, cannot come again."""
        if not math.isinf(self._interval.seconds):
            return self.clock + self._interval.seconds - ROUNDING
        return self.clock + (self._planner.seconds(self._plan(self.round + 1)) or 0.0)

    @property
    def _phase_end(self) -> float:
        """The round after which it waits next; inf: after none, or at a time."""
        if self._experiment.meets:
            return self.met.round + self._interval.rounds
        return (self.phases + 1) * self._rule.eval_interval

    def _next_is_too_late(self, outcome: RoundResult, cost: Cost) -> bool:
        """Whether the next round would end after the next meeting. One of a real fleet is expected to last as long as
        this one. If cohorts come one by one: whether it is time to come."""
        if math.isinf(self._interval.seconds):
            return False
        if not self._interval.together:
            return self.clock >= self.meeting_due - ROUNDING
        lasts = None if outcome.seconds is not None else self._planner.seconds(self._plan(self.round + 1))
        return self.clock + (cost.seconds if lasts is None else lasts) > self.meeting_due + ROUNDING
