"""Who takes part in a round."""

from __future__ import annotations

from collections.abc import Sequence

from cpfl.experiment import Federation
from cpfl.randomness import stream


def size(federation: Federation, clients: int) -> int:
    """How many of a cohort's clients take part: as many as set, or their share, at least one."""
    wanted = federation.participants or max(1, round(federation.participation * clients))
    return min(wanted, clients)


def select(clients: Sequence[int], federation: Federation, seed: int, cohort: int, round: int) -> list[int]:
    """A random part of the cohort, in client order."""
    wanted = size(federation, len(clients))
    if wanted == len(clients):
        return list(clients)
    chosen = stream(seed, "selection", cohort, round).choice(len(clients), wanted, replace=False)
    return sorted(clients[i] for i in chosen)
