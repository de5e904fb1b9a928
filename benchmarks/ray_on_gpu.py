"""Does Ray, each worker with a share of a GPU, give what lanes on the whole card give, also after a worker was killed?

The same experiment (four cohorts of `cifar10`, float32, a few rounds) on lanes and on Ray with two workers on one card;
the same with more rounds and one worker killed with -9; the same under the rule joint; a sweep of four runs. Records
are compared number by number. Other numbers of lanes round differently, and rounding grows while a model trains: the
yardstick is how far float32 differs from float64 on one engine (`--rounding`, on a CPU or GPU).

    python benchmarks/ray_on_gpu.py --data DIR --out results/ray/gpu-h200.json
    python benchmarks/ray_on_gpu.py --data DIR --out rounding.json --rounding --device cpu
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SETTINGS: dict[str, Any] = {
    "cohorts": 4, "stopping.rule": "rounds", "stopping.rounds": 5, "max_rounds": 5, "precision": "float32",
    "distillation.epochs": 2, "data.public": "tinyimagenet32", "data.public_fit": "exact", "data.public_limit": 4000,
}  # fmt: skip
LONGER = {"stopping.rounds": 40, "max_rounds": 40}
JOINT = {"stopping.rule": "joint", "stopping.rounds": None, "stopping.eval_interval": 2, "max_rounds": 6}
TIMEOUT = 120.0  # seconds until two workers train


class Trial:
    """Runs of one experiment, each in a process as a user starts it."""

    def __init__(self, data: Path, device: str, out: Path) -> None:
        self._data, self._device, self._out = data, device, out

    def words(self, command: str, engine: str, changes: dict[str, Any], name: str) -> list[str]:
        """The command line."""
        share = ["--gpu-share", "0.5"] if engine == "ray" and self._device == "cuda" else []
        settings = {key: value for key, value in {**SETTINGS, **changes}.items() if value is not None}
        sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        where = ["--data", str(self._data), "--device", self._device, "--out", str(self._out / name)]
        return [sys.executable, "-m", "cpfl", command, "cifar10", "--engine", engine, *share, *sets, *where]

    def start(self, engine: str, changes: dict[str, Any], name: str) -> tuple[subprocess.Popen[bytes], Path]:
        """A run under way, and its folder."""
        with (self._out / f"{name}.log").open("w") as log:
            process = subprocess.Popen(self.words("run", engine, changes, name), stdout=log, stderr=subprocess.STDOUT)
        return process, self._out / name

    def run(self, engine: str, name: str, **changes: Any) -> Path:
        """The folder of a finished run."""
        process, folder = self.start(engine, changes, name)
        if process.wait():
            raise SystemExit((self._out / f"{name}.log").read_text())
        return folder

    def killed(self) -> tuple[Path, list[dict[str, Any]]]:
        """A run on Ray that loses a worker in its first rounds, and what its log says about it."""
        process, folder = self.start("ray", LONGER, "killed")
        until, file = time.monotonic() + TIMEOUT, folder / "workers.json"
        while time.monotonic() < until and process.poll() is None:
            pids = [w["pid"] for w in json.loads(file.read_text())["workers"] if w["cohorts"]] if file.is_file() else []
            if len(pids) >= 2 and len(list(records(folder))) >= 4:
                os.kill(pids[0], signal.SIGKILL)
                break
            time.sleep(0.2)
        if process.wait():
            raise SystemExit((self._out / "killed.log").read_text())
        events = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        return folder, [event for event in events if event.get("event") in ("worker died", "run again")]


def records(folder: Path) -> Iterator[dict[str, Any]]:
    """All rounds, cohort by cohort."""
    for path in sorted((folder / "rounds").glob("*.jsonl")):
        yield from map(json.loads, path.read_text().splitlines())


def apart(ours: Path, theirs: Path) -> float:
    """The largest relative difference of two numbers with a fraction; everything else must be equal."""
    worst = 0.0
    for a, b in zip(records(ours), records(theirs), strict=True):
        for key, value in a.items():
            if isinstance(value, float):
                worst = max(worst, abs(value - b[key]) / max(abs(value), 1e-12))
            elif value != b[key]:
                raise SystemExit(f"round {a['round']} of cohort {a['cohort']}: {key} is {value} and {b[key]}")
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--rounding", action="store_true", help="float32 against float64 on one engine, nothing else")
    words = parser.parse_args()
    plain = "lanes" if words.device == "cuda" else "workers"
    found: dict[str, Any] = {"device": words.device}

    def tell(**facts: Any) -> None:
        found.update(facts)
        words.out.write_text(json.dumps(found, indent=2) + "\n")
        print(facts, flush=True)

    with tempfile.TemporaryDirectory() as out:
        trial = Trial(words.data.resolve(), words.device, Path(out))
        base = trial.run(plain, "plain")
        if words.rounding:
            tell(float32_against_float64=apart(base, trial.run(plain, "double", precision="float64")))
            return
        tell(ray_against_plain=apart(base, trial.run("ray", "ray")))
        folder, events = trial.killed()
        tell(killed_against_plain=apart(trial.run(plain, "whole", **LONGER), folder), log=events)
        tell(joint=apart(trial.run(plain, "joint", **JOINT), trial.run("ray", "joint-ray", **JOINT)))
        sweep = [*trial.words("sweep", "ray", {}, "sweep"), "--cohorts", "2,4", "--seeds", "90,91"]
        tell(sweep_exit_code=subprocess.run(sweep).returncode)


if __name__ == "__main__":
    main()
