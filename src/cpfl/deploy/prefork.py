"""A server process that has torch and Flower imported and forks for every program of a node, or of a local fleet.

Flower starts the program `flwr-clientapp` for every message to a node, which takes seconds of imports. A shim of that
name, first on the node's path, asks the server to fork instead: every message still has its own process. The shim lends
the fork its input and output, forwards SIGTERM and SIGINT, and takes the fork and what it started with it when it is
killed.
"""

import contextlib
import gc
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
from collections.abc import Iterable
from pathlib import Path

from cpfl.deploy._flower_internals import LATE_IMPORTS, NODE_PROGRAMS, PROGRAMS, QUIET, supernode

PREFIX, SOCKET = "cpfl-prefork-", "socket"  # a server's folder, and the file that appears when it accepts requests
IMPORTS = ("cpfl.deploy", "torch._dynamo", "httpcore")  # with what they import at their first use
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
    folder = new_folder()
    parent = os.getpid()
    if os.fork() == 0:  # the prefork server, which ends with this process
        try:
            _serve(folder, parent, NODE_PROGRAMS, ())
        finally:
            os._exit(0)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"
    supernode()


def new_folder() -> Path:
    """A folder for a server's socket, for this user only; folders of servers that were killed are removed."""
    for old in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            try:
                probe.connect(str(old / SOCKET))
            except ConnectionRefusedError:  # the socket is there, but nobody listens
                shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=PREFIX))  # short, because it holds a socket


def _serve(folder: Path, parent: int, programs: Iterable[str], modules: Iterable[str]) -> None:
    """Fork for every request while the parent lives; the folder holds the socket and the shims that connect to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends after its parent
    server, path = socket.socket(socket.AF_UNIX), str(folder / SOCKET)
    server.bind(f"{path}.new")
    server.listen(64)
    for name in programs:
        real = shutil.which(name) or str(Path(sys.executable).with_name(name))
        shim = folder / name
        shim.write_text(SHIM.format(python=sys.executable, path=path, real=real, name=name))
        shim.chmod(0o700)
    os.rename(f"{path}.new", path)  # who finds it can connect and finds all shims
    for module in (*(PROGRAMS[name].partition(":")[0] for name in programs), *IMPORTS, *modules):
        with contextlib.suppress(Exception):  # the program that needs it raises the same error
            importlib.import_module(module)
    gc.freeze()  # forks do not look through these modules' objects, which would copy their memory
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
    shutil.rmtree(folder, ignore_errors=True)


def _run_program(link: socket.socket) -> None:
    """Run one program in a new fork; never returns."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        size, descriptors, _, _ = socket.recv_fds(link, 4, 3)
        if not size:
            os._exit(0)  # somebody only wanted to know whether the server lives
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
    """End this process when its shim is asked to end; with all that it started when the shim is killed."""
    while link.recv(1) == b"T":
        os.kill(os.getpid(), signal.SIGTERM)
    for child in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """All child processes of a process and theirs (Linux; elsewhere Flower ends them)."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return found[1:]


if __name__ == "__main__":  # a server for a local fleet: its folder, and more modules to import
    _serve(Path(sys.argv[1]), os.getppid(), PROGRAMS, (*LATE_IMPORTS, *sys.argv[2:]))
