"""What would 1,000 GPUs give? On paper, from measured costs: per sample, per byte and per round.

python benchmarks/thousand_gpus.py --out results/ray/thousand-gpus.json

What a round costs the driver is measured here; what it costs a GPU is in results/lanes/README.md.
"""

from __future__ import annotations

import argparse
import json
import pickle
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from cpfl.data.given import Given, as_samples
from cpfl.engines.ray import messages
from cpfl.federation.session import ClientResult, RoundResult
from cpfl.runs.folder import RunFolder
from cpfl.runs.writer import RunWriter
from cpfl.settings import experiment_file
from cpfl.task.task import build_task

SAMPLES = 720_000.0  # a second on one GPU with all lanes full, bf16
LANES = 40  # clients at once that fill them; with fewer, a step is taken to last as long
EVALUATION = 0.00025  # seconds of a GPU for the evaluation of one round
MODEL = 346_000.0  # bytes of the cifar10 model in a message
WIRE = 25e9 / 8  # bytes a second into the driver's machine
START = 44.0  # seconds from the command to the first round, with empty compile caches
LABEL = 2e6  # samples a second that one GPU puts through one teacher: three times the training rate, no backward pass
STUDENT = 6.0  # seconds of the student, which trains on one GPU

CASES = {
    "the paper's cifar10: 200 clients, 225 samples each, 2,000 rounds": (200, 225, 2000, 40_000, (4, 16, 64, 200)),
    "a million clients, 100 samples each, 500 rounds": (10**6, 100, 500, 40_000, (16, 256, 1000, 8000)),
}


def round_cost(participants: int, rounds: int = 200) -> float:
    """Seconds of the driver for one closed round: message read, session closed, record handed to the writer."""
    rng = np.random.default_rng(0)
    count = max(400, participants)
    x, y = rng.integers(0, 256, (count, 3, 32, 32), np.uint8), rng.integers(0, 10, count)
    some = as_samples(x, y)
    settings = {
        "cohorts": 1, "clients": participants, "data.split": "iid", "devices.trace": "synthetic",
        "max_rounds": rounds + 1, "stopping.rule": "rounds", "stopping.rounds": rounds + 1,
    }  # fmt: skip
    experiment = experiment_file.with_settings(experiment_file.load("cifar10"), settings)
    task = build_task(experiment, [], Given(some, some, some))
    session = task.session(0)
    results = [ClientResult(client, 225, 12, 2.3, 2.3) for client in range(participants)]
    layout = task.layout()
    done = messages.RoundDone.from_result(0, RoundResult(dict(task.start), results), layout)
    message = pickle.dumps(done, protocol=5)
    with tempfile.TemporaryDirectory() as scratch:
        folder = RunFolder.create(Path(scratch) / "run", experiment, {})
        began = time.process_time()
        with RunWriter(folder, 30.0) as writer:
            for _ in range(rounds):
                writer.write(session, session.close_round(pickle.loads(message).result(layout)))
        spent = time.process_time() - began
        folder.unlock()
    return spent / rounds


def estimate(case: tuple[Any, ...], n: int, gpus: int, cost: tuple[float, float]) -> dict[str, Any]:
    """Seconds of each part, and what holds the rest up."""
    clients, each, rounds, public, _ = case
    used = min(gpus, n)
    share = -(-n // used)  # cohorts of the fullest worker
    full = min(1.0, share * clients / n / LANES)
    training = share / n * clients * each * rounds / (SAMPLES * full) + share * rounds * EVALUATION
    driver = n * rounds * max(cost[0] + cost[1] * clients / n, MODEL / WIRE)
    labelling = n * public / (LABEL * used)
    total = START + max(training, driver) + labelling + STUDENT
    return {
        "n": n, "gpus": gpus, "gpus_used": used, "training": training, "driver": driver, "labelling": labelling,
        "seconds": total, "held_up_by": "the driver" if driver > training else "the GPUs",
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    words = parser.parse_args()
    few, many = round_cost(12), round_cost(2000)
    cost = few, (many - few) / (2000 - 12)
    print(f"a closed round costs the driver {1e6 * few:.0f} µs, and {1e6 * cost[1]:.1f} µs for each participant")
    found: dict[str, Any] = {"driver_seconds_per_round": few, "and_for_each_participant": cost[1], "cases": {}}
    for name, case in CASES.items():
        rows = [estimate(case, n, gpus, cost) for n in case[-1] for gpus in (1, 8, 64, 1000)]
        found["cases"][name] = rows
        print(f"\n{name}\n| n | GPUs | of use | training | driver | labelling | in all | held up by |\n|" + "---|" * 8)
        for row in rows:
            parts = " | ".join(f"{row[key]:,.0f} s" for key in ("training", "driver", "labelling", "seconds"))
            print(f"| {row['n']:,} | {row['gpus']:,} | {row['gpus_used']:,} | {parts} | {row['held_up_by']} |")
    words.out.parent.mkdir(parents=True, exist_ok=True)
    words.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
