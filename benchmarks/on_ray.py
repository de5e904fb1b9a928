"""What does Ray cost and gain? One worker against the plain engine, two workers against one, with equal records.

python benchmarks/on_ray.py --out results/ray/speed.json

Every case trains the same rounds of eight cohorts of the `cifar10` model, one core per worker. Cases alternate, so that
other load on the machine affects all of them. Wall time is from the first round to the last with workers ready:
the start of Ray and of workers is not in it. CPU time is that of all processes that took part.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cpfl import method
from cpfl.data.given import Given, as_samples
from cpfl.diagnostics import lasting
from cpfl.engines.create import create_engine
from cpfl.engines.ray import ClusterConfig
from cpfl.settings import experiment_file
from cpfl.task.task import Task, build_task

CASES = {"plain": ("workers", 1), "ray, 1 worker": ("ray", 1), "ray, 2 workers": ("ray", 2)}


def load_task(rounds: int, clients: int, each: int) -> Task:
    """Drawn images of the size of CIFAR-10's."""
    rng = np.random.default_rng(0)
    count = clients * each
    x, y = rng.integers(0, 256, (count, 3, 32, 32), np.uint8), rng.integers(0, 10, count)
    some = as_samples(x[:200], y[:200])
    settings = {
        "cohorts": 8, "clients": clients, "data.split": "iid", "devices.trace": "synthetic", **lasting(rounds),
    }  # fmt: skip
    experiment = experiment_file.with_settings(experiment_file.load("cifar10"), settings)
    return build_task(experiment, [], Given(as_samples(x, y), some, some))


def spent(task: Task, device: torch.device, shared: object, piece: object) -> float:
    """CPU seconds of a worker's process."""
    return time.process_time()


def measure(task: Task, kind: str, workers: int) -> dict[str, Any]:
    """One case: seconds, CPU seconds, and the records."""
    engine = create_engine(kind, task, torch.device("cpu"), print, workers, ClusterConfig(device="cpu"))
    sessions, lines = method.open_sessions(task), list[str]()
    helpers = list(range(workers)) if kind == "ray" else []
    before = time.process_time(), sum(engine.spread(spent, [], helpers)) if helpers else 0.0
    load, began = os.getloadavg()[0], time.perf_counter()
    engine.train_cohorts(sessions, lambda session, closed: lines.append(json.dumps(vars(closed.record))))
    seconds = time.perf_counter() - began
    cpu = time.process_time() - before[0]
    cpu += (sum(engine.spread(spent, [], helpers)) if helpers else 0.0) - before[1]
    engine.close()
    return {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "samples_per_second": sum(session.samples for session in sessions) / seconds,
        "load_before": load,
        "records": sorted(lines),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--each", type=int, default=100)
    parser.add_argument("--turns", type=int, default=3)
    words = parser.parse_args()
    task = load_task(words.rounds, words.clients, words.each)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in CASES}
    for _ in range(words.turns):
        for name, (kind, workers) in CASES.items():
            row = measure(task, kind, workers)
            found[name].append(row)
            print(name, {key: round(value, 2) for key, value in row.items() if key != "records"}, flush=True)
    first = found["plain"][0]["records"]
    equal = all(row.pop("records") == first for rows in found.values() for row in rows)
    middle = {name: statistics.median(row["seconds"] for row in rows) for name, rows in found.items()}
    cpu = {name: statistics.median(row["cpu_seconds"] for row in rows) for name, rows in found.items()}
    answer = {
        "speed_up_of_two_workers": middle["ray, 1 worker"] / middle["ray, 2 workers"],
        "overhead_of_one_worker": middle["ray, 1 worker"] / middle["plain"] - 1,
        "overhead_of_one_worker_in_cpu_time": cpu["ray, 1 worker"] / cpu["plain"] - 1,
        "records_equal": equal,
    }
    print(answer)
    settings = {key: value for key, value in vars(words).items() if key != "out"}
    about = {"torch": torch.__version__, "cores": os.cpu_count(), "settings": settings}
    words.out.parent.mkdir(parents=True, exist_ok=True)
    words.out.write_text(json.dumps({**about, **answer, "cases": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
