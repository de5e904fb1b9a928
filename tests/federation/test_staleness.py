"""Updates of different age: REFL's and FedBuff's formulas in numpy, and FedBuff's updates by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.federation.cohorts import MODEL_BYTES, close, session

from cpfl.errors import SettingError
from cpfl.federation.rounds.staleness import Arrived, merged

AGES = [0, 3, 0, 1, 5]


def models(seed: int) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]:
    """Today's model, and where each of five clients began and ended; ten numbers."""
    rng = np.random.default_rng(seed)
    now = rng.normal(size=10)
    starts = [now if age == 0 else rng.normal(size=10) for age in AGES]
    return now, starts, [start + rng.normal(size=10) / 3 for start in starts]


def state(x: np.ndarray) -> dict[str, torch.Tensor]:
    return {"a": torch.from_numpy(x[:6].reshape(2, 3)), "count": torch.tensor(7), "b": torch.from_numpy(x[6:])}


def flat(found: dict[str, torch.Tensor]) -> np.ndarray:
    return np.concatenate([found["a"].numpy().ravel(), found["b"].numpy().ravel()])


def arrived(seed: int, weights: list[float]) -> tuple[dict[str, torch.Tensor], list[Arrived]]:
    now, starts, ends = models(seed)
    reported = zip(ends, starts, AGES, weights, strict=True)
    return state(now), [Arrived(state(end), state(start), age, weight) for end, start, age, weight in reported]


@pytest.mark.parametrize("seed", range(3))
def test_fedbuff(seed: int) -> None:
    now, starts, ends = models(seed)
    delta = sum(
        (end - start) / math.sqrt(1 + age) for end, start, age in zip(ends, starts, AGES, strict=True)
    )  # Δ̄ ← Δ̄ + Δ_i · s(τ_i), then Δ̄ / K
    found = merged("fedbuff", *arrived(seed, [1.0] * 5))
    assert flat(found) == pytest.approx(now + delta / 5, abs=1e-14)
    assert found["count"] == 7


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("weights", [[1.0] * 5, [3.0, 1.0, 2.0, 5.0, 4.0]])
def test_refl(seed: int, weights: list[float]) -> None:
    now, starts, ends = models(seed)
    u = [end - start for end, start in zip(ends, starts, strict=True)]
    n_F, u_F = 2, (u[0] + u[2]) / 2
    Lambda = {
        s: np.linalg.norm(u_F - (u[s] + n_F * u_F) / (n_F + 1)) ** 2 / np.linalg.norm(u_F) ** 2 for s in (1, 3, 4)
    }
    w = np.ones(5)
    for s, value in Lambda.items():
        w[s] = 0.65 / (AGES[s] + 1) + 0.35 * (1 - math.exp(-value / max(Lambda.values())))
    w = w * weights
    wanted = now + sum(share * update for share, update in zip(w / w.sum(), u, strict=True))
    assert flat(merged("refl", *arrived(seed, weights))) == pytest.approx(wanted, abs=1e-14)


def test_fresh_updates_are_a_mean() -> None:
    now, _, ends = models(0)
    fresh = [Arrived(state(end), state(now), 0, 1.0) for end in ends]
    for rule in ("refl", "fedbuff"):
        assert flat(merged(rule, state(now), fresh)) == pytest.approx(np.mean(ends, axis=0), abs=1e-14)


SAMPLES, SPEEDS = [2, 4, 6, 20, 1, 3], [1000.0] * 6  # 8, 14, 20, 62, 5 and 11 s


def test_fedbuff_s_updates() -> None:
    """An event by event walk: three train at a time, two results make a model."""
    one = session(SAMPLES, SPEEDS, federation__buffer_size=2, federation__concurrency=3)
    seconds = [3.0 * s + 2 for s in SAMPLES]
    running: dict[int, tuple[float, int]] = {}  # client: (arrives, version that it began with)
    clock = 0.0
    from cpfl.randomness import stream

    for update in range(1, 40):
        buffer: dict[int, int] = {}
        starts = 0
        while True:
            while len(running) < 3:
                idle = [c for c in range(6) if c not in running and c not in buffer]
                if not idle:
                    break
                client = idle[int(stream(90, "selection", 0, update, starts).integers(len(idle)))]
                running[client] = (clock + seconds[client], update)
                starts += 1
            first = min(running, key=lambda c: (running[c][0], c))
            clock, version = running.pop(first)
            buffer[first] = version
            if len(buffer) == 2:
                break
        work = one.open_round()
        assert work.participants == sorted(buffer)
        assert {c: o.round for c, o in work.origins.items()} == {c: v for c, v in buffer.items() if v < update}
        assert all(o.model["w"].item() == o.round - 1 for o in work.origins.values())
        assert work.aggregation == "fedbuff"
        record = close(one, SAMPLES).record
        assert record.clock == pytest.approx(clock)
        assert (record.slowest, record.stale) == (first, len(work.origins))
        assert record.cpu_seconds == pytest.approx(sum(3.0 * SAMPLES[c] for c in buffer))
        assert record.bytes == 4 * MODEL_BYTES
        assert one.participants(update + 2) == []  # nobody can know


def test_a_straggler_does_not_hold_fedbuff_up() -> None:
    plain, buffered = (session(SAMPLES, SPEEDS, max_rounds=12, **c) for c in ({}, {"federation__buffer_size": 6}))
    for one in (plain, buffered):
        while not one.stopped:
            close(one, SAMPLES)
    assert buffered.clock == pytest.approx(plain.clock)  # all six are waited for in both
    quick = session(SAMPLES, SPEEDS, max_rounds=24, federation__buffer_size=3)
    while not quick.stopped:
        close(quick, SAMPLES)
    assert quick.clock < plain.clock / 2


def test_a_buffer_that_cannot_be_filled() -> None:
    with pytest.raises(SettingError, match=r"federation.buffer_size = 7 is more than the 6 clients"):
        session(SAMPLES, SPEEDS, federation__buffer_size=7)
