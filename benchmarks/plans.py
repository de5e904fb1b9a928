"""How long does a plan of cohorts take to make, and what does it come to? Label skew and round length by plan.

python benchmarks/plans.py --out plans.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cpfl.cohorts import labels, speeds
from cpfl.cohorts.measures import skews
from cpfl.cohorts.seats import Index, listed, seated, sizes
from cpfl.randomness import stream

CLASSES, ALPHA, SEED = 10, 0.1, 90


def measure(clients: int, cohorts: int) -> list[dict[str, Any]]:
    """Every plan over one population: label counts by Dirichlet, seconds by a log-normal."""
    rng = np.random.default_rng(SEED)
    share = rng.dirichlet(np.full(CLASSES, ALPHA), clients)
    counts = rng.multinomial(rng.integers(5, 60, clients), share)
    seconds = rng.lognormal(3, 1, clients)
    order = stream(SEED, "cohorts").permutation(clients)

    def swaps() -> np.random.Generator:
        return stream(SEED, "swaps")

    plans: dict[str, Callable[[], Index]] = {
        "random": lambda: seated(order, sizes(clients, cohorts)),
        "speed": lambda: speeds.fast_with_fast(seconds, cohorts, order),
        "label-balanced": lambda: labels.balanced(counts, cohorts, order, swaps()),
        "label-clustered": lambda: labels.clustered(counts, cohorts, order, swaps()),
        "multi-objective": lambda: speeds.weighed(counts, seconds, cohorts, order, swaps(), 1, 1),
    }
    rows = []
    for name, make in plans.items():
        began, cpu = time.perf_counter(), time.process_time()
        plan = listed(make())
        took, busy = time.perf_counter() - began, time.process_time() - cpu
        held = np.array([counts[members].sum(axis=0) for members in plan], np.float64)
        longest = np.array([seconds[members].max() for members in plan])
        rows.append(
            {
                "clients": clients,
                "cohorts": cohorts,
                "plan": name,
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
    print("| clients | n | plan | seconds | CPU seconds | mean skew | mean round / slowest client's |")
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
