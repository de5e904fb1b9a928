"""A real Ray cluster on this machine: a head without CPUs, nodes with one each, every one a `ray start`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# `ray start`, but nobody beyond this machine can reach it: Ray would take another address for 127.0.0.1.
START = """
from ray._private import services
services.resolve_ip_for_localhost = lambda host: host
from ray.scripts.scripts import main
main()
"""
QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}
LOOPBACK = {**QUIET, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # the same, for drivers
UP_SECONDS = 200.0
STARTED: list[subprocess.Popen[str]] = []  # programs that a test began
STORE = 80 * 2**20  # bytes of a node's object store: the smallest that Ray takes


def until(ready: Callable[[], Any], seconds: float, what: str) -> Any:
    """Wait for something for a limited time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = ready()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"{what}: not in {seconds:.0f} s")


class Nodes:
    """The cluster and its nodes."""

    def __init__(self, nodes: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as door:
            port = door.getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        self._folder = tempfile.mkdtemp(prefix="ray-")  # short: it holds sockets
        self._processes: list[subprocess.Popen[bytes]] = []
        self._started = 0
        where = ["--head", f"--port={port}", f"--temp-dir={self._folder}", "--include-dashboard=false"]
        try:
            self._start(*where, "--num-cpus=0")
            for _ in range(nodes):  # one after the other: two that start at once on one address get in each other's way
                self.add()
        except BaseException:
            self.end()
            raise

    def add(self, cpus: int = 1, gpus: int = 0, **variables: str) -> subprocess.Popen[bytes]:
        """One more node, with these environment variables. Its GPUs are only claimed: Ray does not check."""
        resources = [f"--num-cpus={cpus}", f"--num-gpus={gpus}"]
        return self._start(f"--address={self.address}", *resources, **variables)

    def _start(self, *words: str, **variables: str) -> subprocess.Popen[bytes]:
        common = ["--block", "--node-ip-address=127.0.0.1", f"--object-store-memory={STORE}", "--disable-usage-stats"]
        self._started += 1
        with open(Path(self._folder) / f"node-{self._started}.log", "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", START, "start", *words, *common],
                env={**os.environ, **QUIET, **variables}, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._processes.append(process)
        started = Path(log.name)
        until(lambda: b"Ray runtime started" in started.read_bytes(), UP_SECONDS, "a node of Ray starts")
        return process

    def remove(self, process: subprocess.Popen[bytes]) -> None:
        """Kill all its processes at once."""
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(120)
        self._processes.remove(process)

    def dismiss(self, process: subprocess.Popen[bytes]) -> None:
        """Stop it with SIGTERM, so that the head knows at once."""
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(120)
        self._processes.remove(process)

    def end(self) -> None:
        """Stop all processes and delete their files."""
        for process in reversed(self._processes):
            os.killpg(process.pid, signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        shutil.rmtree(self._folder, ignore_errors=True)


def cpfl(*words: str | Path) -> list[str]:
    """The program as a user calls it."""
    return [sys.executable, "-m", "cpfl", *map(str, words)]


def start(*words: str | Path, cwd: Path | None = None) -> subprocess.Popen[str]:
    """In the background."""
    process = subprocess.Popen(
        cpfl(*words), cwd=cwd, env={**os.environ, **LOOPBACK}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    STARTED.append(process)
    return process


def kill_started() -> None:
    """End programs that a failed test left running."""
    for process in STARTED:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    STARTED.clear()


def ended(process: subprocess.Popen[str]) -> str:
    """What it said, if all went well."""
    said, _ = process.communicate(timeout=250)
    assert process.returncode == 0, said
    return said


def settings(changes: dict[str, Any]) -> list[str]:
    """As words of a command."""
    return [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]


def rounds(run: Path) -> dict[str, list[dict[str, Any]]]:
    """All records, by cohort."""
    return {
        path.stem: [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
        for path in sorted((run / "rounds").glob("cohort-*.jsonl"))
    }


def events(run: Path) -> list[dict[str, Any]]:
    """The run's log."""
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def workers(run: Path) -> list[dict[str, Any]]:
    """Who trains what just now."""
    path = run / "workers.json"
    found: list[dict[str, Any]] = json.loads(path.read_text())["workers"] if path.is_file() else []
    return found


def at_work(process: subprocess.Popen[str], run: Path, least: int) -> list[dict[str, Any]]:
    """The workers with cohorts, as soon as at least `least` have some and four rounds are closed."""

    def found() -> list[dict[str, Any]]:
        if process.poll() is not None:
            raise AssertionError(f"the run ended before {least} workers were seen at work:\n{ended(process)}")
        those = [worker for worker in workers(run) if worker["cohorts"]]
        done = sum(map(len, rounds(run).values())) if (run / "rounds").is_dir() else 0
        return those if len(those) >= least and done >= 4 else []

    busy: list[dict[str, Any]] = until(found, 240, f"{least} workers train")
    return busy


def same(one: Path, other: Path) -> None:
    """Two runs are equal: every record and every model, bit by bit."""
    assert rounds(one) == rounds(other)
    models, others = ({path.name: path.read_bytes() for path in (run / "models").iterdir()} for run in (one, other))
    assert "global.safetensors" in models
    assert sorted(models) == sorted(others)
    assert [name for name in models if models[name] != others[name]] == []
