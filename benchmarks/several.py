"""Runs the commands of a file, several at a time, such as all that need a GPU.

`name: command` is a command for the shell, started in the file's order. `name alone: command` waits until nothing else
runs, and nothing else starts meanwhile. `NAME=value` sets a variable for the lines after it. Lines may be added while
it works. Commands that have succeeded are not run again. Their output goes to OUT/NAME.log, exit codes and seconds to
OUT/results.json.

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
    """Jobs that run, and the results of those that have ended."""

    def __init__(self, file: Path, out: Path, slots: int) -> None:
        self._file, self._out, self._slots = file, out, slots
        self._results_file = out / "results.json"
        self.results: dict[str, Any] = {}
        if self._results_file.exists():
            self.results = json.loads(self._results_file.read_text())
        self._running: dict[str, tuple[Job, subprocess.Popen[bytes], float]] = {}
        self._tried: set[str] = set()

    def step(self) -> bool:
        """Record jobs that have ended and start others in free slots; whether any job is left."""
        for name, (job, process, began) in list(self._running.items()):
            if process.poll() is not None:
                del self._running[name]
                self._record(job, process.returncode, began)
        waiting = [job for job in read(self._file.read_text()) if self._wanted(job)]
        for job in waiting:
            lonely = any(other.alone for other, _, _ in self._running.values())
            if lonely or len(self._running) >= (1 if job.alone else self._slots):
                break  # in order: one that must be alone is not overtaken
            self._start(job)
        return bool(self._running or waiting)

    def stop(self) -> None:
        """End running jobs with the processes that they have started."""
        for job, process, began in self._running.values():
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            self._record(job, process.returncode, began)

    def _wanted(self, job: Job) -> bool:
        done = self.results.get(job.name, {}).get("code") == 0
        return not done and job.name not in self._running and job.name not in self._tried

    def _start(self, job: Job) -> None:
        self._tried.add(job.name)
        environment = {**os.environ, "OUT": str(self._out)}
        settings = "\n".join(f'{name}="{value}"' for name, value in job.environment.items())
        with (self._out / f"{job.name}.log").open("wb") as log:
            process = subprocess.Popen(
                ["bash", "-c", f"set -e\n{settings}\n{job.command}"],
                env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self._running[job.name] = (job, process, time.time())
        print(f"{job.name} starts", flush=True)

    def _record(self, job: Job, code: int, began: float) -> None:
        seconds = round(time.time() - began, 1)
        self.results[job.name] = {"command": job.command, "code": code, "seconds": seconds}
        self._results_file.write_text(json.dumps(self.results, indent=1) + "\n")
        print(f"{job.name} ended with {code} after {seconds} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slots", type=int, default=1, help="how many at a time")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="jobs that still run then are ended")
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
