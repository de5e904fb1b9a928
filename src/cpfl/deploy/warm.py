"""A process that has torch and Flower loaded and forks for every message, instead of a start from nothing each time.

Flower starts the program `flwr-clientapp` for every message that a node gets: seconds of imports before any work. A
program of that name, first on the node's path, asks this process instead; every message still has a process of its own.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

PROGRAM = "flwr-clientapp"
LOADED = ("flwr.supernode.cli.flwr_clientapp", "torch", "torch._dynamo", "cpfl.deploy")  # torch.optim wants _dynamo
SHIM = """#!{python} -IS
import json, os, socket, sys
try:
    link = socket.socket(socket.AF_UNIX)
    link.connect({socket!r})
    link.sendall(json.dumps([sys.argv[1:], os.getcwd()]).encode() + b"\\n")
except OSError:
    os.execv({real!r}, [{real!r}, *sys.argv[1:]])
code = link.recv(16)
sys.exit(int(code) if code else 1)
"""


def start(modules: Sequence[str] = ()) -> Path:
    """Fork the warm process, which ends with this one; the folder to put first on the path."""
    place = Path(tempfile.mkdtemp(prefix="cpfl-warm-"))  # for this user alone
    door = socket.socket(socket.AF_UNIX)
    door.bind(str(place / "door"))
    door.listen(16)
    real = shutil.which(PROGRAM) or str(Path(sys.executable).with_name(PROGRAM))
    shim = place / PROGRAM
    shim.write_text(SHIM.format(python=sys.executable, socket=str(place / "door"), real=real))
    shim.chmod(0o700)
    parent = os.getpid()
    if os.fork() == 0:
        try:
            _serve(door, parent, (*LOADED, *modules))
        finally:
            shutil.rmtree(place, ignore_errors=True)
            os._exit(0)
    door.close()
    return place


def _serve(door: socket.socket, parent: int, modules: Sequence[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends when its parent has
    for module in modules:
        importlib.import_module(module)
    door.settimeout(0.5)
    running = set[int]()
    while os.getppid() == parent:
        for child in list(running):
            if os.waitpid(child, os.WNOHANG)[0]:
                running.remove(child)
        try:
            link, _ = door.accept()
        except TimeoutError:
            continue
        with link:
            child = os.fork()
            if child == 0:
                _work(link)
            running.add(child)


def _work(link: socket.socket) -> None:
    """One message, in a process that has just been forked; never returns."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        link.settimeout(None)
        words, folder = json.loads(link.makefile().readline())
        os.chdir(folder)
        sys.argv = [PROGRAM, *words]
        from flwr.supernode.cli.flwr_clientapp import flwr_clientapp

        flwr_clientapp()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            link.sendall(str(code).encode())
        finally:
            os._exit(code)
