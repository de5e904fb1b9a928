"""A real Ray cluster on this machine: a head without CPUs, nodes with one each, every one a `ray start`."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cluster.zygote import RAY, Fork, Zygote

from cpfl.deploy.local_fleet import free_port

# Ray's own time limits must not end what is only slow. A lost node is found soon, because its ports are closed.
PATIENCE = {"health_check_period_ms": 500, "health_check_timeout_ms": 120_000, "worker_register_timeout_seconds": 900}
# Ray's workers would give way to all other programs, which on a busy machine leave them nothing.
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
LOOPBACK = {**QUIET, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # the same, for drivers
STARTED: list[Fork] = []  # programs that a test began
STORE = 80 * 2**20  # bytes of a node's object store: the smallest that Ray takes


zygote = functools.cache(Zygote)  # one for all tests
Process = Fork | subprocess.Popen[bytes]


def until(ready: Callable[[], Any], process: Process) -> Any:
    """Wait for something that happens while a process lives, however slow the machine is."""
    while True:
        alive = process.poll() is None
        found = ready()
        if found:
            return found
        assert alive, f"the process ended before{': ' + process.communicate()[0] if process.stdout else ''}"
        time.sleep(0.05)


class Nodes:
    """The cluster and its nodes."""

    def __init__(self, nodes: int) -> None:
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self._folder = tempfile.mkdtemp(prefix="ray-")  # short: it holds sockets
        self._processes: list[Process] = []
        self._started = 0
        where = ["--head", f"--port={port}", f"--temp-dir={self._folder}", "--include-dashboard=false"]
        try:
            self._start(*where, "--num-cpus=0", f"--system-config={json.dumps(PATIENCE)}")
            for _ in range(nodes):  # one after the other: two that start at once on one address get in each other's way
                self.add()
        except BaseException:
            self.end()
            raise

    def add(self, cpus: int = 1, gpus: int = 0, **variables: str) -> Process:
        """One more node. Its GPUs are only claimed: Ray does not check. With environment variables it is a new
        interpreter, in which they can change what is imported."""
        resources = [f"--num-cpus={cpus}", f"--num-gpus={gpus}"]
        return self._start(f"--address={self.address}", *resources, **variables)

    def _start(self, *words: str, **variables: str) -> Process:
        common = ["--block", "--node-ip-address=127.0.0.1", f"--object-store-memory={STORE}", "--disable-usage-stats"]
        common += ["--include-log-monitor=false"]  # nobody reads what workers print
        # The system chooses the workers' ports: two nodes on one address would give two workers the same one.
        common += ["--min-worker-port=0", "--max-worker-port=0"]
        self._started += 1
        process: Process
        environment = {**os.environ, **QUIET, **variables, "NODE_FOLDER": self._folder}
        with open(Path(self._folder) / f"node-{self._started}.log", "wb") as log, open(os.devnull, "rb") as nothing:
            if variables:
                process = subprocess.Popen(
                    [sys.executable, "-c", RAY, "start", *words, *common],
                    env=environment, stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip
            else:
                files = [nothing.fileno(), log.fileno(), log.fileno()]
                process = zygote().start("node", ["start", *words, *common], None, environment, files)
        self._processes.append(process)
        started = Path(log.name)
        try:
            until(lambda: b"Ray runtime started" in started.read_bytes(), process)
        except AssertionError as error:
            raise AssertionError(f"a node of Ray does not start: {started.read_text()[-3000:]}") from error
        return process

    def remove(self, process: Process) -> None:
        """Kill all its processes at once."""
        self._signal(process, signal.SIGKILL)

    def dismiss(self, process: Process) -> None:
        """Stop it with SIGTERM, so that the head knows at once."""
        self._signal(process, signal.SIGTERM)

    def _signal(self, process: Process, number: int) -> None:
        os.killpg(process.pid, number)
        process.wait()
        self._processes.remove(process)

    def end(self) -> None:
        """Stop all processes and delete their files."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def start(*words: str | Path, cwd: Path | None = None) -> Fork:
    """The program as a user calls it, in the background."""
    return _begin("cpfl", [*map(str, words)], cwd)


def python(code: str, *words: object) -> Fork:
    """A text of Python as a program, in the background."""
    return _begin("code", [code, *map(str, words)], None)


def _begin(kind: str, words: list[str], cwd: Path | None) -> Fork:
    (theirs_in, ours_in), (ours_out, theirs_out) = os.pipe(), os.pipe()
    files = [theirs_in, theirs_out, theirs_out]
    process = zygote().start(kind, words, cwd, {**os.environ, **LOOPBACK}, files)
    os.close(theirs_in)
    os.close(theirs_out)
    process.stdin, process.stdout = os.fdopen(ours_in, "w"), os.fdopen(ours_out)
    STARTED.append(process)
    return process


def kill_started() -> None:
    """End programs that a failed test left running."""
    for process in STARTED:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
    STARTED.clear()


def ended(process: Fork) -> str:
    """What it said, if all went well."""
    text, _ = process.communicate()
    assert process.returncode == 0, text
    return text


def said(process: Fork) -> list[Any]:
    """The lines of JSON that it said, if all went well; Ray may say other things."""
    return [json.loads(line) for line in ended(process).splitlines() if line.startswith(("[", "{"))]


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


def at_work(process: Fork, run: Path, least: int) -> list[dict[str, Any]]:
    """The workers with cohorts, as soon as at least `least` have some and four rounds are closed."""

    def found() -> list[dict[str, Any]]:
        those = [worker for worker in workers(run) if worker["cohorts"]]
        done = sum(map(len, rounds(run).values())) if (run / "rounds").is_dir() else 0
        return those if len(those) >= least and done >= 4 else []

    busy: list[dict[str, Any]] = until(found, process)
    return busy


def same(one: Path, other: Path) -> None:
    """Two runs are equal: every record and every model, bit by bit."""
    from small_runs import content  # Ray's workers import this module, but not from the folder of that one

    assert rounds(one) == rounds(other)
    models, others = ({path.name: content(path) for path in (run / "models").iterdir()} for run in (one, other))
    assert "global.safetensors" in models
    assert sorted(models) == sorted(others)
    assert [name for name in models if models[name] != others[name]] == []
