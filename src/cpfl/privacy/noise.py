"""Noise on a sum for (ε, δ) differential privacy of single samples; every client adds a share of it.

A sample more or less changes one count by one. Discrete Gaussian noise of deviation σ on every count is then
ρ-zero-concentrated private with ρ = 1 / 2σ², and so (ρ + 2·√(ρ ln 1/δ), δ) private (Bun & Steinke 2016). No client and
no server knows all of the noise: the clients that must stay to the end add enough of it together.
"""

import math
import random
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

MIN_DEVIATION = 1.0  # of a share: smaller ones do not add up to one discrete Gaussian (Kairouz et al. 2021)


def deviation(epsilon: float, delta: float) -> float:
    """The σ of the whole noise that gives (ε, δ) privacy."""
    log = math.log(1 / delta)
    return 1 / math.sqrt(2) / (math.sqrt(log + epsilon) - math.sqrt(log))


def share(epsilon: float, delta: float, clients: int, size: int, source: random.Random) -> NDArray[np.int64]:
    """One client's part of the noise; `clients` of them make all of it. Real clients draw from SystemRandom."""
    sigma = max(deviation(epsilon, delta) / math.sqrt(clients), MIN_DEVIATION)
    variance = Fraction(sigma**2)
    return np.array([_discrete_gaussian(variance, source) for _ in range(size)], np.int64)


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
