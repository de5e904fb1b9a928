"""How full are the lanes, and what would another number of them give? The schedule replayed without training.

A step's time is taken as a line through two measured ones, 16 and 64 lanes on an H200 in bf16.

    python benchmarks/lanes_schedule.py --data DIR 1 4 16 64 200
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Sequence
from pathlib import Path

from cpfl.data.given import Given
from cpfl.federation import local_training
from cpfl.settings import experiment_file
from cpfl.task.task import build_task

FEW, LARGE = (16, 0.49), (64, 1.23)  # lanes and milliseconds of a step


def milliseconds(lanes: int) -> float:
    """Of one step."""
    return FEW[1] + (lanes - FEW[0]) * (LARGE[1] - FEW[1]) / (LARGE[0] - FEW[0])


def replay(cohorts: Sequence[Sequence[int]], lanes: int, rounds: int, behind_first: bool) -> tuple[float, float]:
    """Steps of clients in a millisecond, and the share of lanes that were full; a cohort is its clients' steps."""
    waiting: list[tuple[int, int, int, int, int]] = []  # what comes first, then cohort and steps
    done, missing, queued = [0] * len(cohorts), [0] * len(cohorts), 0

    def open_round(cohort: int) -> None:
        nonlocal queued
        missing[cohort] = len(cohorts[cohort])
        for steps in sorted(cohorts[cohort], reverse=True):
            queued += 1
            number = done[cohort] if behind_first else 0
            longest = -max(cohorts[cohort]) if behind_first else 0
            heapq.heappush(waiting, (number, longest, queued, cohort, steps))

    for cohort in range(len(cohorts)):
        open_round(cohort)
    training: list[tuple[int, int]] = []  # when a lane's client ends, and its cohort
    now, spent, offered, trained = 0, 0.0, 0, 0
    while waiting or training:
        while waiting and len(training) < lanes:
            *_, cohort, steps = heapq.heappop(waiting)
            heapq.heappush(training, (now + steps, cohort))
            trained += steps
        few = len(training) + len(waiting) <= FEW[0]
        size, steps = (FEW[0] if few else lanes), training[0][0] - now
        spent, offered, now = spent + steps * milliseconds(size), offered + steps * size, now + steps
        while training and training[0][0] == now:
            _, cohort = heapq.heappop(training)
            missing[cohort] -= 1
            if not missing[cohort]:
                done[cohort] += 1
                if done[cohort] < rounds:
                    open_round(cohort)
    return trained / spent, trained / offered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--lanes", default="32,40,48,64,128")
    parser.add_argument("cohorts", nargs="+", type=int)
    words = parser.parse_args()
    print("| n | lanes | in order of arrival: samples/s | full | cohorts behind first: samples/s | full |")
    print("|---|---|---|---|---|---|")
    for cohorts in words.cohorts:
        chosen = {"cohorts": cohorts, "data.public": "cifar10", "data.public_fit": "exact"}
        experiment = experiment_file.with_settings(experiment_file.load("cifar10", []), chosen)
        task = build_task(experiment, [words.data], Given())
        steps = local_training.all_steps(experiment.federation, task.data.clients.training_sizes)
        by_cohort = [steps[clients].tolist() for clients in task.cohorts]
        for lanes in map(int, words.lanes.split(",")):
            cells = []
            for behind_first in (False, True):
                speed, full = replay(by_cohort, lanes, words.rounds, behind_first)
                cells.append(f"{1000 * speed * experiment.federation.batch_size:,.0f} | {full:.0%}")
            print(f"| {cohorts} | {lanes} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
