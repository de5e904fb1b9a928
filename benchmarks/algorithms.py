"""What does a step in lanes cost with each algorithm, against FedAvg's?

The same lanes, the same drawn images; only the algorithm differs. Steps of two algorithms alternate, so that other load
on the machine affects both, and the medians are compared. Loading and unloading of clients is timed separately, and so
is the end of a round (the server optimizer makes the next model, which is evaluated). Both are spread over the steps
between two of them. FedAvg gets rounds of as many clients as the other: how often rounds end is no property of an
algorithm.

    python benchmarks/algorithms.py --device cuda --out results/algorithms/steps.json
    python benchmarks/algorithms.py --presets femnist --lanes 32 --precision tf32 --only adam,scaffold --out steps.json
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cpfl import models
from cpfl.diagnostics import drawn
from cpfl.engines.lanes import LaneEngine
from cpfl.engines.lanes.batch_schedule import ClientRound
from cpfl.engines.lanes.evaluation import Evaluator, Round
from cpfl.engines.lanes.step import Lanes
from cpfl.federation import local_training
from cpfl.federation.messages import Origin, RoundRequest
from cpfl.federation.selection.base import participants_per_round
from cpfl.settings import experiment_file
from cpfl.task.task import build_task

ALGORITHMS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "momentum": {"momentum": 0.9},
    "nesterov, decay": {"momentum": 0.9, "client_args": {"nesterov": True, "weight_decay": 1e-4}},
    "max_grad_norm": {"max_grad_norm": 1.0},
    "cosine": {"lr_schedule": "cosine", "lr_schedule_args": {"rounds": 100}},
    "adam": {"client": "adam"},
    "adamw": {"client": "adamw", "client_args": {"weight_decay": 0.01}},
    "fedprox": {"client": "fedprox"},
    "scaffold": {"client": "scaffold"},
    "feddyn": {"client": "feddyn"},
    "fedadam": {"server": "fedadam"},
    "fednova": {"server": "fednova"},
    "median": {"server": "median"},
    "krum": {"server": "krum"},
    "max_update_norm": {"max_update_norm": 1.0},
    "oort": {"selection": "oort", "participation": 0.5},
    "stale": {"straggler_policy": "stale", "over_selection": 0.3, "participation": 0.5},
    "fedbuff": {"buffer_size": 10},
}  # in lanes fedavgm, fedadagrad and fedyogi are fedadam, trimmed-mean is median, power-of-choice is random selection
AIM = {"scaffold": 2.0}  # and 1.5 for the others


@dataclass(frozen=True)
class Rig:
    """An algorithm's lanes, a round of one of its cohorts, and how often clients and rounds end."""

    lanes: Lanes
    evaluating: Evaluator
    round: Round
    steps_of_a_client: float
    steps_of_a_round: float  # of all lanes, until as many clients have ended as make a round

    def share(self, step: float, change: float, end: float) -> float:
        """A step with its share of loading and unloading clients and of the ends of rounds."""
        return step + change / self.steps_of_a_client + end / self.steps_of_a_round


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--presets", default="cifar10,femnist", help="whose models, with commas between them")
    parser.add_argument("--precision", default="")
    parser.add_argument("--lanes", type=int, default=0)
    parser.add_argument("--steps", type=int, default=0, help="of each algorithm; 0: as the device is fast")
    parser.add_argument("--only", default="", help="names with commas between them")
    words = parser.parse_args()
    device = torch.device(words.device)
    on_gpu = device.type == "cuda"
    count, steps = words.lanes or (64 if on_gpu else 4), words.steps or (300 if on_gpu else 30)
    precision = words.precision or ("bf16" if on_gpu else "float32")
    names = ["fedavg", *(n for n in ALGORITHMS if n != "fedavg" and (not words.only or n in words.only.split(",")))]
    about = {
        "machine": torch.cuda.get_device_name() if on_gpu else platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "precision": precision,
        "lanes": count,
        "steps": steps,
    }
    tables: dict[str, list[dict[str, Any]]] = {}
    for preset in words.presets.split(","):
        print(f"{preset}, {count} lanes, {precision}, {about['machine']}")
        with models.threads(1):
            tables[preset] = measured(preset, names, precision, count, steps, device)
        words.out.parent.mkdir(parents=True, exist_ok=True)
        words.out.write_text(json.dumps({**about, "presets": tables}, indent=2) + "\n")


def measured(
    preset: str, names: list[str], precision: str, count: int, steps: int, device: torch.device
) -> list[dict[str, Any]]:
    """A row for each algorithm, stepped alternately with FedAvg and released before the next: a GPU holds two."""
    rows: list[dict[str, Any]] = []
    base = rig_of("fedavg", preset, precision, count, device)
    heads = ("ms a step", "ms in, out", "ms to aggr.", "together", "× FedAvg", "aim")
    print(f"{'algorithm':18}" + "".join(f"{head:>12}" for head in heads))
    for name in names:
        other = base if name == "fedavg" else rig_of(name, preset, precision, count, device)
        fedavg, (step, change, end) = alternately([base, other], steps, device)
        whole = other.share(step, change, end)
        row = {"step_ms": step, "in_out_ms": change, "aggregate_ms": end, "together_ms": whole}
        rows.append({"algorithm": name, **row, "ratio": whole / other.share(*fedavg), "aim": AIM.get(name, 1.5)})
        cells = "".join(f"{value:12.3f}" for value in row.values())
        print(f"{name:18}{cells}{rows[-1]['ratio']:12.2f}{rows[-1]['aim']:12.1f}", flush=True)
    return rows


def alternately(pair: list[Rig], steps: int, device: torch.device) -> list[list[float]]:
    """Milliseconds of each: a step, unloading and loading all clients, the end of a round."""
    times: list[list[tuple[float, ...]]] = [[], []]
    for turn in range(steps + 5):
        for rig, taken in zip(pair, times, strict=True):
            works = (
                rig.lanes.step,
                lambda rig=rig: replace(rig.lanes),
                lambda rig=rig: rig.evaluating.start([rig.round]),
            )
            spent = tuple(timed(work, device) for work in works)
            if turn >= 5:
                taken.append(spent)
    return [[1e3 * statistics.median(column) for column in zip(*taken, strict=True)] for taken in times]


def rig_of(name: str, preset: str, precision: str, count: int, device: torch.device) -> Rig:
    """Lanes of this algorithm with a batch in each, and a round of its first cohort."""
    settings = {"cohorts": 4, "clients": 4 * count, "precision": precision}
    settings |= {"devices.trace": "synthetic", "data.public_fit": "exact", "federation.momentum": 0.0}
    settings |= {f"federation.{key}": value for key, value in ALGORITHMS[name].items()}
    experiment = experiment_file.with_settings(experiment_file.load(preset), settings)
    task = build_task(experiment, [], drawn(experiment, 100 * experiment.clients))
    torch._dynamo.reset()  # so many compilations of one function would pass dynamo's limit; graphs keep what they have
    engine, federation = LaneEngine(task, device, count, schedule_workers=0), experiment.federation
    lanes, clients = engine.large, task.cohorts[0]
    lanes.batches.device["rows"].copy_(torch.arange(count * federation.batch_size).view(count, -1))
    chosen = list(clients[: federation.buffer_size or participants_per_round(federation, len(clients))])
    sizes = [int(task.data.clients.training_sizes[client]) for client in chosen]
    request, starts = None, {}
    if engine.buffers.algorithm.stale:  # all began with an older model but one
        older = chosen[1:]
        starts = dict.fromkeys(older, engine.buffers.models_NP[1])
        rule, origins = "fedbuff" if federation.buffer_size else "refl", dict.fromkeys(older, Origin(0, {}))
        request = RoundRequest(0, 1, chosen, {}, origins=origins, aggregation=rule)
    rounds = {client: ClientRound(0, client, 1, size, local_training.steps(federation, size)) for client, size in
              zip(chosen, sizes, strict=True)}  # fmt: skip
    assert engine.alone is not None
    round = Round(
        engine.alone, task.session(0), 1, rounds, 0, 0, request=request, starts=starts, weight=float(len(chosen))
    )
    steps = float(local_training.all_steps(federation, task.data.clients.training_sizes).mean())
    return Rig(lanes, engine.evaluator(engine.alone), round, steps, steps * len(chosen) / count)


def replace(lanes: Lanes) -> None:
    """Every lane's client is replaced: all at once, while in a run they are replaced one by one."""
    slots = max(1, lanes.buffers.algorithm.empty_model)
    lanes.collect([(lane, lane % 4, lane, 1.0, 1.0, lane % slots) for lane in range(lanes.count)])
    stale = lanes.buffers.algorithm.stale  # at worst all of them begin with an older model
    older = dict.fromkeys(range(lanes.count), lanes.buffers.models_NP[0]) if stale else {}
    lanes.fill([(lane, lane % 4, lane, 1e-6, 0, 0) for lane in range(lanes.count)], older)


def timed(work: Callable[[], None], device: torch.device) -> float:
    """Seconds until the device has done it."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
