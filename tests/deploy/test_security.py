"""Only nodes with a registered key can connect, and only to a SuperLink with the right certificate."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from cpfl.deploy import _flower_internals as internals
from cpfl.deploy.local_fleet import CA, HOST, KEY, free_port, make_certificate, make_node_key

from .conftest import Fleet

pytestmark = pytest.mark.fleet


def knock(fleet: Fleet, name: str, *words: object) -> subprocess.Popen[bytes]:
    """A node with these options."""
    program = fleet._prefork_server() / internals.NODE
    return fleet._start(name, [program, "--superlink", fleet.address, "--host", HOST, "--port", free_port(), *words])


def test_only_registered_nodes_connect(fleet: Fleet, tmp_path: Path) -> None:
    """An unregistered key, no key, another authority, no TLS: refused. A registered key: accepted."""
    root, once = ["--root-certificates", fleet.ca], ["--max-retries", 0]
    make_node_key(tmp_path / "unknown")
    make_certificate(tmp_path / "other")
    fleet.register("known")
    known = ["--auth-supernode-private-key", fleet.folder / "keys" / "known"]

    options = {
        "unregistered": [*root, "--auth-supernode-private-key", tmp_path / "unknown"],
        "keyless": root,
        "other-authority": ["--root-certificates", tmp_path / "other" / CA, *known],
        "plain": ["--insecure"],
    }
    strangers = {name: knock(fleet, name, *words, *once) for name, words in options.items()}
    for name, process in strangers.items():
        assert process.wait() != 0, fleet.tail(name)
        assert "SuperNode ID" not in fleet.log(name).read_text(), f"{name} connected"
    logs = {name: fleet.log(name).read_text() for name in strangers}
    assert "CERTIFICATE_VERIFY_FAILED" in logs["other-authority"]

    friend = knock(fleet, "friend", *root, *known, "--node-config", "client=999")
    while "SuperNode ID" not in fleet.log("friend").read_text():
        assert friend.poll() is None, fleet.tail("friend")
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
