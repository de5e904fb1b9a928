"""A sum over clients of which the server learns the sum only, even if clients drop out on the way.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning" (CCS 2017), four steps:

keys      every client publishes two public keys                                     server: relays them
shares    … deals Shamir shares of its mask key and of its own seed, sealed           server: relays them
masked    … sends values + own mask ± a mask with every other client, modulo 2³²      server: adds them up
reveal    … gives shares of the own seed of those who sent, of the mask key of those who did not, never both

Masks between clients cancel. The sum still contains the own masks of those who sent, and the masks they shared with
those who dropped out: the server computes both from the revealed shares and subtracts them. The server may be curious,
and may lie about who dropped out: a client reveals once, and more than half of them must agree.
It is trusted to relay the clients' own keys.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, PlainSerializer, TypeAdapter

from cpfl.errors import PrivacyError
from cpfl.privacy import crypto
from cpfl.privacy.crypto import SHARE_BYTES, Words

Hex = Annotated[bytes, PlainSerializer(bytes.hex), BeforeValidator(bytes.fromhex)]
"""Bytes that are hexadecimal digits in a file."""

Keys = tuple[Hex, Hex]
"""A client's public keys: for masks, for sealed shares."""

WORD = 2**32


def threshold(clients: int) -> int:
    """How many must stay to the end: more than half, so that two different groups cannot both open secrets."""
    return clients // 2 + 1


@dataclass(frozen=True)
class Reveal:
    """What a client gives away at the end: shares of own seeds, and of the mask keys of those who dropped out."""

    seeds: dict[int, bytes]
    keys: dict[int, bytes]


@dataclass
class MaskedSumClient:
    """A client's part in one sum; all its secrets come from one root, so that it survives a restart."""

    number: int = 0  # in the sum, from 1; known once the roster is
    root: Hex = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    roster: dict[int, Keys] = field(default_factory=dict)
    received: dict[int, Hex] = field(default_factory=dict)  # shares of the seed and the mask key, by sender
    step: int = 0

    def keys(self) -> Keys:
        """Public keys for this sum."""
        return crypto.public_key(self._secret("mask key")), crypto.public_key(self._secret("share key"))

    def shares(self, number: int, roster: Mapping[int, Keys], min_clients: int = 2) -> dict[int, bytes]:
        """Sealed shares for every other client; refuses a sum in which it could not hide."""
        self._advance(0)
        if len(roster) < max(min_clients, 2):
            raise PrivacyError(f"a sum over {len(roster)} would hide nobody: {max(min_clients, 2)} are needed")
        if roster.get(number) != self.keys() or len(set(roster.values())) < len(roster):
            raise PrivacyError("the server's list of keys is not the clients' own")
        self.number, self.roster = number, dict(roster)
        needed = threshold(len(roster))
        numbers = crypto.random_numbers(self._secret("polynomials"), 2 * needed)
        seeds = crypto.split_secret(self._secret("own seed"), list(roster), needed, numbers)
        keys = crypto.split_secret(self._secret("mask key"), list(roster), needed, numbers)
        self.received[number] = seeds[number] + keys[number]
        return {
            other: crypto.seal(self._share_key(other, number, other), seeds[other] + keys[other], _route(number, other))
            for other in roster
            if other != number
        }

    def masked(self, values: NDArray[np.int64], sealed: Mapping[int, bytes]) -> Words:
        """The values under all masks; `sealed` are the shares from those who have not dropped out."""
        self._advance(1)
        if values.min(initial=0) <= -WORD // 2 or values.max(initial=0) >= WORD // 2:
            raise PrivacyError("a count is too large for a masked sum")
        for other, message in sealed.items():
            key = self._share_key(other, other, self.number)
            self.received[other] = crypto.unseal(key, message, _route(other, self.number))
        if len(self.received) < threshold(len(self.roster)):
            raise PrivacyError(f"only {len(self.received)} of {len(self.roster)} are left: too few to hide anyone")
        total = (values % WORD).astype(np.uint32) + crypto.mask(self._secret("own seed"), len(values))
        private = self._secret("mask key")
        for other in sealed:
            total = total + _pairwise_mask(private, self.number, other, self.roster[other][0], len(values))
        return total

    def reveal(self, sent: Iterable[int]) -> Reveal:
        """Shares with which the server removes the remaining masks; once, and never both secrets of one client."""
        self._advance(2)
        senders = set(sent)
        enough = len(senders) >= threshold(len(self.roster))
        if not senders <= set(self.received) or self.number not in senders or not enough:
            raise PrivacyError("the server's list of those who sent does not fit what this client knows")
        return Reveal(
            seeds={other: shares[:SHARE_BYTES] for other, shares in self.received.items() if other in senders},
            keys={other: shares[SHARE_BYTES:] for other, shares in self.received.items() if other not in senders},
        )

    def dump(self) -> bytes:
        """All it needs to continue in another process; as secret as itself."""
        return TypeAdapter(MaskedSumClient).dump_json(self)

    @classmethod
    def load(cls, content: bytes) -> "MaskedSumClient":
        """What `dump` wrote."""
        return TypeAdapter(cls).validate_json(content)

    def _advance(self, expected: int) -> None:
        if self.step != expected:
            raise PrivacyError("this step of the masked sum was done already, or another one is due")
        self.step = expected + 1

    def _secret(self, purpose: str) -> bytes:
        return crypto.derive(self.root, purpose)

    def _share_key(self, other: int, sender: int, receiver: int) -> bytes:
        return crypto.agree(self._secret("share key"), self.roster[other][1], f"shares {sender} to {receiver}")


class MaskedSumServer:
    """The server's part in one sum: relays shares, adds up masked values, removes the remaining masks."""

    def __init__(self, keys: Mapping[int, Keys]) -> None:
        """`keys` of the clients that answered, by any number; in the sum they count from 1 in their order."""
        self.numbers = {client: number for number, client in enumerate(sorted(keys), 1)}
        self.roster = {number: keys[client] for client, number in self.numbers.items()}
        self._sum: Words | None = None
        self._dealt: set[int] = set()
        self._sent: set[int] = set()

    def relay(self, shares: Mapping[int, Mapping[int, bytes]]) -> dict[int, dict[int, bytes]]:
        """Sealed shares by receiver and sender, of clients that dealt to all others; by sender and receiver in."""
        complete = {sender: dealt for sender, dealt in shares.items() if set(dealt) == set(self.roster) - {sender}}
        self._dealt = set(complete)
        self._require(len(complete))
        return {to: {sender: dealt[to] for sender, dealt in complete.items() if sender != to} for to in complete}

    def add(self, number: int, masked: Words) -> None:
        """Add one client's masked values."""
        if number not in self._dealt or number in self._sent:
            raise PrivacyError(f"client {number} of the sum has no part in this step")
        if self._sum is not None and masked.shape != self._sum.shape:
            raise PrivacyError(
                f"client {number} of the sum sent {masked.shape[0]} numbers, the others {self._sum.shape[0]}"
            )
        self._sum = masked.copy() if self._sum is None else self._sum + masked
        self._sent.add(number)

    def sent(self) -> list[int]:
        """Clients whose values are in the sum."""
        self._require(len(self._sent))
        return sorted(self._sent)

    def result(self, reveals: Sequence[tuple[int, Reveal]]) -> NDArray[np.int64]:
        """The sum over those who sent; reveals of more than half of the clients are needed."""
        dropped = self._dealt - self._sent
        fitting = [(n, one) for n, one in reveals if set(one.seeds) == self._sent and set(one.keys) == dropped]
        self._require(len(fitting))
        chosen = dict(fitting[: threshold(len(self.roster))])
        assert self._sum is not None, "somebody sent"
        total = self._sum
        try:
            for number in self._sent:
                seed = crypto.combine_shares({holder: reveal.seeds[number] for holder, reveal in chosen.items()})
                total = total - crypto.mask(seed, len(total))
            for gone in dropped:
                key = crypto.combine_shares({holder: reveal.keys[gone] for holder, reveal in chosen.items()})
                if crypto.public_key(key) != self.roster[gone][0]:
                    raise ValueError("the shares of a mask key give another key")
                for number in self._sent:  # what each of them added for the one who dropped out
                    total = total - _pairwise_mask(key, number, gone, self.roster[number][0], len(total))
        except ValueError as error:
            raise PrivacyError(f"the masked sum cannot be opened: {error}") from None
        return total.view(np.int32).astype(np.int64)  # noise may have made a count negative

    def _require(self, found: int) -> None:
        needed = threshold(len(self.roster))
        if found < needed:
            raise PrivacyError(f"a masked sum over {len(self.roster)} clients needs {needed} to the end, not {found}")


def simulated_sum(values_KC: NDArray[np.int64]) -> NDArray[np.int64]:
    """The column sums, by the same steps in one process; a single client has nobody to hide behind."""
    if len(values_KC) == 1:
        return np.asarray(values_KC[0])
    clients = {number: MaskedSumClient() for number in range(1, len(values_KC) + 1)}
    server = MaskedSumServer({number: client.keys() for number, client in clients.items()})
    sealed = server.relay({number: client.shares(number, server.roster) for number, client in clients.items()})
    for number, client in clients.items():
        server.add(number, client.masked(values_KC[number - 1], sealed[number]))
    return server.result([(number, client.reveal(server.sent())) for number, client in clients.items()])


def _pairwise_mask(private: bytes, number: int, other: int, other_public: bytes, size: int) -> Words:
    """The mask that client `number` adds for `other`: the same numbers for both, with opposite signs."""
    low, high = sorted((number, other))
    numbers = crypto.mask(crypto.agree(private, other_public, f"mask {low} and {high}"), size)
    return numbers if number == low else np.uint32(0) - numbers


def _route(sender: int, receiver: int) -> bytes:
    return f"{sender} to {receiver}".encode()
