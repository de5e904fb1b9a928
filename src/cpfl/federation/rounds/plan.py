"""A round's plan, made before it is trained: whose results count, how long it lasts, what is discarded.

Engines train only what counts; waste is accounted, not computed.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from cpfl.errors import SettingError
from cpfl.federation.messages import NOTHING, ClientResult, Cost, RoundCost, RoundResult
from cpfl.federation.optimizers import server_optimizer
from cpfl.federation.selection.base import CohortInfo, Selection, participants_per_round
from cpfl.models import State
from cpfl.randomness import stream

MAX_ATTEMPTS = 1000  # at a round, after which it fails


@dataclass(frozen=True)
class ClientOutcome:
    """What becomes of one selected client: its results arrive, or it crashes or leaves."""

    client: int
    steps: int
    lasts: float  # virtual seconds until its results have arrived, or it is lost
    arrives: bool
    computing: float  # CPU seconds of its steps
    download: float  # virtual seconds before it can compute
    crashed: bool = False  # and so does not arrive
    round: int = 0  # whose model it began from
    began: float = 0.0  # on the cohort's clock

    @property
    def ends(self) -> float:
        """When it arrives or is lost, on the cohort's clock."""
        return self.began + self.lasts

    def spent(self, seconds: float) -> float:
        """CPU seconds that it has spent so many seconds after it began."""
        if self.arrives and seconds >= self.lasts:
            return self.computing
        return max(0.0, min(self.computing, min(seconds, self.lasts) - self.download))


@dataclass(frozen=True)
class RoundPlan:
    """One round: whose results count, in client order."""

    participants: list[int]
    steps: dict[int, int] = field(default_factory=dict)  # of clients that do not do all of theirs
    stale: dict[int, int] = field(default_factory=dict)  # of clients that began in an earlier round: which
    cost: RoundCost | None = None  # None: all clients stay and are waited for, so the results say
    pending: list[ClientOutcome] = field(default_factory=list)  # work that continues after the round


class RoundPlanner:
    """Plans the rounds of one cohort, one after the other, and keeps the work that outlasts a round."""

    plans_ahead = False  # the next round can be planned before the last is closed
    squared_losses = False  # clients report squared losses
    aggregation = "mean"  # how results become a model: mean, refl or fedbuff (staleness.py)

    def __init__(self, cohort: CohortInfo, crash_rate: float, seed: int) -> None:
        self._cohort, self._settings, self._crash_rate, self._seed = cohort, cohort.federation, crash_rate, seed
        self._pending: list[ClientOutcome] = []
        self._selection = Selection(cohort)
        self.models: dict[int, State] = {}  # with which the rounds of pending work began
        self._check_min_results()

    def plan(self, number: int, clock: float) -> RoundPlan:
        """The round of this number that begins at this time: always the same until a round is closed."""
        raise NotImplementedError

    def close(
        self, plan: RoundPlan, number: int, model: State, results: Sequence[ClientResult], seconds: float, clock: float
    ) -> None:
        """End a round that began with this model, lasted so many seconds and ended at `clock`."""
        self._selection.update(number, results, seconds, clock)
        self._pending = plan.pending
        models = {**self.models, number: model}
        self.models = {one.round: models[one.round] for one in plan.pending}

    def cost(self, plan: RoundPlan, outcome: RoundResult) -> RoundCost:
        """What a round cost: as planned, or as it is to wait for the results of all participants."""
        if plan.cost is not None:
            return plan.cost
        cohort, computing, lasting = self._cohort, {}, {}
        for r in outcome.results:
            own = cohort.compute_seconds(r.client, r.steps) if r.compute_seconds is None else r.compute_seconds
            computing[r.client] = own
            lasting[r.client] = own + cohort.transfer_seconds(r.client) if r.total_seconds is None else r.total_seconds
        slowest = max(lasting, key=lasting.__getitem__)
        seconds = lasting[slowest] if outcome.seconds is None else outcome.seconds
        sent = 2 * cohort.sent_bytes * len(lasting) if outcome.bytes is None else outcome.bytes
        return RoundCost(seconds, sum(computing.values()), sent, slowest)

    def seconds(self, plan: RoundPlan) -> float | None:
        """How long a round of this plan will last; None: too little is known of the clients."""
        if plan.cost is None and not len(self._cohort.sizes):
            return None
        return self.expected(plan).seconds

    def expected(self, plan: RoundPlan) -> Cost:
        """What a round of this plan will cost, by what devices and data say."""
        if plan.cost is not None:
            return Cost(plan.cost.seconds, plan.cost.cpu_seconds, plan.cost.bytes)
        cohort = self._cohort
        computing = {c: cohort.compute_seconds(c, plan.steps.get(c) or cohort.steps(c)) for c in plan.participants}
        seconds = max(own + cohort.transfer_seconds(client) for client, own in computing.items())
        return Cost(seconds, math.fsum(computing.values()), 2 * cohort.sent_bytes * len(computing))

    def unfinished(self, clock: float) -> Cost:
        """What is wasted if the cohort stops now."""
        # `ends` and `lasts` may round differently: what has arrived by the clock is decided by the former
        return sum((self._wasted(one, clock - one.began, one.ends <= clock) for one in self._pending), NOTHING)

    def _wasted(self, outcome: ClientOutcome, seconds: float, ended: bool) -> Cost:
        """What is wasted if a client's work is discarded so many seconds after it began: it received the model, and has
        sent its own if it arrives and has `ended`."""
        sent = self._cohort.sent_bytes * (1 + (outcome.arrives and ended))
        return Cost(0.0, outcome.spent(seconds), sent)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the models."""
        pending = [asdict(one) for one in self._pending]
        return {"pending": [{"round": one.pop("round"), "began": one.pop("began"), "outcome": one} for one in pending]}

    def restore(self, models: dict[int, State], state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.models = models
        self._pending = [ClientOutcome(**one.pop("outcome"), **one) for one in state["pending"]]

    def _predict(self, client: int, steps: int, clock: float, round: int, attempt: int) -> ClientOutcome:
        """A client that crashes or leaves loses all it did; its connection breaks, so the server knows at once."""
        cohort = self._cohort
        computing, transfer = cohort.compute_seconds(client, steps), cohort.transfer_seconds(client)
        lasts, crashed, download = computing + transfer, False, transfer / 2
        if self._crash_rate:
            rng = stream(self._seed, "crash", client, round, attempt)
            if rng.random() < self._crash_rate:
                lasts, crashed = download + float(rng.random()) * computing, True
        leaves = cohort.available_until(client, clock) - clock
        if leaves < lasts:
            return ClientOutcome(client, steps, leaves, False, computing, download, False, round, clock)
        return ClientOutcome(client, steps, lasts, not crashed, computing, download, crashed, round, clock)

    def _cost(
        self, outcomes: Sequence[ClientOutcome], seconds: float, slowest: int, waste: Cost, repeats: int = 0
    ) -> RoundCost:
        """What a round costs in which these outcomes count."""
        cpu_seconds = sum(outcome.computing for outcome in outcomes) + waste.cpu_seconds
        sent = 2 * self._cohort.sent_bytes * len(outcomes) + waste.bytes
        return RoundCost(seconds, cpu_seconds, sent, slowest, repeats, waste.cpu_seconds, waste.bytes)

    def _available(self, clock: float, busy: Sequence[ClientOutcome]) -> list[int]:
        """Clients that are available at this time and do not work already."""
        return [client for client in self._idle(busy) if self._cohort.available_until(client, clock) > clock]

    def _idle(self, busy: Sequence[ClientOutcome]) -> list[int]:
        working = {one.client for one in busy}
        return [client for client in self._cohort.clients if client not in working]

    def _check_min_results(self) -> None:
        """Refuse a cohort in which a round may return fewer results than its server optimizer needs."""
        cohort, settings, name = self._cohort, self._settings, f"cohort {self._cohort.number}"
        most = settings.buffer_size or participants_per_round(settings, len(cohort.clients))
        server = server_optimizer(settings)
        if most < server.min_results:
            raise SettingError(server.shortage(most, name))
        least = server.min_results
        loses = self._crash_rate or settings.deadline or cohort.fleet.availability is not None
        if loses and not settings.buffer_size and settings.min_results < least:
            raise SettingError(
                f"federation.min_results = {settings.min_results} lets a round of {name} count with fewer than the "
                f"{least} results that federation.server = {settings.server!r} needs, and rounds here can lose "
                f"clients: allowed are {least} to {most}"
            )
