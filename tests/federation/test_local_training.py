"""A client's batches in a round."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cpfl.federation import local_training
from cpfl.settings import Federation

Federations = st.builds(
    Federation,
    local_epochs=st.integers(1, 4),
    local_steps=st.sampled_from([0, 0, 1, 5]),
    batch_size=st.integers(1, 30),
)


@given(Federations, st.integers(1, 70), st.integers(0, 99), st.integers(0, 99), st.integers(1, 999))
def test_batches(federation: Federation, samples: int, seed: int, client: int, round: int) -> None:
    batches = local_training.batches(federation, samples, seed, client, round)
    assert len(batches) == local_training.steps(federation, samples)
    for batch in batches:
        assert len(set(batch.tolist())) == len(batch) <= federation.batch_size  # nothing twice
        assert set(batch.tolist()) <= set(range(samples))
    if federation.local_steps:
        assert all(len(batch) == min(federation.batch_size, samples) for batch in batches)
    else:
        everything = np.concatenate(batches).reshape(federation.local_epochs, samples)
        assert (np.sort(everything, axis=1) == np.arange(samples)).all()  # every epoch sees each sample once
        per_epoch = len(batches) // federation.local_epochs
        full = [len(b) for i, b in enumerate(batches) if i % per_epoch != per_epoch - 1]
        assert all(length == federation.batch_size for length in full)  # only an epoch's last may be short
    again = local_training.batches(federation, samples, seed, client, round)
    assert all(np.array_equal(one, other) for one, other in zip(batches, again, strict=True))


def test_every_address_has_its_own_order() -> None:
    federation = Federation(batch_size=100)
    addresses = [(90, 0, 1), (91, 0, 1), (90, 1, 1), (90, 0, 2)]
    orders = {tuple(local_training.batches(federation, 100, *address)[0].tolist()) for address in addresses}
    assert len(orders) == len(addresses)
    epochs = local_training.batches(Federation(batch_size=100, local_epochs=2), 100, 90, 0, 1)
    assert not np.array_equal(epochs[0], epochs[1])


def test_augmentations_are_addressed() -> None:
    shape = (3, 32, 32)
    plan = local_training.augmentation(20, shape, 90, 3, 7)
    assert len(plan) == 20
    assert np.array_equal(plan, local_training.augmentation(20, shape, 90, 3, 7))
    others = [
        local_training.augmentation(20, shape, 90, 3, 8),
        local_training.augmentation(20, shape, 90, 4, 7),
        local_training.augmentation(20, shape, 91, 3, 7),
        local_training.augmentation(20, shape, 90, 3, 7, "val-augment"),
    ]
    assert not any(np.array_equal(plan, other) for other in others)
