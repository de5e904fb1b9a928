"""This machine: whether all works (`cpfl doctor`), and its throughput by engine (`cpfl bench`).

Throughput is measured in samples a second, over whole rounds of whole runs, records included.
"""

import importlib.util
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cpfl import method
from cpfl.callbacks import Callback
from cpfl.data import sources
from cpfl.data.catalogue import CATALOGUE
from cpfl.data.given import Given
from cpfl.data.samples import Samples
from cpfl.engines.base import Engine
from cpfl.engines.create import create_engine
from cpfl.errors import SettingError
from cpfl.federation.session import ClosedRound, Session
from cpfl.runs.folder import RunFolder, versions
from cpfl.runs.recorder import RunRecorder
from cpfl.runs.reload import describe
from cpfl.settings import Experiment, experiment_file
from cpfl.task.task import Task, build_task

WARM_UP = 3  # rounds of every cohort before the measurement
EXTRAS = {  # what each is for, and its packages
    "report": ("reports, dashboard and pictures", "vl_convert"),
    "data": ("the published files of SVHN", "scipy"),
    "onnx": ("exports as ONNX", "onnx", "onnxscript"),
    "tensorboard": ("--track tensorboard", "tensorboard"),
    "mlflow": ("--track mlflow", "mlflow"),
    "wandb": ("--track wandb", "wandb"),
    "tune": ("cpfl tune", "optuna"),
    "ray": ("clusters: --engine ray", "ray"),
    "flower": ("a real fleet: cpfl deploy", "flwr", "cryptography"),
}
PRESETS = {"cifar10": ((3, 32, 32), 10), "femnist": ((1, 28, 28), 62)}  # the shape of a sample, classes


def examine(data: Path | None) -> list[tuple[str, bool | None, str]]:
    """All checks, each as (what, whether it is fine, what was found); None: an optional part is not installed."""
    roots = sources.search_roots(data)
    sets = [sources.describe(name, roots) for name in CATALOGUE]
    missing = [one for one in sets if one.format == "missing"]
    by_hand = ", ".join(one.name for one in missing if not one.downloadable)
    free = shutil.disk_usage(Path.cwd()).free
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none: runs on the CPU"
    works = bool(torch.nn.functional.conv2d(torch.ones(1, 1, 3, 3), torch.ones(1, 1, 3, 3)).item() == 9)
    return [
        *((f"{name} {version}", True, "") for name, version in versions().items()),
        ("torch computes", works, "a convolution gave the right answer" if works else "a convolution was wrong"),
        ("processor", True, f"{platform.machine()}, {os.cpu_count()} cores"),
        ("GPU", True, gpu),
        ("disk here", free > 1e9, f"{free / 1e9:.0f} GB free"),
        *(_extra(name, *parts) for name, parts in EXTRAS.items()),
        ("data folders", True, ", ".join(str(root) for root in roots)),
        ("data found", True, ", ".join(one.name for one in sets if one not in missing)),
        ("data to fetch", True, ", ".join(one.name for one in missing if one.downloadable) or "none"),
        *([("data by hand", True, f"{by_hand}: cpfl data list says what is expected where")] if by_hand else []),
    ]


def _extra(name: str, use: str, *packages: str) -> tuple[str, bool | None, str]:
    """Whether the packages of an extra are installed."""
    if all(importlib.util.find_spec(package) for package in packages):
        return name, True, use
    return name, None, f"{use}: not installed, pip install 'cpfl[{name}]'"


@dataclass(frozen=True)
class Rate:
    """The throughput of one engine."""

    engine: str
    precision: str
    cohorts: int
    clients: int
    samples_per_second: float
    seconds_to_first_round: float  # after the task is loaded: compiling, for example
    window_seconds: float
    gpu_memory_gb: float | None


class Stopwatch(Callback):
    """Counts samples and seconds from the warm-up of the last cohort to the end of the first one.

    With the reference engine cohorts train one after the other: there it counts from the first round to the last.
    """

    def __init__(self, cohorts: int, rounds: int, one_by_one: bool = False) -> None:
        self._rounds, self._one_by_one, self._counting = rounds, one_by_one, True
        self._warming_up = set() if one_by_one else set(range(cohorts))
        self.first = self.began = self.ended = 0.0
        self.samples = 0

    def on_round(self, session: Session, closed: ClosedRound) -> None:
        """Count the round's samples while all cohorts train."""
        now = time.perf_counter()
        self.first = self.first or now
        if self.began and self._counting:
            self.samples += closed.record.samples
            self.ended = now
            self._counting = self._one_by_one or session.round < self._rounds
        if session.round >= WARM_UP:
            self._warming_up.discard(session.cohort)
        self.began = self.began or (0.0 if self._warming_up else now)


def measure(task: Task, make: Callable[[], Engine], rounds: int, device: torch.device) -> Rate:
    """Train the cohorts under the settings `lasting(rounds)`, and measure while all of them train."""
    experiment = task.experiment
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as scratch:
        folder = RunFolder.create(Path(scratch) / "run", experiment, describe(task, None, "auto"))
        began = time.perf_counter()
        engine = make()
        stopwatch = Stopwatch(experiment.cohorts, rounds + WARM_UP, engine.name == "reference")
        recorder = RunRecorder(folder, experiment, stopwatch)
        method.train_cohorts(task, method.open_sessions(task), engine, recorder, device)
        folder.unlock()
    return Rate(
        engine=engine.name,
        precision=experiment.precision,
        cohorts=experiment.cohorts,
        clients=experiment.clients,
        samples_per_second=stopwatch.samples / (stopwatch.ended - stopwatch.began),
        seconds_to_first_round=stopwatch.first - began,
        window_seconds=stopwatch.ended - stopwatch.began,
        gpu_memory_gb=torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else None,
    )


def lasting(rounds: int) -> dict[str, Any]:
    """Settings with which every cohort trains for the warm-up and so many rounds."""
    last = rounds + WARM_UP
    return {"stopping.rule": "rounds", "stopping.rounds": last, "max_rounds": last, "snapshots": ""}


def drawn(experiment: Experiment, samples: int) -> Given:
    """Random images of the preset's shape: throughput does not depend on their content."""
    shape, classes = PRESETS[experiment.name]
    rng = np.random.default_rng(0)

    def some(count: int) -> Samples:
        owner = np.arange(count) % experiment.clients
        x = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
        return Samples(x, rng.integers(0, classes, count), {"writer_id": owner})

    return Given(some(samples), some(200), some(200))


def bench(preset: str, cohorts: int, rounds: int, device: torch.device) -> Iterator[Rate]:
    """Measure the reference engine, then the engines of this machine, the fastest arithmetic last."""
    if preset not in PRESETS:
        raise SettingError(f"preset = {preset!r} is not allowed: {' or '.join(PRESETS)}")
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
        task = build_task(experiment, [], drawn(experiment, (250 if on_gpu else 60) * clients))
        yield measure(task, lambda p=task, n=name: create_engine(n, p, device, print), count, device)  # type: ignore[misc]
