"""What does a large population cost? Planning it, its memory, and a round of the same few participants.

python benchmarks/population.py --out results/population.json 10000 100000 1000000
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

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
EACH = 20  # samples a client


def measure(clients: int, rounds: int) -> dict[str, Any]:
    """One population, in a process of its own."""
    rng = np.random.default_rng(0)
    count = clients * EACH
    owner = np.repeat(np.arange(clients), EACH)
    x, y = rng.integers(0, 256, (count, 1, 8, 8), np.uint8), rng.integers(0, 10, count)
    some = as_samples(x[:1000], y[:1000])
    given = Given(as_samples(x, y, {"owner": owner}), some, some)
    settings = {
        "clients": clients, "cohorts": 4, "data.split": "column", "data.column": "owner", "devices.trace": "synthetic",
        "federation.participants": PARTICIPANTS // 4, **lasting(rounds),
    }  # fmt: skip
    experiment = experiment_file.with_settings(experiment_file.load("digits"), settings)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    problem = prepare(experiment, [], given)
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder.create(Path(place) / "run", experiment, describe(problem, None))
        sessions = method.plan(problem)
        planned = time.perf_counter() - began
        engine = choice.engine("workers", problem, torch.device("cpu"), print, workers=1)
        watch = Stopwatch(4, rounds + 3)
        method.federate(problem, sessions, folder, engine, watch)
        folder.unlock()
    return {
        "clients": clients,
        "samples": count,
        "planned_seconds": planned,
        "microseconds_per_sample": 1e6 * (watch.ended - watch.began) / watch.samples,
        "host_memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "of_it_before_planning_gb": before / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("clients", nargs="+", type=int)
    words = parser.parse_args()
    if words.out is None:
        print(json.dumps(measure(words.clients[0], words.rounds)))
        return
    rows = []
    for clients in words.clients:
        command = [sys.executable, __file__, "--rounds", str(words.rounds), str(clients)]
        rows.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        print(rows[-1], flush=True)
        words.out.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
