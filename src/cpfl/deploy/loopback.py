"""A SuperLink and its nodes as processes on this machine, with TLS and node keys; all of them end with it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cpfl.deploy import certificates, control, warm
from cpfl.deploy.node import OFTEN, QUIET
from cpfl.errors import CpflError

HOST = "127.0.0.1"
STARTING = 60.0  # seconds that a SuperLink may take to listen
ENDING = 5.0  # seconds to end by itself before it is killed


class Loopback:
    """Everything of a small fleet in one folder: certificates, keys, logs, the SuperLink's database."""

    def __init__(
        self,
        folder: Path,
        secure: bool = True,
        warm: bool = True,
        preload: Sequence[str] = (),
        lasting: bool = False,
    ) -> None:
        """`secure`: TLS and node keys; `warm`: nodes that answer sooner, with these modules loaded beforehand;
        `lasting`: the SuperLink keeps what it knows in a database."""
        self.lasting = lasting
        self.preload, self._place = list(preload), None  # type: list[str], Path | None
        self.folder, self.secure, self.warm, self.port = folder.absolute(), secure, warm, free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("certificates", "keys", "logs", "flwr"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        if secure:
            certificates.authority(self.folder / "certificates", HOST)
        self.environment = {
            **os.environ,
            **QUIET,
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(OFTEN),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "FLWR_HOME": str(self.folder / "flwr"),
        }
        self._configure()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """Where the SuperLink listens."""
        return f"{HOST}:{self.port}"

    @property
    def ca(self) -> Path | None:
        """The authority that signed the SuperLink's certificate."""
        return self.folder / "certificates" / certificates.CA if self.secure else None

    def start_link(self) -> None:
        """The SuperLink."""
        place = self.folder / "certificates"
        words = ["flower-superlink", "--host", HOST, "--port", self.port]
        words += ["--disable-runtime-dependency-installation"]
        if self.lasting:
            words += ["--database", self.folder / "link.db"]
        if self.secure:
            words += ["--ssl-ca-certfile", place / certificates.CA, "--ssl-certfile", place / certificates.CERTIFICATE]
            words += ["--ssl-keyfile", place / certificates.KEY, "--enable-supernode-auth"]
        else:
            words += ["--insecure"]
        link = self._start("superlink", words)
        until = time.monotonic() + STARTING
        while not _listens(self.port):
            if link.poll() is not None or time.monotonic() > until:
                raise CpflError(f"the SuperLink did not start: {self.tail('superlink')}")
            time.sleep(0.1)

    def register(self, name: str) -> None:
        """A key pair for a node, known to the SuperLink."""
        public = certificates.node_key(self.folder / "keys" / name)
        control.register(self.address, self.ca, public)

    def start_node(self, name: str, config: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        """A node; its key must be registered where the fleet is secure."""
        program = self._warm_place() / warm.NODE if self.warm else "flower-supernode"
        words: list[object] = [program, "--superlink", self.address, "--host", HOST, "--port", free_port()]
        words += ["--node-config", " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())]
        if self.secure:
            words += ["--root-certificates", self.ca]
            words += ["--auth-supernode-private-key", self.folder / "keys" / name]
        else:
            words += ["--insecure"]
        return self._start(name, words)

    def run(self, app: Path, config: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        """Start an app: a process that streams the run's log into logs/run.log and ends with the run."""
        file = self.folder / "run-config.toml"
        file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in config.items()))
        self.log("run").unlink(missing_ok=True)
        return self._start("run", ["flwr", "run", app, "local", "--run-config", file, "--stream"])

    def wait(self, seconds: float) -> str:
        """How the run ended (finished:completed …), or `running` after so long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.processes["run"].wait(seconds)
        found = re.search(r"started run (\d+)", self.log("run").read_text(errors="replace"))
        if not found:
            raise CpflError(f"flwr run did not start the app: {self.tail('run')}")
        return control.status(self.address, self.ca, int(found[1]))

    def log(self, name: str) -> Path:
        """Where a process's words go."""
        return self.folder / "logs" / f"{name}.log"

    def tail(self, name: str, size: int = 600) -> str:
        """The last words of a process."""
        path = self.log(name)
        return path.read_text(errors="replace")[-size:].strip() if path.is_file() else ""

    def kill(self, name: str, how: signal.Signals = signal.SIGKILL) -> None:
        """End one process and all it started, at once."""
        process = self.processes.pop(name)
        for pid in [process.pid, *descendants(process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)
        process.wait(ENDING)

    def stop(self) -> None:
        """End everything that was started here: politely, then not."""
        started = {pid for p in self.processes.values() for pid in (p.pid, *descendants(p.pid))}
        for name in reversed(list(self.processes)):  # nodes before their SuperLink
            with contextlib.suppress(ProcessLookupError):
                self.processes[name].send_signal(signal.SIGTERM)
        until = time.monotonic() + ENDING
        for name, process in self.processes.items():
            if name != "warm":  # it would outlive this process only
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.1, until - time.monotonic()))
        if "warm" in self.processes:
            self.processes["warm"].kill()
        while any(map(_alive, started)) and time.monotonic() < until:
            time.sleep(0.05)  # what they started ends a moment after them
        for pid in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.processes.values():
            process.wait(ENDING)
        self.processes.clear()
        if self._place is not None:
            shutil.rmtree(self._place, ignore_errors=True)
            self._place = None

    def _warm_place(self) -> Path:
        """The folder of the one warm process that all nodes here share; begun with the first of them."""
        if self._place is None:
            self._place = Path(tempfile.mkdtemp(prefix="cpfl-warm-"))  # short: the path of a socket has to be
            self.environment["PATH"] = f"{self._place}{os.pathsep}{self.environment['PATH']}"
            self._start("warm", [sys.executable, "-m", "cpfl.deploy.warm", self._place, *self.preload])
            until = time.monotonic() + STARTING
            while not (self._place / warm.NODE).exists():
                if self.processes["warm"].poll() is not None or time.monotonic() > until:
                    raise CpflError(f"the warm process did not start: {self.tail('warm')}")
                time.sleep(0.05)
        return self._place

    def _start(self, name: str, words: list[object]) -> subprocess.Popen[bytes]:
        with self.log(name).open("ab") as output:
            process = subprocess.Popen(
                [*map(str, words)],
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C in the terminal is ours to handle
            )
        self.processes[name] = process
        return process

    def _configure(self) -> None:
        how = (
            f'root-certificates = "{self.folder / "certificates" / certificates.CA}"'
            if self.secure
            else "insecure = true"
        )
        text = f'[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = "{self.address}"\n{how}\n'
        (self.folder / "flwr" / "config.toml").write_text(text)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def descendants(pid: int) -> list[int]:
    """All processes that a process started, and those that they did (Linux; elsewhere Flower's own watch ends them)."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, todo = [], [pid]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


def _alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be buried does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((HOST, port)) == 0
