"""Trying an app on this machine: a SuperLink and nodes as processes with TLS and node keys, which end together."""

import ast
import contextlib
import datetime
import ipaddress
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

from cpfl.deploy import _flower_internals as internals
from cpfl.deploy.prefork import SOCKET, descendants, new_folder
from cpfl.errors import CpflError
from cpfl.runs import files
from cpfl.runs.folder import check_outside
from cpfl.task.loading import Notify

HOST = "127.0.0.1"
PORTS = range(20_000, 32_000)  # below those that systems give to programs that ask for any
CERTIFICATE_DAYS = 30
CA, CERTIFICATE, KEY = "ca.crt", "server.pem", "server.key"
STOP_SECONDS = 5.0  # for a process to end before it is killed
POLL_SECONDS = 0.2  # between reads of the run's log
_given = set[int]()  # ports that were chosen here, and that a program may not listen on yet


class LocalFleet(contextlib.AbstractContextManager["LocalFleet"]):
    """A small fleet in one folder: a certificate, keys, logs."""

    superlink_options: Sequence[object] = ()  # beside address, certificate and authentication

    def __init__(self, folder: Path, preforked: bool = True, preload: Sequence[str] = ()) -> None:
        """`preforked`: all programs share a prefork server, which imports the modules in `preload`."""
        self.folder, self.port = folder.absolute(), free_port()
        self.address = f"{HOST}:{self.port}"  # of the SuperLink
        self.ca = self.folder / "certificates" / CA
        self._preforked, self._preload = preforked, list(preload)
        self._shims: Path | None = None  # the folder of the prefork server
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("certificates", "keys", "logs", "flwr"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        make_certificate(self.folder / "certificates")
        self.environment = {
            **os.environ,
            **internals.QUIET,
            internals.POLL_VARIABLE: str(internals.POLL_SECONDS),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "FLWR_HOME": str(self.folder / "flwr"),
        }
        link = f'[superlink.local]\naddress = "{self.address}"\nroot-certificates = "{self.ca}"\n'
        (self.folder / "flwr" / "config.toml").write_text(f'[superlink]\ndefault = "local"\n\n{link}')

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it listens."""
        if self._preforked:
            self._prefork_server()
        words: list[object] = ["flower-superlink", "--host", HOST, "--port", self.port, "--enable-supernode-auth"]
        words += ["--ssl-ca-certfile", self.ca, "--ssl-certfile", self.ca.with_name(CERTIFICATE)]
        words += ["--ssl-keyfile", self.ca.with_name(KEY), "--disable-runtime-dependency-installation"]
        self._start("superlink", [*words, *self.superlink_options])
        self._wait_until("superlink", lambda: listens(self.port))

    def register(self, name: str) -> None:
        """Make a key pair for a node and register it at the SuperLink."""
        internals.register(self.address, self.ca, make_node_key(self.folder / "keys" / name))

    def start_node(self, name: str, config: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        """Start a node whose key is registered."""
        program = self._prefork_server() / internals.NODE if self._preforked else "flower-supernode"
        words: list[object] = [program, "--superlink", self.address, "--host", HOST, "--port", free_port()]
        words += ["--node-config", " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())]
        words += ["--root-certificates", self.ca, "--auth-supernode-private-key", self.folder / "keys" / name]
        return self._start(name, words)

    def run(self, app: Path, config: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        """Start an app: a process that streams the run's log into logs/run.log and ends with the run."""
        file = self.folder / "run-config.toml"
        file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in config.items()))
        self.log("run").unlink(missing_ok=True)
        return self._start("run", ["flwr", "run", app, "local", "--run-config", file, "--stream"])

    def wait(self, seconds: float | None = None) -> str:
        """The run's status after its end (finished:completed …), or after so long (running); None: no limit."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.processes["run"].wait(seconds)
        found = re.search(r"started run (\d+)", self.log("run").read_text(errors="replace"))
        if not found:
            raise CpflError(f"flwr run did not start the app: {self.tail('run')}")
        status = internals.run_info(self.address, self.ca, int(found[1])).status
        return ":".join(word for word in (status.status, status.sub_status) if word)

    def log(self, name: str) -> Path:
        """The file with a process's output."""
        return self.folder / "logs" / f"{name}.log"

    def tail(self, name: str, size: int = 600) -> str:
        """The end of a process's output, in whole lines."""
        text = self.log(name).read_text(errors="replace")
        return text[-size:].partition("\n")[2].strip() if len(text) > size else text.strip()

    def stop(self) -> None:
        """End every process with SIGTERM; with SIGKILL whatever is left when they have ended, or do not."""
        started = [pid for process in self.processes.values() for pid in (process.pid, *descendants(process.pid))]
        deadline = time.monotonic() + STOP_SECONDS
        for process in reversed(self.processes.values()):  # nodes before their SuperLink
            process.terminate()
        for name, process in self.processes.items():
            if name != "prefork":  # this one ignores SIGTERM
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
        for pid in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.processes.values():
            process.wait()
        self.processes.clear()
        if self._shims is not None:
            shutil.rmtree(self._shims, ignore_errors=True)
            self._shims = None

    def _prefork_server(self) -> Path:
        """The shims of the prefork server that all programs share; started with the first of them."""
        if self._shims is None:
            self._shims = shims = new_folder()
            self.environment["PATH"] = f"{shims}{os.pathsep}{self.environment['PATH']}"
            self._start("prefork", [sys.executable, "-m", "cpfl.deploy.prefork", shims, *self._preload])
            self._wait_until("prefork", (shims / SOCKET).exists)
        return self._shims

    def _start(self, name: str, words: list[object]) -> subprocess.Popen[bytes]:
        with self.log(name).open("ab") as output:
            process = subprocess.Popen(
                [*map(str, words)],
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal reaches this process only
            )
        self.processes[name] = process
        return process

    def _wait_until(self, name: str, ready: Callable[[], bool]) -> None:
        while not ready():
            if self.processes[name].poll() is not None:
                raise CpflError(f"the process {name} did not start: {self.tail(name)}")
            time.sleep(0.1)


def new_app(path: Path) -> Path:
    """Copy the template into a new or empty folder."""
    check_outside(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise CpflError(f"{path} exists and is not an empty folder: choose another name")
    name = re.sub(r"[^a-z0-9-]+", "-", path.absolute().name.lower()).strip("-") or "fleet"
    with files.explained(path), resources.as_file(resources.files("cpfl.deploy") / "template") as template:
        shutil.copytree(template, path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        project = path / "pyproject.toml"
        project.write_text(project.read_text().replace('name = "fleet"', f'name = "{name}"'))
    return path


def run_locally(
    app: Path | None, nodes: int, cohorts: int, out: Path, settings: str, keep: Path | None, notify: Notify
) -> Path:
    """Run an app, or the template, on so many nodes with TLS and node keys; the run folder.

    Every started process is ended. Certificates, keys and logs stay in `keep` if it is given.
    """
    project = app / "pyproject.toml" if app else None
    if project and not (project.is_file() and "[tool.flwr.app" in project.read_text(errors="replace")):
        raise CpflError(f"{app} is no Flower app: it has no pyproject.toml with [tool.flwr.app]; see cpfl deploy new")
    with contextlib.ExitStack() as stack:
        temporary = TemporaryDirectory(prefix="cpfl-deploy-", ignore_cleanup_errors=True)
        folder = keep or Path(stack.enter_context(temporary))
        chosen = (app or new_app(folder / "app")).absolute()
        fleet = stack.enter_context(LocalFleet(folder / "fleet", preload=imported_modules(chosen)))
        notify(f"SuperLink at {fleet.address}, with TLS; logs in {fleet.folder / 'logs'}")
        fleet.start_superlink()
        for client in range(nodes):
            fleet.register(f"node-{client}")
            fleet.start_node(f"node-{client}", {"client": client, "clients": nodes})
        notify(f"{nodes} nodes, each with a key of its own")
        fleet.run(chosen, {"clients": nodes, "cohorts": cohorts, "out": str(out.absolute()), "set": settings})
        _follow(fleet, notify)
        status = fleet.wait()
        if status != "finished:completed":
            raise CpflError(f"the run ended as {status}: {fleet.tail('run', 300)}")
    return out


def imported_modules(app: Path) -> list[str]:
    """Modules that an app's files import from outside its folder: every message would import them again."""
    found = set[str]()
    for file in sorted(app.glob("*.py")):
        with contextlib.suppress(SyntaxError, ValueError):  # Flower reports these when it loads the app
            for line in ast.parse(file.read_bytes()).body:
                if isinstance(line, ast.Import):
                    found |= {alias.name for alias in line.names}
                elif isinstance(line, ast.ImportFrom) and line.module and not line.level:
                    found.add(line.module)
    own = {path.stem for path in app.iterdir()}
    return sorted(name for name in found if name.partition(".")[0] not in own)


def _follow(fleet: LocalFleet, notify: Notify) -> None:
    """Repeat the run's log until the run ends, and tell of nodes that end before: the server waits for them."""
    process = fleet.processes["run"]
    nodes = {name: node for name, node in fleet.processes.items() if name.startswith("node-")}
    with fleet.log("run").open(errors="replace") as log:
        rest, ended = "", False
        while not ended:
            ended = process.poll() is not None
            for name in [name for name, node in nodes.items() if not ended and node.poll() is not None]:
                del nodes[name]
                notify(f"{name} has ended: {fleet.tail(name, 300)}")
            *lines, rest = (rest + log.read()).split("\n")
            for text in filter(None, map(internals.log_text, lines)):
                notify(text)
            if not ended:
                time.sleep(POLL_SECONDS)
        if text := internals.log_text(rest):  # a last line without its end
            notify(text)


def free_port() -> int:
    """A port that nobody listens on, and that neither the system nor this function gives to another program."""
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        if port in _given:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            _given.add(port)
            return port
    raise CpflError(f"all ports from {PORTS[0]} to {PORTS[-1]} are taken")


def listens(port: int) -> bool:
    """Whether a process of this machine listens there."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((HOST, port)) == 0


def make_certificate(folder: Path) -> None:
    """ca.crt, server.pem and server.key for a SuperLink on this machine: one certificate, which signs itself."""
    folder.mkdir(parents=True, exist_ok=True)
    key, now = ec.generate_private_key(ec.SECP384R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cpfl deploy local")])
    hosts = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(HOST))])
    builder = x509.CertificateBuilder(
        issuer_name=name,
        subject_name=name,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - datetime.timedelta(hours=1),
        not_valid_after=now + datetime.timedelta(days=CERTIFICATE_DAYS),
    )
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    signed = builder.add_extension(hosts, critical=False).sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    for file in (CA, CERTIFICATE):
        (folder / file).write_bytes(signed)
    _write_key(folder / KEY, key, PrivateFormat.TraditionalOpenSSL)


def make_node_key(path: Path) -> Path:
    """A node's key pair, as `ssh-keygen -t ecdsa -b 384` makes it; the path of the public key."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write_key(path, key, PrivateFormat.OpenSSH)
    public = path.with_name(path.name + ".pub")
    public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    return public


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey, style: PrivateFormat) -> None:
    """A file that only this user may read, from its first byte on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(key.private_bytes(Encoding.PEM, style, NoEncryption()))
