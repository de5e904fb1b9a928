"""Do memory and the time of a round stay flat over a long run, and memory over a long sweep?

A run of so many rounds and a sweep of so many runs, both with default engine and real run folders. Time is CPU time of
the process and its workers, so that a busy machine does not decide. Memory is theirs, too; pages that several of them
share count once (PSS).

    python benchmarks/soak.py --rounds 20000 --runs 200 --out results/reliability/soak.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

import cpfl

TICKS = os.sysconf("SC_CLK_TCK")
SMALL: dict[str, Any] = {
    "clients": 8,
    "data.train_limit": 400,
    "data.public_limit": 100,
    "model.args.hidden": 8,
    "distillation.epochs": 2,
}
ROUNDS: dict[str, Any] = {
    "cohorts": 2,
    "federation.participants": 2,
    "stopping.rule": "rounds",
    "stopping.keep": "ema",
    "snapshots": "1000 rounds",
    "checkpoint_seconds": 1,
}


class Meter(cpfl.Callback):
    """Memory, CPU time and open files of this process and its workers, every so many rounds."""

    def __init__(self, every: int) -> None:
        self.every, self.rounds, self.rows = every, 0, list[dict[str, float]]()

    def on_round(self, session: object, closed: object) -> None:
        self.rounds += 1
        if self.rounds % self.every == 0:
            self.rows.append({"rounds": self.rounds, **now()})


def now() -> dict[str, float]:
    """CPU seconds, MB of memory and open files of this process and all below it."""
    processes = [Path("/proc/self"), *_below(os.getpid())]
    kilobytes = sum(int((one / "smaps_rollup").read_text().partition("\nPss:")[2].split()[0]) for one in processes)
    ticks = sum(sum(map(int, _stat(one)[11:15])) for one in processes)
    return {
        "cpu_seconds": ticks / TICKS,
        "mb": round(kilobytes * 1024 / 1e6, 1),
        "files": sum(len(list((one / "fd").iterdir())) for one in processes),
        "processes": len(processes),
    }


def _stat(process: Path) -> list[str]:
    """The fields of /proc/PID/stat after the name of the program."""
    return (process / "stat").read_text().rpartition(")")[2].split()


def _below(parent: int) -> list[Path]:
    found = list[Path]()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int(_stat(process)[1]) == parent:
                found += [process, *_below(int(process.name))]
        except OSError:  # it has ended
            continue
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20_000, help="of the run, in each of its two cohorts")
    parser.add_argument("--runs", type=int, default=200, help="of the sweep")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found: dict[str, Any] = {"machine": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    with tempfile.TemporaryDirectory() as folder:
        meter = Meter(every=max(1, 2 * arguments.rounds // 20))
        settings = SMALL | ROUNDS | {"max_rounds": arguments.rounds, "stopping.rounds": arguments.rounds}
        cpfl.run("digits", settings=settings, out=Path(folder) / "run", callback=meter, device="cpu")
        found["run"] = meter.rows
        print("rounds (both cohorts)   ms of CPU a round   MB   open files")
        before = meter.rows[0]
        for row in meter.rows[1:]:
            spent = 1000 * (row["cpu_seconds"] - before["cpu_seconds"]) / (row["rounds"] - before["rounds"])
            print(f"{row['rounds']:>21,}   {spent:>17.2f}   {row['mb']:.0f}   {row['files']}")
            before = row

        rows: list[dict[str, float]] = []
        short = SMALL | {"max_rounds": 3, "cohorts": 2}
        cpfl.sweep(
            "digits", seeds=range(arguments.runs), settings=short, out=Path(folder) / "sweep",
            on_run=lambda run: rows.append({"runs": len(rows) + 1, **now()}), device="cpu",
        )  # fmt: skip
        found["sweep"] = rows[:: max(1, len(rows) // 20)]
        print("runs   s of CPU a run   MB   open files")
        for before, row in zip(found["sweep"], found["sweep"][1:], strict=False):
            spent = (row["cpu_seconds"] - before["cpu_seconds"]) / (row["runs"] - before["runs"])
            print(f"{row['runs']:>4}   {spent:>14.2f}   {row['mb']:.0f}   {row['files']}")
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
