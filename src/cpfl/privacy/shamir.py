"""Shamir's secret sharing: any `threshold` shares give the secret back, fewer tell nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

PRIME = 2**256 + 297  # the smallest prime above every 32-byte secret
SIZE = 33  # bytes of a share


def split(secret: bytes, holders: Sequence[int], threshold: int, draw: Callable[[], int]) -> dict[int, bytes]:
    """A share for every holder (numbers from 1); `draw` gives random numbers below PRIME."""
    assert len(secret) == 32
    assert 1 <= threshold <= len(holders)
    coefficients = [int.from_bytes(secret), *(draw() for _ in range(threshold - 1))]
    shares = {}
    for at in holders:
        value = 0
        for coefficient in reversed(coefficients):  # Horner
            value = (value * at + coefficient) % PRIME
        shares[at] = value.to_bytes(SIZE)
    return shares


def join(shares: Mapping[int, bytes]) -> bytes:
    """The secret behind these shares, by Lagrange's interpolation at zero."""
    weights = _weights(tuple(sorted(shares)))
    value = sum(weights[at] * int.from_bytes(share) for at, share in shares.items()) % PRIME
    if value >> 256:
        raise ValueError("these shares do not belong together")
    return value.to_bytes(32)


@lru_cache(maxsize=4)  # one set of holders opens many secrets
def _weights(points: tuple[int, ...]) -> dict[int, int]:
    found = {}
    for point in points:
        above = below = 1
        for other in points:
            if other != point:
                above = above * other % PRIME
                below = below * (other - point) % PRIME
        found[point] = above * pow(below, -1, PRIME) % PRIME
    return found
