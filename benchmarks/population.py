"""What does a large population cost? Planning it, its memory, and a round of the same few participants.

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

import altair as alt
import numpy as np
import torch

from cpfl import experiment_file, method
from cpfl.bench import Stopwatch, lasting
from cpfl.data.federated import Given, as_samples
from cpfl.engines import choice
from cpfl.opening import describe
from cpfl.problem import prepare
from cpfl.runs.folder import RunFolder

PARTICIPANTS = 100


def drawn(place: Path, clients: int, each: int) -> tuple[Any, Any, Any]:
    """Samples, labels and owners of a population, on disk and memory-mapped."""
    rng, count = np.random.default_rng(0), clients * each
    x = np.lib.format.open_memmap(place / "x.npy", "w+", np.uint8, (count, 1, 8, 8))
    for at in range(0, count, 10**6):
        x[at : at + 10**6] = rng.integers(0, 256, (min(10**6, count - at), 1, 8, 8), np.uint8)
    np.save(place / "y.npy", rng.integers(0, 10, count))
    np.save(place / "owner.npy", np.repeat(np.arange(clients), each))
    del x
    found = [np.load(place / f"{name}.npy", mmap_mode="r") for name in ("x", "y", "owner")]
    return found[0], found[1], found[2]


class Private:
    """The most memory that was this process's own, not a mapped file's; looked at 50 times a second."""

    def __enter__(self) -> Private:
        self.most, self._ended = 0, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.02):
            self.most = max(self.most, own_kilobytes())


def own_kilobytes() -> int:
    """Private memory of this process now."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def measure(clients: int, rounds: int, each: int, budget: float, place: Path) -> dict[str, Any]:
    """One population, in a process of its own that gets no more private memory than the budget."""
    x, y, owner = drawn(place, clients, each)
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
        with Private() as private:
            problem = prepare(experiment, [], given)
            folder = RunFolder.create(Path(scratch) / "run", experiment, describe(problem, None))
            sessions = method.plan(problem)
        planned, worked = time.perf_counter() - began, time.process_time() - worked
        peak, kept = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, own_kilobytes()
        engine = choice.engine("workers", problem, torch.device("cpu"), print, workers=1)
        watch = Stopwatch(4, rounds + 3)
        method.federate(problem, sessions, folder, engine, watch)
        folder.unlock()
    return {
        "clients": clients,
        "samples": count,
        "planned_seconds": planned,
        "planned_cpu_seconds": worked,
        "microseconds_per_sample": 1e6 * (watch.ended - watch.began) / watch.samples,
        "host_memory_gb": peak / 1e6,
        "of_it_before_planning_gb": before / 1e6,
        "private_memory_gb": private.most / 1e6,
        "private_before_planning_gb": own_before / 1e6,
        "private_after_planning_gb": kept / 1e6,
        "budget_gb": budget,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--each", type=int, default=20, help="samples a client")
    parser.add_argument("--budget", type=float, default=0, help="GB of private memory; 0: no limit")
    parser.add_argument("--draw", type=Path, help="a picture of the curve")
    parser.add_argument("clients", nargs="+", type=int)
    words = parser.parse_args()
    if words.out is None:
        with tempfile.TemporaryDirectory() as place:
            print(json.dumps(measure(words.clients[0], words.rounds, words.each, words.budget, Path(place))))
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
    """Seconds and memory of planning over the number of clients."""
    pairs = (("planned_seconds", "seconds to plan"), ("private_memory_gb", "GB of private memory at most"))
    axis = alt.Axis(values=[row["clients"] for row in rows], format="~s", labelFlush=False)
    charts = [
        alt.Chart(alt.InlineData(values=rows), width=320, height=220)
        .mark_line(point=True)
        .encode(
            x=alt.X("clients:Q", scale=alt.Scale(type="log"), axis=axis),
            y=alt.Y(f"{key}:Q", title=title, scale=alt.Scale(type="log")),
        )
        for key, title in pairs
    ]
    alt.hconcat(*charts).save(path, scale_factor=2)


if __name__ == "__main__":
    main()
