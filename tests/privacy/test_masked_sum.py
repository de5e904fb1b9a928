"""Masked sums: exact, whoever drops out when; and what a server that sees everything can make of it."""

from __future__ import annotations

import contextlib
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cryptography", reason="masked sums need cryptography: pip install 'cpfl[flower]'")

from cpfl.errors import PrivacyError
from cpfl.privacy import shamir
from cpfl.privacy.masked_sum import Member, Reveal, Tally, least
from cpfl.privacy.masks import mask
from cpfl.privacy.rehearsal import masked_sum


def values(members: int, size: int = 7, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1000, (members, size))


class Play:
    """A whole sum in which members leave after given steps; keeps every message that the server saw."""

    def __init__(self, counts: np.ndarray, leaving: dict[int, int]) -> None:
        """`leaving`: member → the step (1 keys, 2 shares, 3 masked) after which it is gone."""
        self.members = {number: Member() for number in range(1, len(counts) + 1)}
        self.tally = Tally({number: member.keys() for number, member in self.members.items()})

        def there(step: int) -> dict[int, Member]:
            return {number: m for number, m in self.members.items() if leaving.get(number, 9) > step}

        self.letters = {n: m.shares(n, self.tally.roster) for n, m in there(1).items()}
        passed = self.tally.pass_on(self.letters)
        self.masked = {n: m.masked(counts[n - 1], passed[n]) for n, m in there(2).items()}
        for number, numbers in self.masked.items():
            self.tally.add(number, numbers)
        self.reveals = [(n, m.reveal(self.tally.sent())) for n, m in there(3).items()]
        self.sum = self.tally.result(self.reveals)


@given(st.integers(2, 9), st.data())
@settings(max_examples=25, deadline=None)
def test_the_sum_is_that_of_those_who_sent(members: int, data: st.DataObject) -> None:
    """Anyone may leave at any step, as long as more than half stay to the end."""
    gone = data.draw(st.integers(0, members - least(members)))
    leaving = {
        number: data.draw(st.integers(1, 3)) for number in data.draw(st.permutations(range(1, members + 1)))[:gone]
    }
    counts = values(members)
    sent = [number for number in range(1, members + 1) if leaving.get(number, 9) > 2]
    assert (Play(counts, leaving).sum == counts[[n - 1 for n in sent]].sum(axis=0)).all()


@pytest.mark.parametrize("step", [1, 2, 3])
def test_too_few_to_go_on(step: int) -> None:
    """With half of them gone nothing is opened, whenever they left."""
    with pytest.raises(PrivacyError, match=r"needs 3 to the end, not 2|only 2 of 4"):
        Play(values(4), {1: step, 2: step})


def test_sums_wrap_exactly() -> None:
    """Numbers are whole and exact up to 2³¹, also negative ones, which noise makes."""
    counts = np.array([[2**31 - 1, -5, 0], [0, 2, 0], [-7, 1, 0]])
    assert masked_sum(counts).tolist() == [2**31 - 8, -2, 0]
    with pytest.raises(PrivacyError, match="too large"):
        masked_sum(np.array([[2**31], [0]]))


class Server:
    """Knows every message of a sum and tries to open what one member sent."""

    def __init__(self, play: Play) -> None:
        self.play = play

    def own_seeds(self) -> dict[int, bytes]:
        """Own seeds that revealed shares give away."""
        return self._joined("seeds")

    def mask_keys(self) -> dict[int, bytes]:
        """Mask keys that revealed shares give away."""
        return self._joined("keys")

    def _joined(self, kind: str) -> dict[int, bytes]:
        known: dict[int, dict[int, bytes]] = {}
        for holder, reveal in self.play.reveals:
            for member, share in getattr(reveal, kind).items():
                known.setdefault(member, {})[holder] = share
        needed = least(len(self.play.members))
        return {member: shamir.join(shares) for member, shares in known.items() if len(shares) >= needed}


def test_the_server_learns_the_sum_only() -> None:
    """With all messages, and all that the last step gives away, every member's values stay under a mask."""
    counts = values(6)
    play = Play(counts, {2: 2, 5: 3})  # one leaves before it sends, one after
    server = Server(play)
    seeds, keys = server.own_seeds(), server.mask_keys()
    assert set(seeds) == {1, 3, 4, 5, 6}
    assert set(keys) == {2}
    assert not set(seeds) & set(keys), "both secrets of a member would open what it sent"
    for member, sent in play.masked.items():
        guess = sent - mask(seeds[member], counts.shape[1])
        assert (guess != counts[member - 1]).any(), "the masks shared with the others are still there"


def test_what_a_server_sees_does_not_depend_on_who_held_what() -> None:
    """The same secrets, two ways to hold the same sum: all that is sent differs by uniform masks only.

    For any values with the same sum there are masks that explain what the server saw: it can tell nothing apart.
    """
    size = 3
    counts, other = values(4, size), values(4, size, seed=2)
    other[-1] += counts.sum(axis=0) - other.sum(axis=0)
    play = Play(counts, {})
    seeds = Server(play).own_seeds()
    under = {n: sent - mask(seeds[n], size) for n, sent in play.masked.items()}  # all it can take off
    # Pairwise masks of an equally likely world: free numbers on a spanning tree make up the difference.
    explained = {n: (other[n - 1] % 2**32).astype(np.uint32) for n in under}
    carry = np.zeros(size, np.uint32)
    for n in sorted(under)[:-1]:
        between = under[n] - explained[n] - carry  # what n and n + 1 would have to share
        explained[n] = explained[n] + carry + between
        carry = np.uint32(0) - between
    last = max(under)
    assert (explained[last] + carry == under[last]).all()
    assert len({bytes(m) for m in under.values()}) == 4


def test_masked_values_look_uniform() -> None:
    """Zeros leave a client as numbers that fill the whole range evenly."""
    sent = np.concatenate([list(Play(np.zeros((3, 500), np.int64), {}).masked.values())]).ravel()
    halves = np.mean(sent >= 2**31)
    assert abs(halves - 0.5) < 0.07
    assert len(np.unique(sent)) == sent.size


def test_a_member_reveals_once_and_not_to_a_liar() -> None:
    """The server cannot ask twice with different stories, nor claim that somebody unknown sent."""
    counts = values(5)
    play = Play(counts, {})
    with pytest.raises(PrivacyError, match="done already"):
        play.members[1].reveal([1, 2, 3])
    fresh = {n: Member() for n in range(1, 4)}
    tally = Tally({n: m.keys() for n, m in fresh.items()})
    passed = tally.pass_on({n: m.shares(n, tally.roster) for n, m in fresh.items()})
    fresh[1].masked(counts[0], passed[1])
    with pytest.raises(PrivacyError, match="does not fit"):
        fresh[1].reveal([2, 3])


def test_no_two_stories_reach_the_threshold() -> None:
    """However a lying server splits the members, one half is too small to open a second secret."""
    for members in range(2, 30):
        assert 2 * least(members) > members


def test_a_sum_that_hides_nobody_is_refused() -> None:
    member, other = Member(), Member()
    with pytest.raises(PrivacyError, match="hide nobody: 3 are needed"):
        member.shares(1, {1: member.keys(), 2: other.keys()}, smallest=3)
    alone = Member()
    with pytest.raises(PrivacyError, match="hide nobody"):
        alone.shares(1, {1: alone.keys()})


def test_a_server_that_swaps_keys_or_letters_is_noticed() -> None:
    one, two, three = Member(), Member(), Member()
    with pytest.raises(PrivacyError, match="not the members' own"):
        one.shares(1, {1: two.keys(), 2: three.keys()})
    with pytest.raises(PrivacyError, match="not the members' own"):
        two.shares(1, {1: two.keys(), 2: two.keys()})
    one, two = Member(), Member()
    roster = {1: one.keys(), 2: two.keys()}
    one.shares(1, roster)
    letter = two.shares(2, roster)[1]
    with pytest.raises(ValueError, match="changed on its way"):
        one.masked(np.zeros(2, np.int64), {2: letter[:-1] + bytes([letter[-1] ^ 1])})


def test_shares_that_do_not_belong_together() -> None:
    """A member that lies in the last step cannot make the server print a wrong sum unnoticed for a dropped member."""
    counts = values(4)
    play = Play(counts, {4: 2})
    number, honest = play.reveals[0]
    forged = Reveal(honest.seeds, {4: bytes(shamir.SIZE)})
    with pytest.raises(PrivacyError, match="cannot be opened"):
        play.tally.result([(number, forged), *play.reveals[1:]])


def test_a_member_goes_on_in_another_process() -> None:
    """Every step from a fresh copy of what the last one kept."""
    counts = values(3)
    kept = {n: Member().dump() for n in range(1, 4)}

    def step(n: int, do: str, *words: object) -> object:
        member = Member.load(kept[n])
        answer = getattr(member, do)(*words)
        kept[n] = member.dump()
        return answer

    tally = Tally({n: step(n, "keys") for n in kept})  # type: ignore[misc]
    passed = tally.pass_on({n: step(n, "shares", n, tally.roster) for n in kept})  # type: ignore[misc]
    for n in kept:
        tally.add(n, step(n, "masked", counts[n - 1], passed[n]))  # type: ignore[arg-type]
    total = tally.result([(n, step(n, "reveal", tally.sent())) for n in kept])  # type: ignore[misc]
    assert (total == counts.sum(axis=0)).all()


def test_shamir_needs_the_threshold() -> None:
    secret, numbers = bytes(range(32)), itertools.count(12345, 987654321)
    shares = shamir.split(secret, [1, 2, 3, 4, 5], 3, lambda: next(numbers))
    for chosen in itertools.combinations(shares, 3):
        assert shamir.join({at: shares[at] for at in chosen}) == secret
    for chosen in itertools.combinations(shares, 2):
        with contextlib.suppress(ValueError):
            assert shamir.join({at: shares[at] for at in chosen}) != secret
