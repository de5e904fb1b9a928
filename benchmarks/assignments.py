"""How long does an assignment of clients to cohorts take? With label skew and round time, by assignment rule.

python benchmarks/assignments.py --out assignments.json
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from cpfl.cohorts.base import ClientView, as_cohorts, skews
from cpfl.settings import Assignment
from cpfl.task.population import assignment_rule

CLASSES, ALPHA, SEED = 10, 0.1, 90
RULES = ("random", "speed", "label-balanced", "label-clustered", "multi-objective")


def measure(clients: int, cohorts: int) -> list[dict[str, Any]]:
    """Every rule on one population: label counts by Dirichlet, seconds by a log-normal."""
    rng = np.random.default_rng(SEED)
    share = rng.dirichlet(np.full(CLASSES, ALPHA), clients)
    counts = rng.multinomial(rng.integers(5, 60, clients), share)
    seconds = rng.lognormal(3, 1, clients)
    view = ClientView(clients, SEED, counts, seconds)
    rows = []
    for name in RULES:
        began, cpu = time.perf_counter(), time.process_time()
        found = as_cohorts(name, assignment_rule(Assignment(rule=name)).assign(view, cohorts), clients, cohorts)
        took, busy = time.perf_counter() - began, time.process_time() - cpu
        held = np.array([counts[members].sum(axis=0) for members in found], np.float64)
        longest = np.array([seconds[members].max() for members in found])
        rows.append(
            {
                "clients": clients,
                "cohorts": cohorts,
                "rule": name,
                "seconds": round(took, 3),
                "cpu_seconds": round(busy, 3),
                "skew": round(float(skews(held, counts.sum(axis=0).astype(np.float64)).mean()), 5),
                "mean_round_of_the_slowest": round(float(longest.mean() / seconds.max()), 4),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--clients", type=int, nargs="+", default=[200, 100_000])
    parser.add_argument("--cohorts", type=int, nargs="+", default=[4, 16, 64])
    words = parser.parse_args()
    rows = []
    print("| clients | n | rule | seconds | CPU seconds | mean skew | mean round / slowest client's |")
    print("|---|---|---|---|---|---|---|")
    for clients in words.clients:
        for cohorts in words.cohorts:
            for row in measure(clients, cohorts):
                rows.append(row)
                print("| " + " | ".join(str(value) for value in row.values()) + " |", flush=True)
    if words.out is not None:
        words.out.parent.mkdir(parents=True, exist_ok=True)
        words.out.write_text(json.dumps({"classes": CLASSES, "alpha": ALPHA, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
