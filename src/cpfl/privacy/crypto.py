"""The cryptography of masked sums: key agreement, masks, sealed messages, and Shamir's secret sharing."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

Words = NDArray[np.uint32]
"""Numbers modulo 2³²: numpy's uint32 arithmetic wraps around by itself."""

PRIME = 2**256 + 297  # the smallest prime above every 32-byte secret
SHARE_BYTES = 33  # of one Shamir share

_NONCE = bytes(16)  # every key here is used for one purpose, once


def derive(secret: bytes, purpose: str) -> bytes:
    """A key for one purpose."""
    return HKDF(SHA256(), 32, None, f"cpfl masked sum: {purpose}".encode()).derive(secret)


def public_key(private: bytes) -> bytes:
    """The public half of a key pair."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, other: bytes, purpose: str) -> bytes:
    """The key that only the owners of two key pairs can compute."""
    try:
        shared = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:  # a point of small order, or not 32 bytes
        raise ValueError("a public key is not one") from None
    return derive(shared, purpose)


def mask(key: bytes, size: int) -> Words:
    """Numbers that look random without the key."""
    stream = Cipher(ChaCha20(key, _NONCE), None).encryptor().update(bytes(4 * size))
    return np.frombuffer(stream, "<u4").astype(np.uint32)


def seal(key: bytes, message: bytes, context: bytes) -> bytes:
    """Encrypt a message, bound to its context: who sends it to whom."""
    return ChaCha20Poly1305(key).encrypt(_NONCE[:12], message, context)


def unseal(key: bytes, sealed: bytes, context: bytes) -> bytes:
    """Decrypt a message, if nobody changed it."""
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE[:12], sealed, context)
    except InvalidTag:
        raise ValueError("a sealed message was changed on its way") from None


def split_secret(secret: bytes, holders: Sequence[int], threshold: int, numbers: Iterator[int]) -> dict[int, bytes]:
    """A Shamir share for every holder (numbers from 1): any `threshold` of them give the secret, fewer reveal nothing.

    `numbers` yields random numbers below PRIME.
    """
    assert len(secret) == 32
    assert 1 <= threshold <= len(holders)
    coefficients = [int.from_bytes(secret), *(next(numbers) for _ in range(threshold - 1))]
    shares = {}
    for holder in holders:
        value = 0
        for coefficient in reversed(coefficients):  # Horner
            value = (value * holder + coefficient) % PRIME
        shares[holder] = value.to_bytes(SHARE_BYTES)
    return shares


def combine_shares(shares: Mapping[int, bytes]) -> bytes:
    """The secret behind these shares, by Lagrange's interpolation at zero."""
    weights = _lagrange_weights(tuple(sorted(shares)))
    value = sum(weights[holder] * int.from_bytes(share) for holder, share in shares.items()) % PRIME
    if value >> 256:
        raise ValueError("these shares do not belong together")
    return value.to_bytes(32)


@lru_cache(maxsize=4)  # one set of holders opens many secrets
def _lagrange_weights(points: tuple[int, ...]) -> dict[int, int]:
    weights = {}
    for point in points:
        others = [other for other in points if other != point]
        below = math.prod(other - point for other in others)
        weights[point] = math.prod(others) * pow(below, -1, PRIME) % PRIME
    return weights


def random_numbers(secret: bytes, count: int) -> Iterator[int]:
    """Numbers below PRIME that follow from the secret."""
    size = SHARE_BYTES + 15  # so many more bits that the remainder is as good as uniform
    stream = mask(derive(secret, "numbers"), -(-count * size // 4)).astype("<u4").tobytes()
    return (int.from_bytes(stream[k * size : (k + 1) * size]) % PRIME for k in range(count))
