"""Theorem 1: a bound of the global model's risk on the target distribution D.

L_D(h_s) ≤ Σ_i Σ_k p_i/K_i · ( L̂_ik(h_i) + ½ d(D_ik, D) + λ_ik + √(log(2M/δ) / 2m_ik) )

Client k of cohort i has m_ik samples of its distribution D_ik; cohort i has the weight p_i and K_i of all M clients.
With equal cohorts and clients, M = nK, it is the form of the paper's appendix. The body prints a further ½ before
½ d + λ, which the proof does not give.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import fmean

from cpfl.bounds.hoeffding import hoeffding


@dataclass(frozen=True)
class Source:
    """What was measured of one client."""

    risk: float  # L̂_ik(h_i), of its cohort's model
    divergence: float  # d(D_ik, D), from 0 to 2
    joint: float  # λ_ik
    samples: int  # m_ik


@dataclass(frozen=True)
class Terms:
    """The terms of the bound, each weighted and summed over all clients."""

    risk: float
    half_divergence: float
    joint: float
    hoeffding: float

    @property
    def bound(self) -> float:
        """Their sum, as in the appendix."""
        return math.fsum((self.risk, self.half_divergence, self.joint, self.hoeffding))

    @property
    def bound_in_body(self) -> float:
        """The sum as the body of the paper prints it."""
        return math.fsum((self.risk, (self.half_divergence + self.joint) / 2, self.hoeffding))


def terms(weights: Sequence[float], cohorts: Sequence[Sequence[Source]], delta: float) -> Terms:
    """The terms, from the weight p_i of every cohort and what was measured of its clients."""
    count = sum(map(len, cohorts))
    by_cohort = [
        Terms(
            fmean(client.risk for client in clients),
            fmean(client.divergence / 2 for client in clients),
            fmean(client.joint for client in clients),
            fmean(hoeffding(client.samples, count, delta) for client in clients),
        )
        for clients in cohorts
    ]
    return Terms(
        *(
            math.fsum(p * getattr(own, one.name) for p, own in zip(weights, by_cohort, strict=True))
            for one in fields(Terms)
        )
    )
