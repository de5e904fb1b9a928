"""The cryptography of masked sums: key pairs, what two clients agree on, masks, sealed letters."""

from __future__ import annotations

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

_NONCE = bytes(16)  # every key here is used for one purpose, once


def derive(secret: bytes, purpose: str, size: int = 32) -> bytes:
    """A key for one purpose."""
    return HKDF(SHA256(), size, None, f"cpfl masked sum: {purpose}".encode()).derive(secret)


def public_key(private: bytes) -> bytes:
    """What may be told of a private key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, other: bytes, purpose: str) -> bytes:
    """The key that the owners of two key pairs share, and nobody else."""
    try:
        shared = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:  # a point of small order, or not 32 bytes
        raise ValueError("a public key is not one") from None
    return derive(shared, purpose)


def mask(key: bytes, size: int) -> Words:
    """Numbers that look random to whoever lacks the key."""
    stream = Cipher(ChaCha20(key, _NONCE), None).encryptor().update(bytes(4 * size))
    return np.frombuffer(stream, "<u4").astype(np.uint32)


def seal(key: bytes, letter: bytes, about: bytes) -> bytes:
    """A letter that only the key opens, bound to who sends it to whom."""
    return ChaCha20Poly1305(key).encrypt(_NONCE[:12], letter, about)


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes:
    """The letter, if nobody changed it."""
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE[:12], sealed, about)
    except InvalidTag:
        raise ValueError("a sealed letter was changed on its way") from None
