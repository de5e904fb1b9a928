"""How good an assignment is: the skew of cohorts' labels and the length of their rounds.

Axes: M clients, N cohorts, C classes.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def skews(counts_NC: Floats, whole_C: Floats) -> Floats:
    """Total-variation distance of each row's label distribution to the whole's: 0 is equal, 1 is nothing in common.

    It is the share of a cohort's samples that would need another label for the cohort to mirror the whole.
    """
    # A cohort without samples has no distribution: it counts as far away.
    total_N = counts_NC.sum(axis=-1, keepdims=True)
    share_NC = counts_NC / np.maximum(total_N, 1e-12)
    skew: Floats = np.abs(share_NC - whole_C / whole_C.sum()).sum(axis=-1) / 2
    return np.where(total_N[..., 0] > 0, skew, 1.0)


def expected_longest(seconds: Floats, participants: int) -> float:
    """The mean length of a round with random participants: the expected maximum of so many of these seconds.

    Of all draws of s from m, C(k-1, s-1) have the k-th fastest as their slowest.
    """
    ordered, m, s = np.sort(seconds), len(seconds), participants
    k = np.arange(s, m + 1)
    chance = np.exp(_log_choose(k - 1, s - 1) - _log_choose(np.array(m), s))
    return float(ordered[s - 1 :] @ chance)


def _log_choose(n: NDArray[np.int64], k: int) -> Floats:
    from scipy.special import gammaln  # imported here: only an overview of cohorts needs it

    logs: Floats = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    return logs
