"""What does a large population cost? Its setup, its memory, and a round of the same few participants.

python benchmarks/population.py --out results/population.json 10000 100000 1000000
python benchmarks/population.py --each 2 --budget 6 --draw curve.png --out ten.json 10000 100000 1000000 10000000
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cpfl import method
from cpfl.data.given import Given, as_samples
from cpfl.diagnostics import Stopwatch, lasting
from cpfl.engines.create import create_engine
from cpfl.reports import style
from cpfl.runs.folder import RunFolder
from cpfl.runs.recorder import RunRecorder
from cpfl.runs.reload import describe
from cpfl.settings import experiment_file
from cpfl.task.task import build_task

PARTICIPANTS = 100


def drawn(folder: Path, clients: int, each: int) -> tuple[Any, Any, Any]:
    """Samples, labels and owners of a population, on disk and memory-mapped."""
    rng, count = np.random.default_rng(0), clients * each
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.uint8, (count, 1, 8, 8))
    for at in range(0, count, 10**6):
        x[at : at + 10**6] = rng.integers(0, 256, (min(10**6, count - at), 1, 8, 8), np.uint8)
    np.save(folder / "y.npy", rng.integers(0, 10, count))
    np.save(folder / "owner.npy", np.repeat(np.arange(clients), each))
    del x
    found = [np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("x", "y", "owner")]
    return found[0], found[1], found[2]


class PrivateMemory:
    """The maximum of this process's private memory, without mapped files; sampled 50 times a second."""

    def __enter__(self) -> PrivateMemory:
        self.most, self._ended = 0, threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.wait(0.02):
            self.most = max(self.most, own_kilobytes())


def own_kilobytes() -> int:
    """Private memory of this process now."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def measure(clients: int, rounds: int, each: int, budget: float, data: Path) -> dict[str, Any]:
    """One population, in a process of its own that gets no more private memory than the budget."""
    x, y, owner = drawn(data, clients, each)
    count = len(x)
    if budget:
        resource.setrlimit(resource.RLIMIT_DATA, (int(budget * 1e9), int(budget * 1e9)))
    some = as_samples(x[:1000], y[:1000])
    given = Given(as_samples(x, y, {"owner": owner}), some, some)
    settings = {
        "clients": clients, "cohorts": 4, "data.split": "column", "data.column": "owner", "devices.trace": "synthetic",
        "federation.participants": PARTICIPANTS // 4, **lasting(rounds),
    }  # fmt: skip
    experiment = experiment_file.with_settings(experiment_file.load("digits"), settings)
    before, own_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, own_kilobytes()
    began, worked = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as scratch:
        with PrivateMemory() as private:
            task = build_task(experiment, [], given)
            folder = RunFolder.create(Path(scratch) / "run", experiment, describe(task, None, "auto"))
            sessions = method.open_sessions(task)
        setup, worked = time.perf_counter() - began, time.process_time() - worked
        peak, after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, own_kilobytes()
        engine = create_engine("workers", task, torch.device("cpu"), print, workers=1)
        stopwatch = Stopwatch(4, rounds + 3)
        method.train_cohorts(task, sessions, engine, RunRecorder(folder, experiment, stopwatch), torch.device("cpu"))
        folder.unlock()
    return {
        "clients": clients,
        "samples": count,
        "setup_seconds": setup,
        "setup_cpu_seconds": worked,
        "microseconds_per_sample": 1e6 * (stopwatch.ended - stopwatch.began) / stopwatch.samples,
        "host_memory_gb": peak / 1e6,
        "host_memory_before_setup_gb": before / 1e6,
        "private_memory_gb": private.most / 1e6,
        "private_before_setup_gb": own_before / 1e6,
        "private_after_setup_gb": after / 1e6,
        "budget_gb": budget,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--each", type=int, default=20, help="samples of each client")
    parser.add_argument("--budget", type=float, default=0, help="GB of private memory; 0: no limit")
    parser.add_argument("--draw", type=Path, help="a picture of the curve")
    parser.add_argument("clients", nargs="+", type=int)
    words = parser.parse_args()
    if words.out is None:
        with tempfile.TemporaryDirectory() as data:
            print(json.dumps(measure(words.clients[0], words.rounds, words.each, words.budget, Path(data))))
        return
    rows = []
    for clients in words.clients:
        command = [sys.executable, __file__, "--rounds", str(words.rounds), "--each", str(words.each)]
        command += ["--budget", str(words.budget), str(clients)]
        rows.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        print(rows[-1], flush=True)
        words.out.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=2) + "\n")
    if words.draw:
        draw(rows, words.draw)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Seconds and memory of the setup over the number of clients."""
    pairs = (("setup_seconds", "seconds of setup"), ("private_memory_gb", "maximum private memory, GB"))
    axis = {"values": [row["clients"] for row in rows], "format": "~s", "labelFlush": False}
    charts = [
        {"width": 320, "height": 220}
        | style.mark(
            "line",
            {
                "x": style.field("clients:Q", scale={"type": "log"}, axis=axis),
                "y": style.field(f"{key}:Q", title=title, scale={"type": "log"}),
            },
            point=True,
        )
        for key, title in pairs
    ]
    style.save(style.SHARED | {"data": {"name": "rows"}, "hconcat": charts} | style.datasets(rows=rows), path)


if __name__ == "__main__":
    main()
