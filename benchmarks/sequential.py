"""What do the hand-written training steps of workers gain over autograd, in whole rounds on two cores?

Both ways alternate five times; medians count. Hand-written steps stay while they gain 10 % or more on a preset's model.
Images of cifar10 and femnist are drawn.

    python benchmarks/sequential.py
"""

from __future__ import annotations

import statistics
from functools import partial
from unittest import mock

import torch

from cpfl.data.given import Given
from cpfl.diagnostics import drawn, lasting, measure
from cpfl.engines.create import create_engine
from cpfl.engines.workers import sequential, trainer
from cpfl.settings import experiment_file
from cpfl.task.task import build_task

CASES = (  # preset, precision, rounds
    ("digits", "float32", 150),
    ("femnist", "float32", 25),
    ("femnist", "bf16", 25),
    ("cifar10", "float32", 6),
    ("cifar10", "bf16", 8),
)
REPEATS, WORKERS, COHORTS, CLIENTS, EACH = 5, 2, 2, 8, 120  # the last: drawn samples of each client
CPU = torch.device("cpu")


def rate(preset: str, precision: str, rounds: int, by_hand: bool) -> float:
    """Samples a second; worker processes are forked within the patch, so they see it."""
    settings = {"cohorts": COHORTS, "precision": precision, **lasting(rounds)}
    if preset != "digits":
        settings |= {"clients": CLIENTS, "devices.trace": "synthetic", "data.public_fit": "exact"}
    experiment = experiment_file.load(preset, settings=settings)
    task = build_task(experiment, [], Given() if preset == "digits" else drawn(experiment, EACH * CLIENTS))
    with mock.patch.object(trainer, "sequential_step", sequential.sequential_step if by_hand else lambda *_: None):
        make = partial(create_engine, "workers", task, CPU, print, WORKERS)
        return measure(task, make, rounds, CPU).samples_per_second


def main() -> None:
    for preset, precision, rounds in CASES:
        rates: dict[bool, list[float]] = {True: [], False: []}
        for repeat in range(REPEATS):
            for by_hand in (True, False) if repeat % 2 else (False, True):
                rates[by_hand].append(rate(preset, precision, rounds, by_hand))
        own, autograd = statistics.median(rates[True]), statistics.median(rates[False])
        print(f"{preset}, {precision}: {own:,.0f} by hand, {autograd:,.0f} with autograd, {own / autograd:.2f}×")


if __name__ == "__main__":
    main()
