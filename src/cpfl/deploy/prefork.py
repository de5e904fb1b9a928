"""A server process that has torch and Flower imported and forks for every program of a node.

Flower starts the program `flwr-clientapp` for every message to a node, which takes seconds of imports. A shim of that
name, first on the node's path, asks the server to fork instead: every message still has its own process. The shim lends
the fork its input and output, forwards SIGTERM and SIGINT, and takes the fork with it when it is killed.
"""

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

from cpfl.deploy._flower_internals import PROGRAMS, QUIET, supernode

IMPORTS = (*(entry.partition(":")[0] for entry in PROGRAMS.values()), "cpfl.deploy", "torch._dynamo")
SHIM = """#!{python} -IS
import json, os, signal, socket, sys
link = socket.socket(socket.AF_UNIX)
try:
    link.connect({path!r})
except OSError:  # the server has ended
    os.execv({real!r}, [{real!r}, *sys.argv[1:]])
signal.signal(signal.SIGTERM, lambda *_: link.send(b"T"))
signal.signal(signal.SIGINT, lambda *_: link.send(b"T"))
request = json.dumps([{name!r}, sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(link, [len(request).to_bytes(4, "big")], [0, 1, 2])
link.sendall(request)
code = link.recv(16)
sys.exit(int(code) if code else 1)
"""


def run_supernode() -> None:
    """`flower-supernode` with the same options, faster polling and a prefork server; it contacts its SuperLink only."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    folder = Path(tempfile.mkdtemp(prefix="cpfl-prefork-"))  # for this user only; short, because it holds a socket
    parent = os.getpid()
    if os.fork() == 0:  # the prefork server, which ends with this process
        try:
            _serve(folder, parent, [])
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(0)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"
    supernode()


def _serve(folder: Path, parent: int, modules: Sequence[str]) -> None:
    """Fork for every request while the parent lives; the folder holds the socket and the shims that connect to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends after its parent
    server, path = socket.socket(socket.AF_UNIX), str(folder / "socket")
    server.bind(path)
    server.listen(64)
    for name in PROGRAMS:
        real = shutil.which(name) or str(Path(sys.executable).with_name(name))
        shim = folder / name
        shim.write_text(SHIM.format(python=sys.executable, path=path, real=real, name=name))
        shim.chmod(0o700)
    for module in (*IMPORTS, *modules):
        with contextlib.suppress(Exception):  # the program that needs it raises the same error
            importlib.import_module(module)
    server.settimeout(0.5)
    running = set[int]()
    while os.getppid() == parent:
        running -= {child for child in running if os.waitpid(child, os.WNOHANG)[0]}
        try:
            link, _ = server.accept()
        except TimeoutError:
            continue
        with link:
            child = os.fork()
            if child == 0:
                server.close()
                _run_program(link)
            running.add(child)


def _run_program(link: socket.socket) -> None:
    """Run one program in a new fork; never returns."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        size, descriptors, _, _ = socket.recv_fds(link, 4, 3)
        request = link.recv(int.from_bytes(size), socket.MSG_WAITALL)
        name, words, folder, environment = json.loads(request)
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        sys.argv = [name, *words]
        threading.Thread(target=_watch, args=(link,), daemon=True).start()
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


def _watch(link: socket.socket) -> None:
    """End this process when its shim is asked to end, or is killed."""
    while link.recv(1) == b"T":
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":  # a server for several nodes: its folder, and more modules to import
    _serve(Path(sys.argv[1]), os.getppid(), sys.argv[2:])
