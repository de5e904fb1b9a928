"""The commands of docs/how-to/deploy.md as they stand there, and what `cpfl deploy` says to mistakes.

Commands that end: cpfl deploy new, cpfl deploy local, cpfl report, mkdir -p, openssl req, openssl x509, export,
ssh-keygen -q, flwr supernode, flwr run. Commands that keep running: flower-superlink --host, cpfl deploy node.
Variables: FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.processes import Program

import cpfl
from cpfl.deploy.local_fleet import descendants, free_port, new_app

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "deploy.md"
BLOCK = re.compile(r"^<!-- run in tests/deploy/test_commands.py -->\n```sh\n(.*?)^```", re.M | re.S)
STAY = ("flower-superlink", "cpfl deploy node")


class Shell:
    """A terminal in its own folder; commands that keep running end with the test."""

    def __init__(self, folder: Path, replaced: dict[str, str]) -> None:
        self.folder, self._replaced, self.running = folder, replaced, list[subprocess.Popen[Any]]()
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path, "FLWR_HOME": str(folder / "home")}

    def do(self, text: str) -> str:
        """Run a block to its end, or leave it running if it starts a server."""
        for old, new in self._replaced.items():
            text = text.replace(old, new)
        words = ["bash", "-euc", text]
        if any(line.startswith(STAY) for line in text.splitlines()):
            with (self.folder / f"log-{len(self.running)}").open("wb") as log:
                process = subprocess.Popen(words, cwd=self.folder, env=self.environment, stdout=log, stderr=log)
            self.running.append(process)
            return ""
        process = subprocess.Popen(
            words, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.running.append(process)  # ended with the rest if it takes too long
        said, _ = process.communicate()
        assert process.returncode == 0, f"{text}\n{said[-4000:]}"
        return said

    def cpfl(self, text: str) -> None:
        """Run commands of cpfl to their end, forked from a process that has imported it."""
        for line in text.splitlines():
            name, *words = shlex.split(line)
            assert name == "cpfl"
            program = Program(words, self.folder, self.environment)
            try:
                code = program.wait()
            finally:
                program.kill()  # nothing, unless the test is interrupted
                out, err = program.communicate()
            assert code == 0, f"{line}\n{out[-4000:]}{err[-4000:]}"

    def end(self) -> None:
        started = [pid for process in self.running for pid in (process.pid, *descendants(process.pid))]
        for pid in reversed(started):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in self.running:
            process.wait()
            if process.stdout:
                process.stdout.close()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    port, other = free_port(), free_port()
    made = Shell(
        tmp_path,
        {
            "DNS:fleet.example.org": "IP:127.0.0.1",
            "fleet.example.org": "127.0.0.1",
            "0.0.0.0": "127.0.0.1",
            "9443": str(port),
            "9094": str(other),
        },
    )
    made.port = port  # type: ignore[attr-defined]
    try:
        yield made
    finally:
        made.end()


def listening(shell: Any) -> None:
    """The command that was started last listens."""
    with socket.socket() as probe:
        while probe.connect_ex(("127.0.0.1", shell.port)) != 0:
            assert shell.running[-1].poll() is None, (shell.folder / f"log-{len(shell.running) - 1}").read_text()
            time.sleep(0.2)


def without_limits(app: Path) -> None:
    """No node is left out because this machine is slow."""
    file = app / "pyproject.toml"
    text = re.sub(r"^(wait|round)-seconds = \d+", r"\1-seconds = 43200", file.read_text(), flags=re.M)
    assert text.count("43200") == 2
    file.write_text(text)


@pytest.mark.fleet
def test_on_one_laptop(shell: Any, tmp_path: Path) -> None:
    """The template on a local fleet, and its report."""
    new, *rest = BLOCK.findall(PAGE.read_text())[0].splitlines()
    shell.cpfl(new)
    without_limits(tmp_path / "fleet")
    shell.cpfl("\n".join(rest).replace("--nodes 8", "--nodes 6").replace("max_rounds=5", "max_rounds=1"))
    assert cpfl.load_run(tmp_path / "runs" / "fleet").summary["cohorts"] == 2
    about = json.loads((tmp_path / "runs" / "fleet" / "run.json").read_text())
    assert all(sum(row) > 0 for row in about["label_counts"]), "three clients in a cohort reveal their sum"


@pytest.mark.fleet
@pytest.mark.skipif(
    not (shutil.which("openssl") and shutil.which("ssh-keygen")), reason="openssl or ssh-keygen is not installed"
)
def test_a_server_and_a_node(shell: Any, tmp_path: Path) -> None:
    """With certificates and keys made by hand, block after block."""
    _, authority, link, key, node, run = BLOCK.findall(PAGE.read_text())
    new_app(tmp_path / "fleet")
    without_limits(tmp_path / "fleet")
    shell.do(authority)
    shell.do(link)
    listening(shell)
    connection = re.search(r"```toml\n(.*?)```", PAGE.read_text(), re.S)
    assert connection
    text = connection[1].replace("fleet.example.org:9443", f"127.0.0.1:{shell.port}")
    (tmp_path / "home").mkdir(exist_ok=True)
    (tmp_path / "home" / "config.toml").write_text(text.replace("/srv/cpfl/", f"{tmp_path}/"))
    shell.do(key)
    shell.do(node)
    shell.do(run.replace("out='runs/first'", f"out='{tmp_path}/runs/first'"))
    assert cpfl.load_run(tmp_path / "runs" / "first").summary["rounds"] == 2


def left_over(folder: Path) -> list[str]:
    """Processes that work with this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (process / "environ").read_bytes() + (process / "cmdline").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " ")[:200])
        except OSError:
            continue
    return found


@pytest.mark.fleet
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    """No process and no temporary folder remains."""
    words = ["deploy", "local", "--nodes", "2", "--cohorts", "1", "--keep", "kept", "--out", "run"]
    program = Program(words, tmp_path, os.environ)
    try:
        program.until(lambda: "started run" in program.out)
        assert len(left_over(tmp_path / "kept")) >= 4, "a SuperLink, two nodes and more"
        program.interrupt()
        assert program.wait() == 130, program.out + program.err
    finally:
        program.kill()
        program.communicate()
    while left_over(tmp_path / "kept"):  # those that were killed may need a moment
        time.sleep(0.2)
    assert (tmp_path / "kept" / "fleet" / "logs" / "superlink.log").exists()


def test_new_writes_the_template(cpfl_command: Callable[..., Any], tmp_path: Path) -> None:
    said = cpfl_command("deploy", "new", "My Fleet").good().out
    assert "cpfl deploy local My Fleet" in said
    assert sorted(path.name for path in (tmp_path / "My Fleet").iterdir()) == [
        "app.py",
        "experiment.toml",
        "pyproject.toml",
    ]
    assert 'name = "my-fleet"' in (tmp_path / "My Fleet" / "pyproject.toml").read_text()
    assert len((tmp_path / "My Fleet" / "app.py").read_text().splitlines()) < 50, "one screen"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["new", "full"], "not an empty folder"),
        (["local", "full"], "no Flower app"),
        (["local", "--nodes", "2", "--cohorts", "3"], "--cohorts 3 is more than --nodes 2"),
        (["local", "--out", "full"], "not an empty folder"),
        (["local", "--keep", "full"], "--keep full exists"),
        (["local", "--set", "a b=1"], "no spaces"),
    ],
)
def test_mistakes(cpfl_command: Callable[..., Any], tmp_path: Path, words: list[str], expected: str) -> None:
    """One sentence, exit code 2, nothing written."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    answer = cpfl_command("deploy", *words)
    assert answer.code == 2
    assert expected in answer.err
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
