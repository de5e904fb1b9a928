"""The Hoeffding term: how far a source's empirical risk may lie below its expected risk."""

import math

from cpfl.errors import SettingError


def check_delta(delta: float) -> None:
    """Refuse what is no probability of failure."""
    if not 0 < delta < 1:
        raise SettingError(f"delta = {delta:g} is not allowed: a number between 0 and 1, both excluded, is needed")


def hoeffding(samples: int, sources: int, delta: float) -> float:
    """√(log(2 nK / δ) / 2m), for one of `sources` = nK clients, which has m = `samples`.

    The theorem has n cohorts of K clients with m samples each. Here nK is the number of all clients, and every client
    has its own m: a union bound over all clients holds whatever their sizes, each with probability 1 − δ / nK.
    """
    return math.sqrt(math.log(2 * sources / delta) / (2 * samples))
