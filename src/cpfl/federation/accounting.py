"""What rounds cost: virtual seconds, CPU seconds and bytes, measured or as the fleet's devices say."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpfl.devices.fleet import Fleet
from cpfl.federation import optimizers
from cpfl.federation.messages import RoundResult
from cpfl.federation.selection.base import CohortInfo, participants_per_round
from cpfl.settings import Federation

Sizes = NDArray[np.int64]  # training samples by client


@dataclass(frozen=True)
class Waste:
    """What clients spent on work that is discarded."""

    cpu_seconds: float = 0.0
    bytes: int = 0

    def __add__(self, other: "Waste") -> "Waste":
        return Waste(self.cpu_seconds + other.cpu_seconds, self.bytes + other.bytes)


@dataclass(frozen=True)
class RoundCost:
    """How long a round lasts and what is spent in it; the fields of its record."""

    seconds: float
    slowest: int  # the client that all others waited for
    cpu_seconds: float  # with the wasted ones
    bytes: int
    repeats: int = 0  # attempts that returned too few results
    wasted_cpu_seconds: float = 0.0
    wasted_bytes: int = 0


def observed_cost(cohort: CohortInfo, outcome: RoundResult) -> RoundCost:
    """The cost of a round that waits for the results of all participants."""
    computing, lasting = {}, {}
    for r in outcome.results:
        own = cohort.compute_seconds(r.client, r.steps) if r.compute_seconds is None else r.compute_seconds
        computing[r.client] = own
        lasting[r.client] = own + cohort.transfer_seconds(r.client) if r.total_seconds is None else r.total_seconds
    slowest = max(lasting, key=lasting.__getitem__)
    seconds = lasting[slowest] if outcome.seconds is None else outcome.seconds
    sent = 2 * cohort.sent_bytes * len(lasting) if outcome.bytes is None else outcome.bytes
    return RoundCost(seconds, slowest, sum(computing.values()), sent)


def round_seconds(federation: Federation, fleet: Fleet, sizes: Sizes, model_bytes: int) -> NDArray[np.float64]:
    """What a round takes each client of a cohort of several: the model down, its local work, the model up."""
    size = optimizers.one_way_bytes(federation, model_bytes)
    everyone = CohortInfo(0, range(len(sizes)), federation, fleet, size, sizes)
    return np.array(list(everyone.seconds.values()))


def round_cpu_seconds(
    federation: Federation, fleet: Fleet, sizes: Sizes, cohorts: Sequence[Sequence[int]]
) -> list[float]:
    """What a round of each cohort will cost, on average over who takes part."""
    seconds = round_seconds(federation, fleet, sizes, model_bytes=0)
    return [
        participants_per_round(federation, len(members)) * float(seconds[np.asarray(members)].mean())
        for members in cohorts
    ]
