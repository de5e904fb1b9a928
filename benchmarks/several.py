"""Does the commands of a file, several at a time, such as all that a GPU is wanted for.

A line is a command for the shell, in the file's order; `name: command` gives it a name, `name alone: command` has it
wait until nothing else runs, and nothing else begins meanwhile. `NAME=value` sets a variable for the lines after it.
Lines may be added while it works. What has succeeded is not done again; what is said goes to OUT/NAME.log.

    python benchmarks/several.py --slots 4 --seconds 1500 --out OUT benchmarks/card.txt
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LINE = re.compile(r"(?P<name>[\w.-]+)(?P<alone> alone)?: (?P<command>.+)")
VARIABLE = re.compile(r"(?P<name>[A-Z_]+)=(?P<value>.*)")


@dataclass(frozen=True)
class Job:
    """A line of the file, with the variables that were set before it."""

    name: str
    command: str
    alone: bool
    environment: dict[str, str]


def read(text: str) -> list[Job]:
    """The jobs of a file; lines that are empty or begin with # are none."""
    jobs: list[Job] = []
    environment: dict[str, str] = {}
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if job := LINE.fullmatch(line):
            jobs.append(Job(job["name"], job["command"], bool(job["alone"]), dict(environment)))
        elif variable := VARIABLE.fullmatch(line):
            environment[variable["name"]] = variable["value"]
        else:
            raise SystemExit(f"neither a job nor a variable: {line}")
    return jobs


class Several:
    """Jobs that run, and what came of those that have ended."""

    def __init__(self, file: Path, out: Path, slots: int) -> None:
        self._file, self._out, self._slots = file, out, slots
        self._told = out / "told.json"
        self.told: dict[str, Any] = json.loads(self._told.read_text()) if self._told.exists() else {}
        self._running: dict[str, tuple[Job, subprocess.Popen[bytes], float]] = {}
        self._tried: set[str] = set()

    def step(self) -> bool:
        """Look after what runs and begin what there is room for; whether there is anything left."""
        for name, (job, process, began) in list(self._running.items()):
            if process.poll() is not None:
                del self._running[name]
                self._tell(job, process.returncode, began)
        waiting = [job for job in read(self._file.read_text()) if self._wanted(job)]
        for job in waiting:
            lonely = any(other.alone for other, _, _ in self._running.values())
            if lonely or len(self._running) >= (1 if job.alone else self._slots):
                break  # in order: one that must be alone is not overtaken
            self._begin(job)
        return bool(self._running or waiting)

    def stop(self) -> None:
        """End what runs, with what it has started."""
        for job, process, began in self._running.values():
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            self._tell(job, process.returncode, began)

    def _wanted(self, job: Job) -> bool:
        done = self.told.get(job.name, {}).get("code") == 0
        return not done and job.name not in self._running and job.name not in self._tried

    def _begin(self, job: Job) -> None:
        self._tried.add(job.name)
        environment = {**os.environ, "OUT": str(self._out)}
        settings = "\n".join(f'{name}="{value}"' for name, value in job.environment.items())
        with (self._out / f"{job.name}.log").open("wb") as log:
            process = subprocess.Popen(
                ["bash", "-c", f"set -e\n{settings}\n{job.command}"],
                env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self._running[job.name] = (job, process, time.time())
        print(f"{job.name} begins", flush=True)

    def _tell(self, job: Job, code: int, began: float) -> None:
        seconds = round(time.time() - began, 1)
        self.told[job.name] = {"command": job.command, "code": code, "seconds": seconds}
        self._told.write_text(json.dumps(self.told, indent=1) + "\n")
        print(f"{job.name} ended with {code} after {seconds} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slots", type=int, default=1, help="how many at a time")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="what still runs then is ended")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("file", type=Path)
    words = parser.parse_args()
    words.out.mkdir(parents=True, exist_ok=True)
    several, until = Several(words.file, words.out.resolve(), words.slots), time.monotonic() + words.seconds
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what it has started ends with it
    try:
        while several.step() and time.monotonic() < until:
            time.sleep(0.2)
    finally:
        several.stop()


if __name__ == "__main__":
    main()
