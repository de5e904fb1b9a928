"""Random choices by address.

Nothing here draws "the next" number. Every choice has an address, (seed, purpose, numbers…), and the same address gives
the same choice on every engine, in any order and after any resume. The address book:

purpose        numbers                    what is drawn, in this order
-----------    -----------------------    ------------------------------------------------------------------------
init           –                          one integer below 2**63: the torch seed of the common start model
split          class                      dirichlet: permutation of the class's samples, then the clients' shares
split          –                          iid and shards: one permutation (of the samples; of the shards)
repair         client                     the donor of an empty client's one sample, then which of its samples
subset         – (seed 0)                 which column values become clients: the same for all seeds
test           – (seed 0)                 which samples are held out where a source has no test set
validation     client                     permutation of the client's samples; the first floor(share · n) validate
cohorts        –                          permutation of the clients; in other rules it breaks ties
redraw         meeting                    permutation of the clients of cohorts that are drawn anew
swaps          –                          cohort assignment: which cohorts are paired, and which clients may be swapped
devices        –                          rows of the trace (or uniform quantiles of the synthetic fleet)
selection      cohort, round              a round's participants; with an attempt, or FedBuff's start, as third number
availability   –                          rows of the availability trace
availability   client                     synthetic schedule: available at first or not, then the intervals' lengths
crash          client, round, attempt     whether the client crashes, then after which share of its work
batches        client, round              the permutation(s) of a client's training samples
augment        client, round              crop, flip and cutout of every training sample, in batch order
model          client, round              one integer below 2**63: the torch seed of a model that draws, as dropout does
model-epoch    epoch                      the same for the student
val-augment    client, round              the same for validation images, where that setting is on
student        –                          one integer below 2**63: the torch seed of the fresh student
public-crop    –                          where larger public images are cropped
view           view                       crop, flip and cutout of every public image in one view
asked          –                          stopping rule joint: the order in which clients are chosen to evaluate
count-noise    cohort                     the noise on a simulated cohort's label counts
letters        – (seed 0)                 the built-in public set: letter, slant, size and weight of every image
grain          set (seed 0)               the grain of digits-grainy, train (0) and test (1), and of letters-grainy (2)
distill        epoch                      permutation of the public images
target         –                          the bound: which half of the test set trains, and which half measures
half           client                     the bound: the two halves of a client's training samples
domain         client, half               the bound: a domain classifier's batches: of the client, then of the target
domain-model   client, half               one integer below 2**63: the torch seed of a domain classifier that draws
joint          half, epoch                the bound: permutation of the samples of a joint model
joint-model    half                       one integer below 2**63: the torch seed of a joint model that draws
"""

import zlib
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray


def stream(seed: int, purpose: str, *address: int) -> np.random.Generator:
    """The generator at this address."""
    key = (zlib.crc32(purpose.encode()), *address)
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=key)))


def streams(seed: int, purpose: str, numbers: Sequence[int] | NDArray[np.int64]) -> Iterator[np.random.Generator]:
    """The generators at (seed, purpose, number), one after the other and much faster than one by one.

    It is always the same object, set to the next address: draw from it before asking for another.
    """
    generator = stream(seed, purpose, 0)
    bits = generator.bit_generator
    start = bits.state
    for key in _keys(seed, purpose, np.asarray(numbers, np.uint32)):
        start["state"]["key"] = key
        bits.state = start
        yield generator


def _keys(seed: int, purpose: str, numbers_K: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """The Philox keys that numpy's SeedSequence makes for these addresses, all at once; (K, 2).

    Its hash is published (M. E. O'Neill's randutils, numpy's documentation of SeedSequence) and kept stable by numpy.
    """
    words = [seed >> shift & 0xFFFFFFFF for shift in range(0, max(seed.bit_length(), 1), 32)]
    words += [0] * (4 - len(words)) + [zlib.crc32(purpose.encode())]
    entropy = [np.full(numbers_K.shape, word, np.uint32) for word in words] + [numbers_K]
    hashed = _Hash(0x43B0D7E5, 0x931E8875)
    pool = [hashed(word) for word in entropy[:4]]
    for source in range(4):
        for target in range(4):
            if source != target:
                pool[target] = _mixed(pool[target], hashed(pool[source]))
    for word in entropy[4:]:
        for target in range(4):
            pool[target] = _mixed(pool[target], hashed(word))
    final = _Hash(0x8B51F9DD, 0x58F38DED)
    return np.stack([final(word) for word in pool], axis=1).view(np.uint64)


class _Hash:
    """SeedSequence's multiplicative hash; its constant changes with every word."""

    def __init__(self, start: int, factor: int) -> None:
        self._constant, self._factor = start, factor

    def __call__(self, word: NDArray[np.uint32]) -> NDArray[np.uint32]:
        word = word ^ np.uint32(self._constant)
        self._constant = self._constant * self._factor & 0xFFFFFFFF
        word = word * np.uint32(self._constant)
        return word ^ (word >> np.uint32(16))


def _mixed(x: NDArray[np.uint32], y: NDArray[np.uint32]) -> NDArray[np.uint32]:
    mixed: NDArray[np.uint32] = x * np.uint32(0xCA01F9DD) - y * np.uint32(0x4973F715)
    return mixed ^ (mixed >> np.uint32(16))
