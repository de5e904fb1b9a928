"""A process that has torch and cpfl imported and forks for every program of the tests: drivers, and Ray's workers.

A new interpreter takes four seconds to import them, and a run on a cluster has at least three. The fork is like a new
process in all else: its own arguments, variables, folder and output. It imports Ray itself. A node is a fork in a
session of its own. It has a server of its own, a fork too, so that its workers are in its process group.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

IMPORTS = ("torch._dynamo", "cpfl.cli", "cpfl.api", "cpfl.engines.lanes", "cpfl.sweeps.runner")
REAL = sys.executable
# The command `ray`, but nobody beyond this machine can reach what it starts: it would take another address for
# 127.0.0.1. And its clock stands still while it starts a node, so that a slow machine has time enough.
RAY = """
import time, types
from ray._private import node, services
from ray.scripts.scripts import main
services.resolve_ip_for_localhost = lambda host: host
node.time = types.SimpleNamespace(**{**vars(time), "monotonic": lambda: 0.0})
main()
"""
SHIM_OF: list[str] = []  # the shim of this process
SIZE = 8  # characters of a number on a link
WORKER = "default_worker.py"  # the script of Ray's workers; Ray's other processes need no torch
# What Ray takes for Python: it has a worker forked, and is there as long as the worker is.
SHIM = """#!{python} -IS
import json, os, signal, socket, sys
words = [word for word in sys.argv[1:] if word != "-u"]
if not words[0].endswith({worker!r}):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
link = socket.socket(socket.AF_UNIX)
link.connect({path!r})
request = json.dumps({{"kind": "script", "words": words, "cwd": os.getcwd(), "env": dict(os.environ)}}).encode()
socket.send_fds(link, [len(request).to_bytes(4, "big")], [0, 1, 2])
link.sendall(request)
fork = int(link.recv({size}, socket.MSG_WAITALL))
signal.signal(signal.SIGTERM, lambda *_: os.kill(fork, signal.SIGTERM))
code = link.recv({size}, socket.MSG_WAITALL)
os._exit(abs(int(code)) if code else 1)
"""


class Zygote:
    """The server, as the tests see it."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="zygote-")
        path = f"{self._folder}/socket"
        self._process = subprocess.Popen([REAL, "-m", __name__, path], cwd=Path(__file__).parents[2])
        self._path = path
        while not os.path.exists(path):
            assert self._process.poll() is None, "the zygote ended"
            time.sleep(0.02)

    def start(
        self, kind: str, words: Sequence[str], cwd: Path | None, env: dict[str, str], output: Sequence[int]
    ) -> Fork:
        """A fork that does `kind` with these words; `output`: its standard input, output and error."""
        link = socket.socket(socket.AF_UNIX)
        link.connect(self._path)
        request = {"kind": kind, "words": list(words), "cwd": str(cwd or Path.cwd()), "env": env}
        data = json.dumps(request).encode()
        socket.send_fds(link, [len(data).to_bytes(4, "big")], list(output))
        link.sendall(data)
        return Fork(link)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for file in os.listdir(self._folder):
            os.unlink(f"{self._folder}/{file}")
        os.rmdir(self._folder)


class Fork:
    """What tests use of subprocess.Popen."""

    stdin: Any = None
    stdout: Any = None

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self.pid = int(link.recv(SIZE, socket.MSG_WAITALL))
        self.returncode: int | None = None

    def wait(self) -> int:
        """The exit code, once it has ended; that of its signal is negative."""
        if self.returncode is None:
            self._link.setblocking(True)
            self._read()
        assert self.returncode is not None
        return self.returncode

    def poll(self) -> int | None:
        """The exit code if it has ended."""
        if self.returncode is None:
            self._link.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                self._read()
        return self.returncode

    def _read(self) -> None:
        code = self._link.recv(SIZE)
        assert code, "the zygote ended"
        self.returncode = int(code)
        self._link.close()

    def communicate(self, text: str = "") -> tuple[str, None]:
        """All that it says until it ends."""
        if self.stdin is not None:
            self.stdin.write(text)
            self.stdin.close()
        said = self.stdout.read()
        self.wait()
        return said, None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def serve(path: str) -> None:
    """Fork for every request while the parent lives, and tell the one who asked when the fork has ended."""
    parent = os.getppid()
    server = socket.socket(socket.AF_UNIX)
    server.bind(f"{path}-")
    server.listen(64)
    os.rename(f"{path}-", path)
    links: dict[int, socket.socket] = {}
    selector = selectors.DefaultSelector()
    selector.register(server, selectors.EVENT_READ)
    while os.getppid() == parent:
        ready = selector.select(0.1)
        for key, _ in ready:
            if key.fileobj is server:
                link, _ = server.accept()
                size, descriptors, _, _ = socket.recv_fds(link, 4, 3)
                request = json.loads(link.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL))
                pid = os.fork()
                if pid == 0:
                    for one in (server, link, *links.values()):
                        one.close()
                    begin(request, descriptors)
                for descriptor in descriptors:
                    os.close(descriptor)
                links[pid] = link
                selector.register(link, selectors.EVENT_READ, pid)
                link.sendall(f"{pid:{SIZE}}".encode())
            else:  # who asked has ended, or was killed
                selector.unregister(key.fileobj)
                if key.data in links:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(key.data, signal.SIGKILL)
        for pid in list(links):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                link = links.pop(pid)
                with contextlib.suppress(KeyError):
                    selector.unregister(link)
                with contextlib.suppress(OSError):
                    link.sendall(f"{os.waitstatus_to_exitcode(status):{SIZE}}".encode())
                link.close()
    os._exit(0)


def begin(request: dict[str, Any], descriptors: Sequence[int]) -> None:
    """In a new fork: become what was asked for; never returns."""
    code = 1
    try:
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        code = run(request["kind"], request["words"]) or 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def run(kind: str, words: list[str]) -> None:
    """node: `ray start`. cpfl: the program. code: a text of Python. script: a file."""
    if kind == "node":
        start_node(words)
    elif kind == "cpfl":
        sys.executable = SHIM_OF[0]  # for a cluster of its own
        sys.path[0] = os.getcwd()
        sys.argv = ["cpfl", *words]
        runpy.run_module("cpfl", run_name="__main__", alter_sys=True)
    elif kind == "code":
        sys.path[0] = ""
        sys.argv = ["-c", *words[1:]]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(words[0], "<string>", "exec"), main.__dict__)
    elif kind == "script":
        sys.path[0] = os.path.dirname(words[0])
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


def shim(path: str) -> str:
    """A program that Ray takes for Python, for the server at this path."""
    file = Path(path).with_name("python")
    file.write_text(SHIM.format(python=REAL, worker=WORKER, path=path, size=SIZE))
    file.chmod(0o700)
    return str(file)


def start_node(words: list[str]) -> None:
    """`ray start`, but nobody beyond this machine can reach it: Ray would take another address for 127.0.0.1."""
    os.setsid()
    folder = tempfile.mkdtemp(prefix="zygote-", dir=os.environ["NODE_FOLDER"])
    path = f"{folder}/socket"
    if os.fork() == 0:
        serve(path)
    sys.executable = shim(path)
    sys.argv = ["ray", *words]
    exec(RAY)


if __name__ == "__main__":
    for name in IMPORTS:
        importlib.import_module(name)
    assert "ray" not in sys.modules, "it starts threads, which a fork does not have"
    SHIM_OF.append(shim(sys.argv[1]))
    serve(sys.argv[1])
