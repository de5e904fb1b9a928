"""Only nodes with a registered key can connect, and only to a SuperLink with the right certificate."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cpfl.deploy.local_fleet import CA, HOST, KEY, free_port, make_certificate, make_node_key

from .conftest import Fleet

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(290)]


def knock(fleet: Fleet, name: str, *words: object) -> subprocess.Popen[bytes]:
    """A stock node that tries once."""
    start = ["flower-supernode", "--superlink", fleet.address, "--host", HOST, "--port", free_port()]
    return fleet._start(name, [*start, "--max-retries", 0, "--max-wait-time", 20, *words])


def ended(process: subprocess.Popen[bytes], seconds: float = 120.0) -> int:
    return process.wait(seconds)


def test_only_registered_nodes_connect(fleet: Callable[..., Fleet], tmp_path: Path) -> None:
    """An unregistered key, no key, another authority, no TLS: refused. A registered key: accepted."""
    local = fleet()
    root = ["--root-certificates", local.ca]
    make_node_key(tmp_path / "unknown")
    make_certificate(tmp_path / "other")
    local.register("known")
    known = ["--auth-supernode-private-key", local.folder / "keys" / "known"]

    strangers = {
        "unregistered": knock(local, "unregistered", *root, "--auth-supernode-private-key", tmp_path / "unknown"),
        "keyless": knock(local, "keyless", *root),
        "other-authority": knock(local, "other-authority", "--root-certificates", tmp_path / "other" / CA, *known),
        "plain": knock(local, "plain", "--insecure"),
    }
    for name, process in strangers.items():
        assert ended(process) != 0, local.tail(name)
        assert "SuperNode ID" not in local.log(name).read_text(), f"{name} connected"
    logs = {name: local.log(name).read_text() for name in strangers}
    assert "CERTIFICATE_VERIFY_FAILED" in logs["other-authority"]

    friend = knock(local, "friend", *root, *known)
    until = time.monotonic() + 120
    while "SuperNode ID" not in local.log("friend").read_text():
        assert friend.poll() is None, local.tail("friend")
        assert time.monotonic() < until, local.tail("friend")
        time.sleep(0.2)


def test_private_keys_are_private(tmp_path: Path) -> None:
    """Nobody else on the machine may read them; the authority's own key is not kept at all."""
    make_certificate(tmp_path)
    make_node_key(tmp_path / "node")
    for name in (KEY, "node"):
        assert (tmp_path / name).stat().st_mode & 0o077 == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "ca.crt",
        "node",
        "node.pub",
        "server.key",
        "server.pem",
    ]
