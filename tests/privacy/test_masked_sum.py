"""Masked sums: exact, whoever drops out when; and what a server that sees every message can learn."""

from __future__ import annotations

import contextlib
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cryptography", reason="masked sums need cryptography: pip install 'cpfl[flower]'")

from cpfl.errors import PrivacyError
from cpfl.privacy.crypto import SHARE_BYTES, combine_shares, mask, split_secret
from cpfl.privacy.masked_sum import MaskedSumClient, MaskedSumServer, Reveal, simulated_sum, threshold


def values(clients: int, size: int = 7, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1000, (clients, size))


class Protocol:
    """A whole sum in which clients drop out after given steps; keeps every message that the server saw."""

    def __init__(self, counts: np.ndarray, leaving: dict[int, int]) -> None:
        """`leaving`: client → the step (1 keys, 2 shares, 3 masked) after which it is gone."""
        self.clients = {number: MaskedSumClient() for number in range(1, len(counts) + 1)}
        self.server = MaskedSumServer({number: client.keys() for number, client in self.clients.items()})

        def remaining(step: int) -> dict[int, MaskedSumClient]:
            return {number: client for number, client in self.clients.items() if leaving.get(number, 9) > step}

        self.shares = {n: client.shares(n, self.server.roster) for n, client in remaining(1).items()}
        passed = self.server.relay(self.shares)
        self.masked = {n: client.masked(counts[n - 1], passed[n]) for n, client in remaining(2).items()}
        for number, numbers in self.masked.items():
            self.server.add(number, numbers)
        self.reveals = [(n, client.reveal(self.server.sent())) for n, client in remaining(3).items()]
        self.sum = self.server.result(self.reveals)


@given(st.integers(2, 9), st.data())
@settings(max_examples=25, deadline=None)
def test_the_sum_is_that_of_those_who_sent(clients: int, data: st.DataObject) -> None:
    """Anyone may leave at any step, as long as more than half stay to the end."""
    gone = data.draw(st.integers(0, clients - threshold(clients)))
    leaving = {
        number: data.draw(st.integers(1, 3)) for number in data.draw(st.permutations(range(1, clients + 1)))[:gone]
    }
    counts = values(clients)
    sent = [number for number in range(1, clients + 1) if leaving.get(number, 9) > 2]
    assert (Protocol(counts, leaving).sum == counts[[n - 1 for n in sent]].sum(axis=0)).all()


@pytest.mark.parametrize("step", [1, 2, 3])
def test_too_few_to_continue(step: int) -> None:
    """With half of them gone nothing is opened, whenever they left."""
    with pytest.raises(PrivacyError, match=r"needs 3 to the end, not 2|only 2 of 4"):
        Protocol(values(4), {1: step, 2: step})


def test_sums_wrap_exactly() -> None:
    """Numbers are whole and exact up to 2³¹, also negative ones, which noise makes."""
    counts = np.array([[2**31 - 1, -5, 0], [0, 2, 0], [-7, 1, 0]])
    assert simulated_sum(counts).tolist() == [2**31 - 8, -2, 0]
    with pytest.raises(PrivacyError, match="too large"):
        simulated_sum(np.array([[2**31], [0]]))


class Server:
    """Knows every message of a sum and tries to open what one client sent."""

    def __init__(self, run: Protocol) -> None:
        self.run = run

    def own_seeds(self) -> dict[int, bytes]:
        """Own seeds that revealed shares give away."""
        return self._combined("seeds")

    def mask_keys(self) -> dict[int, bytes]:
        """Mask keys that revealed shares give away."""
        return self._combined("keys")

    def _combined(self, kind: str) -> dict[int, bytes]:
        known: dict[int, dict[int, bytes]] = {}
        for holder, reveal in self.run.reveals:
            for client, share in getattr(reveal, kind).items():
                known.setdefault(client, {})[holder] = share
        needed = threshold(len(self.run.clients))
        return {client: combine_shares(shares) for client, shares in known.items() if len(shares) >= needed}


def test_the_server_learns_the_sum_only() -> None:
    """With all messages, and all that the last step gives away, every client's values stay under a mask."""
    counts = values(6)
    run = Protocol(counts, {2: 2, 5: 3})  # one leaves before it sends, one after
    server = Server(run)
    seeds, keys = server.own_seeds(), server.mask_keys()
    assert set(seeds) == {1, 3, 4, 5, 6}
    assert set(keys) == {2}
    assert not set(seeds) & set(keys), "both secrets of a client would open what it sent"
    for client, sent in run.masked.items():
        guess = sent - mask(seeds[client], counts.shape[1])
        assert (guess != counts[client - 1]).any(), "the masks shared with the others are still there"


def test_what_a_server_sees_does_not_depend_on_who_held_what() -> None:
    """The same secrets, two ways to hold the same sum: all that is sent differs by uniform masks only.

    For any values with the same sum there are masks that explain what the server saw: it can tell nothing apart.
    """
    size = 3
    counts, other = values(4, size), values(4, size, seed=2)
    other[-1] += counts.sum(axis=0) - other.sum(axis=0)
    run = Protocol(counts, {})
    seeds = Server(run).own_seeds()
    under = {n: sent - mask(seeds[n], size) for n, sent in run.masked.items()}  # all it can take off
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
    sent = np.concatenate([list(Protocol(np.zeros((3, 500), np.int64), {}).masked.values())]).ravel()
    halves = np.mean(sent >= 2**31)
    assert abs(halves - 0.5) < 0.07
    assert len(np.unique(sent)) == sent.size


def test_a_client_reveals_once_and_not_to_a_liar() -> None:
    """The server cannot ask twice with different claims, nor claim that somebody unknown sent."""
    counts = values(5)
    run = Protocol(counts, {})
    with pytest.raises(PrivacyError, match="done already"):
        run.clients[1].reveal([1, 2, 3])
    fresh = {n: MaskedSumClient() for n in range(1, 4)}
    server = MaskedSumServer({n: client.keys() for n, client in fresh.items()})
    passed = server.relay({n: client.shares(n, server.roster) for n, client in fresh.items()})
    fresh[1].masked(counts[0], passed[1])
    with pytest.raises(PrivacyError, match="does not fit"):
        fresh[1].reveal([2, 3])


def test_no_two_claims_reach_the_threshold() -> None:
    """However a lying server splits the clients, one half is too small to open a second secret."""
    for clients in range(2, 30):
        assert 2 * threshold(clients) > clients


def test_a_sum_that_hides_nobody_is_refused() -> None:
    client, other = MaskedSumClient(), MaskedSumClient()
    with pytest.raises(PrivacyError, match="hide nobody: 3 are needed"):
        client.shares(1, {1: client.keys(), 2: other.keys()}, min_clients=3)
    alone = MaskedSumClient()
    with pytest.raises(PrivacyError, match="hide nobody"):
        alone.shares(1, {1: alone.keys()})


def test_a_server_that_swaps_keys_or_shares_is_noticed() -> None:
    one, two, three = MaskedSumClient(), MaskedSumClient(), MaskedSumClient()
    with pytest.raises(PrivacyError, match="not the clients' own"):
        one.shares(1, {1: two.keys(), 2: three.keys()})
    with pytest.raises(PrivacyError, match="not the clients' own"):
        two.shares(1, {1: two.keys(), 2: two.keys()})
    one, two = MaskedSumClient(), MaskedSumClient()
    roster = {1: one.keys(), 2: two.keys()}
    one.shares(1, roster)
    share = two.shares(2, roster)[1]
    with pytest.raises(ValueError, match="changed on its way"):
        one.masked(np.zeros(2, np.int64), {2: share[:-1] + bytes([share[-1] ^ 1])})


def test_shares_that_do_not_belong_together() -> None:
    """A client that lies in the last step cannot make the server print a wrong sum unnoticed for a dropped client."""
    counts = values(4)
    run = Protocol(counts, {4: 2})
    number, honest = run.reveals[0]
    forged = Reveal(honest.seeds, {4: bytes(SHARE_BYTES)})
    with pytest.raises(PrivacyError, match="cannot be opened"):
        run.server.result([(number, forged), *run.reveals[1:]])


def test_a_client_continues_in_another_process() -> None:
    """Every step from a fresh copy of what the last one kept."""
    counts = values(3)
    kept = {n: MaskedSumClient().dump() for n in range(1, 4)}

    def step(n: int, do: str, *words: object) -> object:
        client = MaskedSumClient.load(kept[n])
        answer = getattr(client, do)(*words)
        kept[n] = client.dump()
        return answer

    server = MaskedSumServer({n: step(n, "keys") for n in kept})  # type: ignore[misc]
    passed = server.relay({n: step(n, "shares", n, server.roster) for n in kept})  # type: ignore[misc]
    for n in kept:
        server.add(n, step(n, "masked", counts[n - 1], passed[n]))  # type: ignore[arg-type]
    total = server.result([(n, step(n, "reveal", server.sent())) for n in kept])  # type: ignore[misc]
    assert (total == counts.sum(axis=0)).all()


def test_shamir_needs_the_threshold() -> None:
    secret, numbers = bytes(range(32)), itertools.count(12345, 987654321)
    shares = split_secret(secret, [1, 2, 3, 4, 5], 3, numbers)
    for chosen in itertools.combinations(shares, 3):
        assert combine_shares({holder: shares[holder] for holder in chosen}) == secret
    for chosen in itertools.combinations(shares, 2):
        with contextlib.suppress(ValueError):
            assert combine_shares({holder: shares[holder] for holder in chosen}) != secret
