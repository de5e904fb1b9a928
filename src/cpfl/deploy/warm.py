"""A process that has torch and Flower loaded and forks for every program of Flower's, instead of a start from nothing.

Flower starts the program `flwr-clientapp` for every message that a node gets: seconds of imports before any work. A
program of that name, first on the node's path, asks this process to fork and do it, so every message still has a
process of its own. It lends the fork its input and output, passes a polite end on, and takes it along when killed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path

NODE = "cpfl-supernode"
PROGRAMS = {
    "flwr-clientapp": "flwr.supernode.cli.flwr_clientapp:flwr_clientapp",
    "flower-superexec": "flwr.supercore.cli.flower_superexec:flower_superexec",
    NODE: "cpfl.deploy.node:supernode",
}
LOADED = (*(entry.partition(":")[0] for entry in PROGRAMS.values()), "cpfl.deploy", "torch._dynamo")
DOOR = "door"
SHIM = """#!{python} -IS
import json, os, signal, socket, sys
link = socket.socket(socket.AF_UNIX)
try:
    link.connect({door!r})
except OSError:  # nobody is there any more
    os.execv({real!r}, [{real!r}, *sys.argv[1:]])
signal.signal(signal.SIGTERM, lambda *_: link.send(b"T"))
signal.signal(signal.SIGINT, lambda *_: link.send(b"T"))
words = json.dumps([{name!r}, sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(link, [len(words).to_bytes(4, "big")], [0, 1, 2])
link.sendall(words)
code = link.recv(16)
sys.exit(int(code) if code else 1)
"""


def lay_out(place: Path) -> socket.socket:
    """Programs that knock at the door of this folder, and the door."""
    door = socket.socket(socket.AF_UNIX)
    door.bind(str(place / DOOR))
    door.listen(64)
    for name in PROGRAMS:
        real = shutil.which(name) or str(Path(sys.executable).with_name(name))
        shim = place / name
        shim.write_text(SHIM.format(python=sys.executable, door=str(place / DOOR), real=real, name=name))
        shim.chmod(0o700)
    return door


def start(modules: Sequence[str] = ()) -> Path:
    """Fork the warm process, which ends with this one; the folder to put first on the path."""
    place = Path(tempfile.mkdtemp(prefix="cpfl-warm-"))  # for this user alone
    door, parent = lay_out(place), os.getpid()
    if os.fork() == 0:
        try:
            serve(door, parent, modules)
        finally:
            shutil.rmtree(place, ignore_errors=True)
            os._exit(0)
    door.close()
    return place


def serve(door: socket.socket, parent: int, modules: Sequence[str]) -> None:
    """Fork for whoever knocks, for as long as the parent lives."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends when its parent has
    for module in LOADED:
        importlib.import_module(module)
    for module in modules:
        with contextlib.suppress(Exception):  # whoever needs it will tell what is wrong with it
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
                door.close()
                _work(link)
            running.add(child)


def _work(link: socket.socket) -> None:
    """One program, in a process that has just been forked; never returns."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        link.settimeout(None)
        size, ends, _, _ = socket.recv_fds(link, 4, 3)
        name, words, folder, environment = json.loads(_exactly(link, int.from_bytes(size)))
        for number, end in enumerate(ends):
            os.dup2(end, number)
            os.close(end)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        sys.argv = [name, *words]
        threading.Thread(target=_heed, args=(link,), daemon=True).start()
        module, _, function = PROGRAMS[name].partition(":")
        getattr(importlib.import_module(module), function)()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
            link.sendall(str(code).encode())
        os._exit(code)


def _heed(link: socket.socket) -> None:
    """End with whoever asked for this program: politely, or at once if it was killed."""
    while link.recv(1) == b"T":
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGKILL)


def _exactly(link: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        part = link.recv(size - len(content))
        if not part:
            raise EOFError("whoever asked is gone")
        content += part
    return content


if __name__ == "__main__":  # a warm process for several nodes: its folder, and more modules to load
    serve(lay_out(Path(sys.argv[1])), os.getppid(), sys.argv[2:])
