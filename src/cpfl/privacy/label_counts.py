"""Label counts of whole cohorts: what a server may know of its clients' labels.

Noise on the sums gives (ε, δ) differential privacy of single samples. A sample more or less changes one count by one;
where a sample has several labels, its counts move further, and the noise grows with that distance (the sensitivity).
Discrete Gaussian noise of deviation σ on every count is then ρ-zero-concentrated private with ρ = 1 / 2σ². This is also
(ρ + 2·√(ρ ln 1/δ), δ) private (Bun & Steinke 2016). No client and no server knows all of the noise: the clients
that must stay to the end of a masked sum add enough of it together.
"""

import math
import random
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from cpfl.errors import PrivacyError
from cpfl.randomness import stream
from cpfl.settings import Privacy

HIDDEN = -1
"""Fills the row of a cohort whose counts nobody may know."""

MIN_DEVIATION = 1.0  # of a share: smaller ones do not add up to one discrete Gaussian (Kairouz et al. 2021)

Counts = NDArray[np.int64]


def cohort_counts(
    counts_of: Callable[[NDArray[np.int64]], Counts],
    classes: int,
    cohorts: Sequence[Sequence[int]],
    privacy: Privacy,
    seed: int,
    sensitivity: float = 1.0,
) -> Counts:
    """Label counts of whole cohorts, (N, C), as simulated clients report them: in plain, or as a masked sum.

    `counts_of` some clients gives their counts, (K, C). `sensitivity`: how far a sample more moves them at most.
    """
    sums = np.full((len(cohorts), classes), HIDDEN)
    for cohort, clients in enumerate(cohorts):
        if len(clients) < privacy.min_clients:  # a sum over so few reveals each of them
            continue
        values = counts_of(np.asarray(clients))
        if privacy.epsilon:
            source = random.Random(int(stream(seed, "count-noise", cohort).integers(2**63)))
            drawn = [client_noise(privacy, len(clients), classes, source, sensitivity) for _ in values]
            values = values + np.stack(drawn)
        total = values.sum(axis=0) if privacy.label_counts == "plain" else _masked(values)
        sums[cohort] = np.maximum(total, 0)  # noise may have pushed a count below zero
    return sums


def _masked(values_KC: Counts) -> Counts:
    try:
        from cpfl.privacy.masked_sum import simulated_sum
    except ImportError:
        raise PrivacyError("privacy.label_counts = 'masked' needs cryptography: pip install 'cpfl[flower]'") from None
    return simulated_sum(values_KC)


def to_rows(counts_NC: Counts) -> list[list[int] | None]:
    """The counts as a file holds them; None: hidden."""
    return [None if row[0] == HIDDEN else row.tolist() for row in counts_NC]


def from_rows(rows: Sequence[Sequence[int] | None], classes: int) -> Counts:
    """What `to_rows` wrote."""
    return np.array([[HIDDEN] * classes if row is None else list(row) for row in rows], np.int64)


def client_noise(privacy: Privacy, clients: int, size: int, source: random.Random, sensitivity: float = 1.0) -> Counts:
    """What one of so many clients adds to its counts before it reports them. Real clients draw from SystemRandom.

    More than half of the clients must stay to the end: so many of them bring all of the noise.
    """
    if not privacy.epsilon:
        return np.zeros(size, np.int64)
    sigma = max(sensitivity * deviation(privacy.epsilon, privacy.delta) / math.sqrt(clients // 2 + 1), MIN_DEVIATION)
    variance = Fraction(sigma**2)
    return np.array([_discrete_gaussian(variance, source) for _ in range(size)], np.int64)


def deviation(epsilon: float, delta: float) -> float:
    """The σ of the whole noise that gives (ε, δ) privacy."""
    log = math.log(1 / delta)
    return (math.sqrt(log + epsilon) + math.sqrt(log)) / math.sqrt(2) / epsilon  # no difference of nearly equal roots


def _discrete_gaussian(variance: Fraction, source: random.Random) -> int:
    """A whole number y with probability ∝ exp(−y²/2σ²), exactly (Canonne, Kamath & Steinke 2020, algorithm 3)."""
    scale = math.isqrt(math.floor(variance)) + 1
    while True:
        y = _discrete_laplace(scale, source)
        if _bernoulli_exp((abs(y) - variance / scale) ** 2 / (2 * variance), source):
            return y


def _discrete_laplace(scale: int, source: random.Random) -> int:
    while True:
        remainder = source.randrange(scale)
        if not _bernoulli_exp(Fraction(remainder, scale), source):
            continue
        whole = 0
        while _bernoulli_exp(Fraction(1), source):
            whole += 1
        value, negative = remainder + scale * whole, source.random() < 0.5
        if value or not negative:
            return -value if negative else value


def _bernoulli_exp(gamma: Fraction, source: random.Random) -> bool:
    """True with probability exp(−γ)."""
    while gamma > 1:
        if not _bernoulli_exp(Fraction(1), source):
            return False
        gamma -= 1
    k = 1
    while source.randrange((gamma / k).denominator) < (gamma / k).numerator:
        k += 1
    return k % 2 == 1
