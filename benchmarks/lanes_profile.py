"""Where does the time of a lane run go? A bare step, the whole loop, and the kernels of some steps.

python benchmarks/lanes_profile.py --data DIR --out results/lanes-profile.json
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import time
from pathlib import Path

import torch

from cpfl import experiment_file, method
from cpfl.data.federated import Given
from cpfl.engines.lanes import LaneEngine
from cpfl.problem import prepare


def bare(step: object, count: int = 100) -> float:
    """Milliseconds of one step, nothing else going on."""
    assert callable(step)
    for _ in range(10):
        step()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - began) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lanes", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--set", action="append", default=[])
    words = parser.parse_args()
    rule = {"stopping.rule": "rounds", "stopping.rounds": words.rounds, "snapshots": ""}
    experiment = experiment_file.with_settings(experiment_file.load("cifar10", words.set), rule)
    problem = prepare(experiment, [words.data], Given())
    device = torch.device("cuda")
    engine = LaneEngine(problem, device, words.lanes)
    batch = experiment.federation.batch_size
    outcome = {"machine": torch.cuda.get_device_name(), "torch": torch.__version__, "precision": experiment.precision}
    for name, lanes in (("large", engine._large),):
        milliseconds = bare(lanes.step)
        outcome[f"{name} step"] = {
            "lanes": lanes.count,
            "ms": milliseconds,
            "samples_per_second": 1000 * lanes.count * batch / milliseconds,
        }
    outcome["judge ms"] = bare(engine._judging.look)
    print(json.dumps(outcome, indent=2), flush=True)
    steps, inner = [0], engine._large.step

    def counted() -> None:
        steps[0] += 1
        inner()

    engine._large.step = counted
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as gpu:
        for _ in range(5):
            engine._large.step()
        torch.cuda.synchronize()
    print(
        gpu.key_averages().table(sort_by="cuda_time_total", row_limit=25, max_name_column_width=70)[:9000], flush=True
    )
    steps[0] = 0
    sessions = method.plan(problem)
    host = cProfile.Profile()
    torch.cuda.synchronize()
    began = time.perf_counter()
    host.enable()
    engine.federate(sessions, lambda session, closed: None)
    host.disable()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    samples = sum(session.samples for session in sessions)
    outcome["loop"] = {
        "seconds": seconds,
        "samples_per_second": samples / seconds,
        "steps": steps[0],
        "filled": samples / batch / (steps[0] * engine._large.count),
    }
    print(json.dumps(outcome["loop"], indent=2), flush=True)
    pstats.Stats(host).sort_stats("tottime").print_stats(18)
    words.out.write_text(json.dumps(outcome, indent=2) + "\n")


if __name__ == "__main__":
    main()
