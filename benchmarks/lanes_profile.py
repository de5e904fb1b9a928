"""Where does the time of a lane run go? A bare step, the whole loop, the kernels of some steps, the host's functions.

python benchmarks/lanes_profile.py --data DIR --out results/lanes-profile.json
python benchmarks/lanes_profile.py --set devices.trace=synthetic --set data.public_fit=exact --out profile.json
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from cpfl import method
from cpfl.data.given import Given
from cpfl.diagnostics import drawn
from cpfl.engines.create import torch_device
from cpfl.engines.lanes import LaneEngine
from cpfl.engines.lanes.evaluation import Evaluator
from cpfl.engines.lanes.step import Lanes
from cpfl.settings import experiment_file
from cpfl.task.task import Task, build_task

ROWS, NAME = 15, 70  # of a table; characters of a name
Row = dict[str, Any]


class Timed:
    """A function, and the seconds that its calls took: on a GPU by the GPU's clock, without waiting for the host."""

    def __init__(self, work: Callable[[], None], device: torch.device) -> None:
        self._work, self._on_gpu = work, device.type == "cuda"
        self._marks: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._seconds, self.calls = 0.0, 0

    def __call__(self) -> None:
        """Do it."""
        self.calls += 1
        if self._on_gpu:
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            first.record()
            self._work()
            last.record()
            self._marks.append((first, last))
        else:
            began = time.perf_counter()
            self._work()
            self._seconds += time.perf_counter() - began

    def seconds(self) -> float:
        """So far; the GPU has done all of it."""
        return self._seconds + sum(float(first.elapsed_time(last)) for first, last in self._marks) / 1000


def done(device: torch.device) -> float:
    """The time at which the device has nothing left to do."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def bare(step: Callable[[], None], device: torch.device, count: int) -> float:
    """Milliseconds of one step, with nothing else running."""
    for _ in range(count // 10):
        step()
    began = done(device)
    for _ in range(count):
        step()
    return 1000 * (done(device) - began) / count


def kernels(step: Callable[[], None], device: torch.device, count: int = 5) -> list[Row]:
    """What some steps run on the device, the longest first."""
    on_gpu = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as seen:
        for _ in range(count):
            step()
        done(device)
    timed = [
        (str(one.key), (one.self_device_time_total if on_gpu else one.self_cpu_time_total) / 1000, int(one.count))
        for one in seen.key_averages()
        if one.device_type.name == ("CUDA" if on_gpu else "CPU") and not one.is_user_annotation
    ]
    return table(timed)


def host(work: Callable[[], None]) -> list[Row]:
    """What the host runs meanwhile, by time in the function itself."""
    seen = cProfile.Profile()
    seen.runcall(work)
    stats: dict[tuple[str, int, str], tuple[Any, ...]] = pstats.Stats(seen).stats  # type: ignore[attr-defined]
    return table(
        [
            (f"{Path(file).name}:{line} {name}", 1000 * own, calls)
            for (file, line, name), (_, calls, own, *_) in stats.items()
        ]
    )


def table(timed: list[tuple[str, float, int]]) -> list[Row]:
    """The top of a list of names, milliseconds and calls, with each one's share of all."""
    whole = sum(ms for _, ms, _ in timed)
    first = sorted((one for one in timed if one[1] > 0), key=lambda one: -one[1])[:ROWS]
    return [
        {"name": name[:NAME], "ms": round(ms, 3), "calls": calls, "share": round(ms / whole, 4)}
        for name, ms, calls in first
    ]


def evaluator_of(engine: LaneEngine) -> Evaluator:
    """The evaluator of its only run."""
    assert engine.alone is not None
    return engine.evaluator(engine.alone)


def loop(engine: LaneEngine, task: Task, device: torch.device) -> dict[str, Any]:
    """A whole federation: its rate, and how many of its seconds the device spent in what."""
    large, evaluating = engine.large, evaluator_of(engine)
    steps, evaluations, made = (
        Timed(large.step, device),
        [Timed(evaluating.aggregate, device), Timed(evaluating.evaluate, device)],
        [0.0],
    )
    before, few, fewer = (large.step, evaluating.aggregate, evaluating.evaluate), list[Timed](), engine.small_lanes

    def small() -> Lanes | None:
        began = done(device)
        lanes = fewer()
        made[0] += done(device) - began
        if lanes is not None and not few:
            few.append(Timed(lanes.step, device))
            lanes.step = few[0]
        return lanes

    large.step, (evaluating.aggregate, evaluating.evaluate), engine.small_lanes = steps, evaluations, small  # type: ignore[method-assign]
    sessions = method.open_sessions(task)
    began = done(device)
    engine.train_cohorts(sessions, lambda session, closed: None)
    seconds = done(device) - began
    large.step, evaluating.aggregate, evaluating.evaluate = before
    engine.small_lanes = fewer  # type: ignore[method-assign]
    samples, batch = sum(session.samples for session in sessions), task.experiment.federation.batch_size
    slots = steps.calls * large.count + sum(one.calls for one in few) * engine.small_count
    parts = {
        "steps": steps.seconds() + sum(one.seconds() for one in few),
        "evaluation": sum(one.seconds() for one in evaluations),
        "making the small lanes": made[0],
    }
    return {
        "seconds": seconds,
        "samples_per_second": samples / seconds,
        "steps": steps.calls,
        "small steps": sum(one.calls for one in few),
        "evaluations": evaluations[1].calls,
        "filled": samples / batch / slots,
        "seconds in": {**parts, "the rest": seconds - sum(parts.values())},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="without it, images are drawn")
    parser.add_argument("--samples", type=int, default=50_000, help="images to draw")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--lanes", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=100, help="bare ones")
    parser.add_argument("--set", action="append", default=[])
    words = parser.parse_args()
    rule = {"stopping.rule": "rounds", "stopping.rounds": words.rounds, "snapshots": ""}
    experiment = experiment_file.with_settings(experiment_file.load("cifar10", words.set), rule)
    given = Given() if words.data else drawn(experiment, words.samples)
    task = build_task(experiment, [words.data] if words.data else [], given)
    device = torch_device(words.device)
    engine = LaneEngine(task, device, words.lanes)
    step, count = engine.large.step, engine.large.count
    outcome: dict[str, Any] = {
        "machine": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "precision": experiment.precision,
        "cohorts": experiment.cohorts,
    }

    def tell(name: str, found: object) -> None:
        outcome[name] = found
        print(name, json.dumps(found, indent=2), flush=True)
        words.out.write_text(json.dumps(outcome, indent=2) + "\n")

    milliseconds = bare(step, device, words.steps)
    rate = 1000 * count * experiment.federation.batch_size / milliseconds
    tell("large step", {"lanes": count, "ms": milliseconds, "samples_per_second": rate})
    tell("evaluation ms", bare(evaluator_of(engine).evaluate, device, words.steps))
    tell("kernels of a large step", kernels(step, device))
    # The profiled loop comes first: it is slower, and warms up the one that is timed.
    tell("host", host(lambda: engine.train_cohorts(method.open_sessions(task), lambda session, closed: None)))
    tell("loop", loop(engine, task, device))


if __name__ == "__main__":
    main()
