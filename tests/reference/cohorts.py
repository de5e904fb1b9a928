"""Who trains with whom.

The method: "M clients are split at random into n cohorts of about M/n (sizes differ by at most one)"; "Participation
max(1, round(p · size))".
"""

from __future__ import annotations

import numpy as np

from cpfl.randomness import stream


def assign(clients, cohorts, seed):
    """Every cohort's clients, ascending."""
    order = stream(seed, "cohorts").permutation(clients)
    return [sorted(int(client) for client in part) for part in np.array_split(order, cohorts)]


def participants(members, participation, cohort, round_number, seed):
    """The members of a cohort that take part in a round, ascending."""
    size = len(members)
    k = max(1, round(participation * size))
    chosen = stream(seed, "selection", cohort, round_number).choice(size, k, replace=False)
    return sorted(members[i] for i in chosen)
