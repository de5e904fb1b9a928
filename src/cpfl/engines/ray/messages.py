"""A cohort's session on a worker: its state on the way there, its closed rounds on the way back.

Models travel as numpy arrays, without frozen parameters: driver and workers have those with the task. The driver's
session closes every round again from the message about it.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from numpy.typing import NDArray

from cpfl.federation.messages import AlgorithmState
from cpfl.federation.session import ClosedRound, RoundResult, Session
from cpfl.models import State, from_arrays, to_arrays
from cpfl.models.layout import Layout

Arrays = dict[str, NDArray[Any]]
PAUSED = "paused until new cohorts join"  # why a replica stopped, beside the reasons of any session
MOVED = "moved to another worker"


@dataclass(frozen=True)
class SessionState:
    """A cohort for a worker: its session's state after the last round that the driver closed."""

    cohort: int
    states: dict[str, Arrays]
    numbers: dict[str, Any]

    @classmethod
    def from_session(cls, session: Session, layout: Layout) -> "SessionState":
        """The state as it is now."""
        states, numbers = session.state()
        own = AlgorithmState.from_states(states).states().keys()  # no whole models
        sent = {kind: state if kind in own else layout.sent(state) for kind, state in states.items()}
        return cls(session.cohort, {kind: to_arrays(state) for kind, state in sent.items()}, numbers)

    def restore(self, session: Session, layout: Layout) -> None:
        """Bring a new session to this state."""
        states = {kind: from_arrays(state) for kind, state in self.states.items()}
        own = AlgorithmState.from_states(states).states().keys()
        whole = {kind: state if kind in own else layout.received(state) for kind, state in states.items()}
        session.restore(whole, self.numbers)


@dataclass(frozen=True)
class RoundDone:
    """A round that a worker has trained."""

    cohort: int
    arrays: RoundResult  # with numpy arrays instead of tensors

    @classmethod
    def from_result(cls, cohort: int, result: RoundResult, layout: Layout, complete: bool = False) -> "RoundDone":
        """`complete`: the device has finished the cohort's model and state, whatever is queued behind them. Engines
        copy the clients' states before they hand them out; those are fetched in the order of the queue."""
        sent = replace(result, model=layout.sent(result.model))
        return cls(cohort, _converted(sent, copy_beside if complete else to_arrays, to_arrays))

    def result(self, layout: Layout) -> RoundResult:
        """The result as the worker's engine had it."""
        sent = _converted(self.arrays, from_arrays, from_arrays)
        return replace(sent, model=layout.received(sent.model))


@dataclass(frozen=True)
class Released:
    """A cohort that a worker gave up between two rounds at the driver's request."""

    cohort: int


@dataclass(frozen=True)
class WorkerFailure:
    """An exception that ended a worker's training."""

    error: Exception  # a user's mistake as it is, a bug with its traceback as the text
    gpu_error: str  # the GPU's message if the GPU is the cause: another worker may do the work


Message = RoundDone | Released | WorkerFailure


class Replica(Session):
    """A worker's copy of a session: sends every closed round to the driver and can be stopped between two rounds."""

    send: Callable[[Message], None]
    layout: Layout
    complete = False  # the engine reports models only after the device has finished them
    request = ""  # PAUSED or MOVED: stop after the open round

    def close_round(self, outcome: RoundResult) -> ClosedRound:
        """Send the round to the driver, and stop if that was requested."""
        closed = super().close_round(outcome)
        self.send(RoundDone.from_result(self.cohort, outcome, self.layout, self.complete))
        if not self.idle:
            self._follow_request()
        return closed

    def resume(self) -> None:
        """Continue after a pause, unless the driver has meanwhile requested to give the cohort up."""
        if self.stopped == PAUSED:
            if self.request == PAUSED:
                self.request = ""
            self._follow_request()

    def _follow_request(self) -> None:
        self.stopped = self.request
        if self.stopped == MOVED:
            self.send(Released(self.cohort))


def _converted(result: RoundResult, cohort: Callable[[Any], Any], client: Callable[[Any], Any]) -> RoundResult:
    state = result.algorithm_state
    kept = {name: cohort(values) for name, values in state.cohort.items()}
    clients = {number: client(values) for number, values in state.clients.items()}
    return replace(result, model=cohort(result.model), algorithm_state=AlgorithmState(kept, clients))


def copy_beside(state: State) -> Arrays:
    """`to_arrays` for finished tensors of a GPU: copied on a second stream, without waiting for the queued steps."""
    device = next((value.device for value in state.values() if value.is_cuda), None)
    if device is None:
        return to_arrays(state)
    stream = _stream(device)
    with torch.cuda.stream(stream):
        host = {name: value.detach().to("cpu", non_blocking=True) for name, value in state.items()}  # pinned memory
    stream.synchronize()
    return to_arrays(host)


_stream = functools.cache(torch.cuda.Stream)  # one for each device
