"""What happens to a run when the GPU's memory is short? Two rounds with fewer lanes, and two with all memory.

python benchmarks/lanes_memory.py --out results/lanes/memory.json
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch

from cpfl import method
from cpfl.diagnostics import drawn
from cpfl.engines.base import Engine
from cpfl.engines.create import create_engine
from cpfl.engines.gpu_errors import out_of_memory
from cpfl.errors import first_line
from cpfl.settings import experiment_file
from cpfl.task.task import Task, build_task

SHARES = (0.75, 0.6, 0.5)  # of the memory that the lanes took, tried until it is too little
LARGEST = 1e-2  # difference of records that bf16 may make


def halved(device: torch.device, samples: int = 50_000) -> dict[str, Any]:
    """Two rounds with fewer lanes, since memory is limited, against two with all of it."""
    settings = {
        "cohorts": 16, "precision": "bf16", "devices.trace": "synthetic", "data.public_fit": "exact",
        "stopping.rule": "rounds", "stopping.rounds": 2, "snapshots": "",
    }  # fmt: skip
    experiment = experiment_file.with_settings(experiment_file.load("cifar10", []), settings)
    task = build_task(experiment, [], drawn(experiment, samples))
    messages: list[str] = []
    before = free()
    torch.cuda.reset_peak_memory_stats()
    engine = create_engine("lanes", task, device, messages.append)
    taken = torch.cuda.max_memory_reserved() - before
    wanted, right = lanes_of(engine), records_of(engine, task)
    found: dict[str, Any] = {"all the memory, MiB": taken >> 20, "lanes with it": wanted}
    total = torch.cuda.get_device_properties(device).total_memory
    for share in SHARES:
        del engine
        allowed = free() + int(share * taken)
        torch.cuda.set_per_process_memory_fraction(allowed / total)
        try:
            engine = create_engine("lanes", task, device, messages.append)
            if messages or share == SHARES[-1]:
                found |= {"allowed MiB": int(share * taken) >> 20, "messages": messages, "lanes": lanes_of(engine)}
                try:
                    records = records_of(engine, task)
                except Exception as error:
                    if not out_of_memory(error):
                        raise
                    found["while training"] = first_line(error)
                    torch.cuda.set_per_process_memory_fraction(1.0)
                    records = records_of(engine, task)
                break
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
    pairs = list(zip(records, right, strict=True))
    found["records"] = max(abs(one[key] - two[key]) for one, two in pairs for key in ("loss", "validation"))
    fine = len(messages) == 1 and lanes_of(engine) < wanted and "while training" not in found
    return {**found, "ok": fine and found["records"] < LARGEST}


def free() -> int:
    """Give back all memory that nothing refers to; the bytes that are still held."""
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def lanes_of(engine: Engine) -> int:
    return int(engine.large.count)  # type: ignore[attr-defined]


def records_of(engine: Engine, task: Task) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    engine.train_cohorts(method.open_sessions(task), lambda session, closed: lines.append(vars(closed.record)))
    return sorted(lines, key=lambda line: (line["cohort"], line["round"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    words = parser.parse_args()
    device = torch.device("cuda")
    found = {"machine": torch.cuda.get_device_name(device), "torch": torch.__version__, **halved(device)}
    print(json.dumps(found), flush=True)
    words.out.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    sys.exit(not found["ok"])


if __name__ == "__main__":
    main()
