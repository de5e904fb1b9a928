"""What does it cost to record and show a round, when cohorts close rounds as fast as on a GPU?

Nothing is trained: sessions get made-up results at a fixed rate, a run writer writes a real run folder, and a live view
is drawn. `waits` is how long the training thread waits per round. `work` is all CPU time of the process, with that of
the threads that write and draw, beyond the same loop with neither. `fsyncs` is how often the process waited for a disk.

    python benchmarks/records.py --out results/records.json
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import platform
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from cpfl.devices.fleet import Fleet
from cpfl.federation.session import ClientResult, ClosedRound, RoundResult, Session
from cpfl.models import State
from cpfl.runs.folder import RunFolder
from cpfl.runs.writer import RunWriter
from cpfl.settings import Experiment
from cpfl.terminal import RunView

CLIENTS = 200
PARAMETERS = 85_354  # GN-LeNet
CHECKPOINT_SECONDS = 5.0  # the default


def model(number: int) -> State:
    """As large as the paper's."""
    return {"weight": torch.full((PARAMETERS,), float(number))}


def sessions(cohorts: int, fleet: Fleet, experiment: Experiment) -> list[Session]:
    """Cohorts of equal size."""
    size = CLIENTS // cohorts
    start = model(0)
    return [
        Session(n, range(n * size, (n + 1) * size), experiment, fleet, 4 * PARAMETERS, start) for n in range(cohorts)
    ]


def close(session: Session, models: list[State]) -> ClosedRound:
    """A round that was never trained."""
    work = session.open_round()
    results = [ClientResult(client, 250, 13, 1.25, 1.5 + 1e-3 * client) for client in work.participants]
    return session.close_round(RoundResult(models[work.round % len(models)], results))


def loop(cohorts: int, rate: float, seconds: float, writer: RunWriter | None, shown: bool) -> dict[str, float]:
    """Rounds of all cohorts alternately, at `rate` a second, for so many seconds."""
    rule = {"rule": "rounds", "rounds": 10**6}
    experiment = Experiment(clients=CLIENTS, cohorts=cohorts, max_rounds=10**6, stopping=rule)
    fleet = Fleet(torch.ones(CLIENTS).numpy(), torch.ones(CLIENTS).numpy())
    running, models = sessions(cohorts, fleet, experiment), [model(n) for n in range(4)]
    screen = Console(file=io.StringIO(), force_terminal=shown, width=160, height=50)
    view = RunView(screen, experiment, 1)
    waited, slowest, count = 0.0, 0.0, 0
    began, cpu = time.perf_counter(), time.process_time()
    with view, writer or nullcontext():
        view.on_start(running)
        while (now := time.perf_counter()) - began < seconds:
            if count > rate * (now - began):  # ahead of the rate: as if a device trained
                time.sleep(0.001)
                continue
            session = running[count % cohorts]
            closed = close(session, models)
            count += 1
            start = time.perf_counter()
            if writer is not None:
                writer.write(session, closed)
            if shown:
                view.on_round(session, closed)
            took = time.perf_counter() - start
            waited, slowest = waited + took, max(slowest, took)
    wall = time.perf_counter() - began
    return {"rounds": count, "waited": waited, "slowest": slowest, "cpu": time.process_time() - cpu, "wall": wall}


def measure(cohorts: int, rate: float, seconds: float, folder: Path, written: bool, shown: bool) -> dict[str, Any]:
    """The loop with a writer or a view against the loop with neither."""
    bare = loop(cohorts, rate, min(seconds, 5.0), None, False)
    path = folder / str(cohorts)
    facts = {"engine": "none", "fingerprint": {}, "shape": [1], "classes": 2, "class_names": None, "samples": {}}
    facts |= {"data_folder": None, "label_counts": [], "cohorts": [], "model_bytes": 1, "cohort_model_bytes": {}}
    run = RunFolder.create(path, Experiment(clients=CLIENTS), facts)
    fsyncs, original = [0], os.fsync

    def counted(fd: Any) -> None:
        fsyncs[0] += 1
        original(fd)

    os.fsync = counted
    try:
        full = loop(cohorts, rate, seconds, RunWriter(run, CHECKPOINT_SECONDS) if written else None, shown)
    finally:
        os.fsync = original
    return {
        "cohorts": cohorts,
        "what": " and ".join(["written"] * written + ["shown"] * shown),
        "rounds_per_second": full["rounds"] / full["wall"],
        "waits_us": 1e6 * (full["waited"] / full["rounds"] - bare["waited"] / bare["rounds"]),
        "work_us": 1e6 * (full["cpu"] / full["rounds"] - bare["cpu"] / bare["rounds"]),
        "slowest_ms": 1e3 * full["slowest"],
        "fsyncs_per_second": fsyncs[0] / full["wall"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rate", type=float, default=2000, help="rounds a second, all cohorts together")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--folder", type=Path, help="a folder on the disk to measure; default: the temporary one")
    parser.add_argument("cohorts", nargs="*", type=int, default=[4, 200])
    words = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for cohorts, (written, shown) in itertools.product(words.cohorts, ((True, False), (False, True))):
        with tempfile.TemporaryDirectory(dir=words.folder) as folder:
            row = measure(cohorts, words.rate, words.seconds, Path(folder), written, shown)
        rows.append(row)
        print(
            f"n = {cohorts:3}   {row['what']:7} {row['rounds_per_second']:6,.0f} rounds/s   "
            f"waits {row['waits_us']:6.1f} µs   "
            f"work {row['work_us']:7.1f} µs   slowest {row['slowest_ms']:7.1f} ms   "
            f"{row['fsyncs_per_second']:6.1f} fsyncs/s",
            flush=True,
        )
    about = {"machine": platform.processor() or platform.machine(), "rate": words.rate, "seconds": words.seconds}
    words.out.write_text(json.dumps({**about, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
