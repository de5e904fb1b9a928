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
cohorts        –                          permutation of the clients
devices        –                          rows of the trace (or uniform quantiles of the synthetic fleet)
selection      cohort, round              a round's participants
batches        client, round              the permutation(s) of a client's training samples
augment        client, round              crop, flip and cutout of every training sample, in batch order
model          client, round              one integer below 2**63: the torch seed of a model that draws, as dropout does
model-epoch    epoch                      the same for the student
val-augment    client, round              the same for validation images, where that setting is on
student        –                          one integer below 2**63: the torch seed of the fresh student
public-crop    –                          where larger public images are cropped
view           view                       crop, flip and cutout of every public image in one view
letters        – (seed 0)                 the built-in public set: letter, slant, size and weight of every image
grain          set (seed 0)               the grain of digits-grainy, train (0) and test (1), and of letters-grainy (2)
distill        epoch                      permutation of the public images
"""

from __future__ import annotations

import zlib

import numpy as np


def stream(seed: int, purpose: str, *address: int) -> np.random.Generator:
    """The generator that lives at this address."""
    key = (zlib.crc32(purpose.encode()), *address)
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=key)))
