"""How many samples a second does a machine train, and by which engine? Whole rounds of whole runs, records included."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cpfl import experiment_file, method
from cpfl.api import Silent
from cpfl.data.federated import Given
from cpfl.data.samples import Samples
from cpfl.engines import choice
from cpfl.engines.base import Engine
from cpfl.errors import SettingError
from cpfl.experiment import Experiment
from cpfl.federation.session import Closed, Session
from cpfl.opening import describe
from cpfl.problem import Problem, prepare
from cpfl.runs.folder import RunFolder

WARM_UP = 3  # rounds of every cohort before the window
PRESETS = {"cifar10": ((3, 32, 32), 10), "femnist": ((1, 28, 28), 62)}  # the shape of a sample, classes


@dataclass(frozen=True)
class Rate:
    """What was measured of one engine."""

    engine: str
    precision: str
    cohorts: int
    clients: int
    samples_per_second: float
    seconds_to_first_round: float  # from the prepared problem on: compiling, for example
    window_seconds: float
    gpu_memory_gb: float | None


class Stopwatch(Silent):
    """Samples and seconds from when every cohort has warmed up until the first one ends.

    The plain loop has one cohort at work at any time: there the window goes from the first round to the last.
    """

    def __init__(self, cohorts: int, rounds: int, one_by_one: bool = False) -> None:
        self._cohorts, self._rounds, self._one_by_one = cohorts, rounds, one_by_one
        self._warm: set[int] = set()
        self.first = self.began = self.ended = 0.0
        self.samples = 0

    def on_round(self, session: Session, closed: Closed) -> None:  # type: ignore[override]
        """Note the time."""
        now = time.perf_counter()
        if self._one_by_one and self.first:
            self.began, self.ended = self.first, now
            self.samples += closed.record.samples
            return
        self.first = self.first or now
        if self.began and not self.ended:
            self.samples += closed.record.samples
            if session.round >= self._rounds:
                self.ended = now
        if session.round >= WARM_UP:
            self._warm.add(session.cohort)
            if len(self._warm) == self._cohorts and not self.began:
                self.began = now


def measure(problem: Problem, make: Callable[[], Engine], rounds: int, device: torch.device) -> Rate:
    """One federation under the settings `lasting(rounds)`: the rate with all cohorts running."""
    experiment = problem.experiment
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder.create(Path(place) / "run", experiment, describe(problem, None))
        began = time.perf_counter()
        engine = make()
        watch = Stopwatch(experiment.cohorts, rounds + WARM_UP, engine.name == "reference")
        method.federate(problem, method.plan(problem), folder, engine, watch)
        folder.unlock()
    return Rate(
        engine=engine.name,
        precision=experiment.precision,
        cohorts=experiment.cohorts,
        clients=experiment.clients,
        samples_per_second=watch.samples / (watch.ended - watch.began),
        seconds_to_first_round=watch.first - began,
        window_seconds=watch.ended - watch.began,
        gpu_memory_gb=torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else None,
    )


def lasting(rounds: int) -> dict[str, Any]:
    """Settings under which every cohort does so many rounds, and those to warm up."""
    last = rounds + WARM_UP
    return {"stopping.rule": "rounds", "stopping.rounds": last, "max_rounds": last, "snapshots": ""}


def drawn(experiment: Experiment, samples: int) -> Given:
    """Random images of the preset's shape: how fast they train does not depend on what they show."""
    shape, classes = PRESETS[experiment.name]
    rng = np.random.default_rng(0)

    def some(count: int) -> Samples:
        owner = np.arange(count) % experiment.clients
        x = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
        return Samples(x, rng.integers(0, classes, count), {"writer_id": owner})

    return Given(some(samples), some(200), some(200))


def bench(preset: str, cohorts: int, rounds: int, device: torch.device) -> Iterator[Rate]:
    """The plain loop, then the engines that this machine has, fastest arithmetic last."""
    if preset not in PRESETS:
        raise SettingError(f"--preset takes {' or '.join(PRESETS)}, not {preset!r}")
    base = experiment_file.load(preset, ["devices.trace=synthetic", "data.public_fit=exact"])
    on_gpu = device.type == "cuda"
    clients = base.clients if on_gpu else 4 * cohorts
    engines = (
        [("reference", "tf32"), ("lanes", "tf32"), ("lanes", "bf16")]
        if on_gpu
        else [("reference", "float32"), ("workers", "float32"), ("workers", "bf16"), ("lanes", "float32")]
    )
    for name, precision in engines:
        count = min(rounds, 2) if name == "reference" and on_gpu else rounds
        settings = {"cohorts": cohorts, "clients": clients, "precision": precision, **lasting(count)}
        experiment = experiment_file.with_settings(base, settings)
        problem = prepare(experiment, [], drawn(experiment, (250 if on_gpu else 60) * clients))
        yield measure(problem, lambda p=problem, n=name: choice.engine(n, p, device, print), count, device)  # type: ignore[misc]
