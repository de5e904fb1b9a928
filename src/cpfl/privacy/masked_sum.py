"""A sum over clients of which the server learns the sum only, even if clients drop out on the way.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning" (CCS 2017), four steps:

keys      every member publishes two public keys                                     server: passes them on
shares    … deals Shamir shares of its mask key and of its own seed, sealed           server: passes them on
masked    … sends values + own mask ± a mask with every other member, modulo 2³²      server: adds them up
reveal    … gives shares of the own seed of those who sent, of the mask key of those who did not, never both

Masks between members cancel. What is left in the sum are the own masks of those who sent, and the masks they shared
with those who dropped out: the server makes both from the revealed shares and takes them off. The server may be
curious, and may lie about who dropped out: a member reveals once, and more than half of them must agree.
It is trusted to pass on the members' own keys.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cpfl.errors import PrivacyError
from cpfl.privacy import shamir
from cpfl.privacy.masks import Words, agree, derive, mask, public_key, seal, unseal

Keys = tuple[bytes, bytes]
"""A member's public keys: for masks, for sealed letters."""

WORD = 2**32


def least(members: int) -> int:
    """How many must stay to the end: more than half, so that no two halves can be told different stories."""
    return members // 2 + 1


@dataclass(frozen=True)
class Reveal:
    """What a member gives away at the end: shares of others' own seeds, and of the mask keys of those who left."""

    seeds: dict[int, bytes]
    keys: dict[int, bytes]


@dataclass
class Member:
    """A client's part in one sum; all its secrets come from one root, so that it survives a restart."""

    me: int = 0  # its number in the sum, from 1; known once the roster is
    root: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    roster: dict[int, Keys] = field(default_factory=dict)
    letters: dict[int, bytes] = field(default_factory=dict)
    step: int = 0

    def keys(self) -> Keys:
        """Public keys for this sum."""
        return public_key(self._secret("mask key")), public_key(self._secret("letter key"))

    def shares(self, me: int, roster: Mapping[int, Keys], smallest: int = 2) -> dict[int, bytes]:
        """Sealed letters to every other member; refuses a sum in which it could not hide."""
        self._advance(0)
        if len(roster) < max(smallest, 2):
            raise PrivacyError(f"a sum over {len(roster)} would hide nobody: {max(smallest, 2)} are needed")
        if roster.get(me) != self.keys() or len(set(roster.values())) < len(roster):
            raise PrivacyError("the server's list of keys is not the members' own")
        self.me, self.roster = me, dict(roster)
        stream = iter(_numbers(self._secret("polynomials"), 2 * least(len(roster))))
        seeds, keys = (
            shamir.split(self._secret(name), list(roster), least(len(roster)), lambda: next(stream))
            for name in ("own seed", "mask key")
        )
        self.letters[me] = seeds[me] + keys[me]
        return {
            other: seal(self._letter_key(other, me, other), seeds[other] + keys[other], _about(me, other))
            for other in roster
            if other != me
        }

    def masked(self, values: NDArray[np.int64], sealed: Mapping[int, bytes]) -> Words:
        """The values under all masks; `sealed` are the letters of those who are still there."""
        self._advance(1)
        if values.min(initial=0) <= -WORD // 2 or values.max(initial=0) >= WORD // 2:
            raise PrivacyError("a count is too large for a masked sum")
        for other, letter in sealed.items():
            self.letters[other] = unseal(self._letter_key(other, other, self.me), letter, _about(other, self.me))
        if len(self.letters) < least(len(self.roster)):
            raise PrivacyError(f"only {len(self.letters)} of {len(self.roster)} are left: too few to hide anyone")
        total = (values % WORD).astype(np.uint32) + mask(self._secret("own seed"), len(values))
        private = self._secret("mask key")
        for other in sealed:
            total = total + _between(private, self.me, other, self.roster[other][0], len(values))
        return total

    def reveal(self, sent: Iterable[int]) -> Reveal:
        """Shares with which the server takes off the masks that are left; once, and never two of one member."""
        self._advance(2)
        there, size = set(sent), shamir.SIZE
        if not there <= set(self.letters) or self.me not in there or len(there) < least(len(self.roster)):
            raise PrivacyError("the server's list of those who sent does not fit what this client knows")
        return Reveal(
            seeds={other: letter[:size] for other, letter in self.letters.items() if other in there},
            keys={other: letter[size:] for other, letter in self.letters.items() if other not in there},
        )

    def dump(self) -> bytes:
        """All it needs to go on in another process; as secret as itself."""
        tree = {
            "me": self.me,
            "root": self.root.hex(),
            "roster": {k: [key.hex() for key in keys] for k, keys in self.roster.items()},
            "letters": {k: letter.hex() for k, letter in self.letters.items()},
            "step": self.step,
        }
        return json.dumps(tree).encode()

    @classmethod
    def load(cls, content: bytes) -> Member:
        """What `dump` kept."""
        tree = json.loads(content)
        roster = {int(k): (bytes.fromhex(a), bytes.fromhex(b)) for k, (a, b) in tree["roster"].items()}
        letters = {int(k): bytes.fromhex(letter) for k, letter in tree["letters"].items()}
        return cls(tree["me"], bytes.fromhex(tree["root"]), roster, letters, tree["step"])

    def _advance(self, expected: int) -> None:
        if self.step != expected:
            raise PrivacyError("this step of the masked sum was done already, or another one is due")
        self.step = expected + 1

    def _secret(self, purpose: str) -> bytes:
        return derive(self.root, purpose)

    def _letter_key(self, other: int, sender: int, receiver: int) -> bytes:
        return agree(self._secret("letter key"), self.roster[other][1], f"letter {sender} to {receiver}")


class Tally:
    """The server's part in one sum: passes on, adds up, takes off what is left of the masks."""

    def __init__(self, keys: Mapping[int, Keys]) -> None:
        """`keys` of the clients that answered, by any number; members count from 1 in their order."""
        self.clients = sorted(keys)
        self.roster = {number: keys[client] for number, client in enumerate(self.clients, 1)}
        self._sum: Words | None = None
        self._dealt: set[int] = set()
        self._sent: set[int] = set()

    def number(self, client: int) -> int:
        """A client's number as a member."""
        return self.clients.index(client) + 1

    def pass_on(self, letters: Mapping[int, Mapping[int, bytes]]) -> dict[int, dict[int, bytes]]:
        """Letters by receiver, from members that dealt to all others; {sender: {receiver: letter}} in."""
        whole = {sender: dealt for sender, dealt in letters.items() if set(dealt) == set(self.roster) - {sender}}
        self._dealt = set(whole)
        self._enough(len(whole))
        return {to: {sender: dealt[to] for sender, dealt in whole.items() if sender != to} for to in whole}

    def add(self, member: int, masked: Words) -> None:
        """Take one member's masked values in."""
        if member not in self._dealt or member in self._sent:
            raise PrivacyError(f"member {member} has no part in this step")
        if self._sum is not None and masked.shape != self._sum.shape:
            raise PrivacyError(f"member {member} sent {masked.shape[0]} numbers, the others {self._sum.shape[0]}")
        self._sum = masked.copy() if self._sum is None else self._sum + masked
        self._sent.add(member)

    def sent(self) -> list[int]:
        """Members whose values are in the sum."""
        self._enough(len(self._sent))
        return sorted(self._sent)

    def result(self, reveals: Sequence[tuple[int, Reveal]]) -> NDArray[np.int64]:
        """The sum over those who sent; reveals of more than half of the members are needed."""
        fitting = [
            (member, reveal)
            for member, reveal in reveals
            if set(reveal.seeds) == self._sent and set(reveal.keys) == self._dealt - self._sent
        ]
        self._enough(len(fitting))
        chosen = dict(fitting[: least(len(self.roster))])
        assert self._sum is not None, "somebody sent"
        total = self._sum
        try:
            for member in self._sent:
                seed = shamir.join({holder: reveal.seeds[member] for holder, reveal in chosen.items()})
                total = total - mask(seed, len(total))
            for gone in self._dealt - self._sent:
                key = shamir.join({holder: reveal.keys[gone] for holder, reveal in chosen.items()})
                if public_key(key) != self.roster[gone][0]:
                    raise ValueError("the shares of a mask key give another key")
                for member in self._sent:  # what each of them added for the one who left
                    total = total - _between(key, member, gone, self.roster[member][0], len(total))
        except ValueError as error:
            raise PrivacyError(f"the masked sum cannot be opened: {error}") from None
        return total.view(np.int32).astype(np.int64)  # noise may have made a count negative

    def _enough(self, there: int) -> None:
        needed = least(len(self.roster))
        if there < needed:
            raise PrivacyError(f"a masked sum over {len(self.roster)} clients needs {needed} to the end, not {there}")


def _between(private: bytes, member: int, other: int, other_public: bytes, size: int) -> Words:
    """The mask that `member` adds for `other`: the same numbers for both, with opposite signs."""
    low, high = sorted((member, other))
    numbers = mask(agree(private, other_public, f"mask {low} and {high}"), size)
    return numbers if member == low else np.uint32(0) - numbers


def _about(sender: int, receiver: int) -> bytes:
    return f"{sender} to {receiver}".encode()


def _numbers(secret: bytes, count: int) -> list[int]:
    """Random numbers below Shamir's prime, the same whenever they are asked for."""
    size = shamir.SIZE + 15  # so many more bits that the remainder is as good as uniform
    stream = mask(derive(secret, "numbers"), -(-count * size // 4)).astype("<u4").tobytes()
    return [int.from_bytes(stream[at * size : (at + 1) * size]) % shamir.PRIME for at in range(count)]
