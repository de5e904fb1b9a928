"""What is wrong with a cluster is told in one sentence, with exit code 2, before anything is written."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from tests.cluster.nodes import LOOPBACK, Nodes, cpfl
from tests.conftest import Command

import cpfl as package

pytest.importorskip("ray", reason="a cluster needs Ray: pip install 'cpfl[ray]'")


def refused(tmp_path: Path, *words: str | Path) -> str:
    """The one sentence."""
    out = tmp_path / "run"
    answer = subprocess.run(
        cpfl("run", "digits", "--set", "max_rounds=2", *words, "--out", out),
        env={**os.environ, **LOOPBACK}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert answer.returncode == 2, answer.stderr
    assert not out.exists()
    lines = answer.stderr.strip().splitlines()
    assert len(lines) == 1, answer.stderr
    return lines[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engine", "workers", "--address", "auto"], "go with --engine ray, not with workers"),
        (["--engine", "ray", "--address", "ray://head:10001"], "is a Ray client's address: host:port"),
        (["--engine", "ray", "--address", "head"], "--address head is not an address: host:port"),
        (["--engine", "ray", "--gpu-share", "1.5"], "--gpu-share 1.5 is not allowed: more than 0 and at most 1"),
    ],
)
def test_what_needs_no_cluster_to_be_seen(cpfl_command: Command, tmp_path: Path, words: list[str], said: str) -> None:
    answer = cpfl_command("run", "digits", *words, "--out", tmp_path / "run")
    assert answer.code == 2
    assert said in answer.err
    assert not (tmp_path / "run").exists()


def test_no_cluster_at_the_address(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    said = refused(tmp_path, "--engine", "ray", "--address", f"127.0.0.1:{port}")
    assert f"there is no Ray cluster at --address 127.0.0.1:{port}" in said


@pytest.mark.cluster
def test_a_cluster_that_lacks_what_is_wanted(cluster: Nodes, tmp_path: Path) -> None:
    place = ["--engine", "ray", "--address", cluster.address]
    said = refused(tmp_path, *place, "--workers", "9")
    assert "has 2 CPUs: 9 workers, each with 1, do not fit there; allowed: --workers 1 to 2" in said
    said = refused(tmp_path, *place, "--node-data", str(tmp_path / "nowhere"))
    assert "does not see --node-data" in said


@pytest.mark.cluster
def test_another_cpfl_on_a_node(cluster: Nodes, tmp_path: Path) -> None:
    """A node whose cpfl has the same version and one more line."""
    source = Path(package.__file__).parent
    shutil.copytree(source, tmp_path / "other" / "cpfl", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "other" / "cpfl" / "errors.py").open("a") as file:
        file.write("# another line\n")
    node = cluster.add(PYTHONPATH=str(tmp_path / "other"))
    try:
        said = refused(tmp_path, "--engine", "ray", "--address", cluster.address)
        assert "with other code than this driver's: install the same on all nodes" in said
    finally:
        cluster.remove(node)
