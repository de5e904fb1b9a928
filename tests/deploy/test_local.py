"""`cpfl deploy local`: the modules that it preloads, the ports that it gives, and nodes that end before the run."""

from __future__ import annotations

from pathlib import Path

from cpfl.deploy.local_fleet import LocalFleet, _follow, free_port, imported_modules, new_app


def test_what_the_template_imports(tmp_path: Path) -> None:
    assert {"torch", "cpfl", "cpfl.deploy"} <= set(imported_modules(new_app(tmp_path / "app")))


def test_what_the_folder_holds_is_left_to_flower(tmp_path: Path) -> None:
    """And so is a file that is not Python."""
    (tmp_path / "app.py").write_text("import json, parts.net\nfrom . import task\nfrom task import model\nimport a.b\n")
    (tmp_path / "task.py").write_text("import torch\n\ndef model():\n    import never\n")
    (tmp_path / "parts").mkdir()
    (tmp_path / "broken.py").write_text("import (\n")
    assert imported_modules(tmp_path) == ["a.b", "json", "torch"]


def test_no_port_is_given_twice() -> None:
    """Of 12,000 ports: a program may listen on its own only seconds later."""
    given = [free_port() for _ in range(500)]
    assert len(set(given)) == len(given)


def test_a_node_that_ends_is_told_of(tmp_path: Path) -> None:
    """Otherwise the server waits for it, and nobody knows why."""
    told: list[str] = []
    with LocalFleet(tmp_path, preforked=False) as fleet:
        node = fleet._start("node-0", ["sh", "-c", "echo address already in use; exit 1"])
        node.wait()
        for name in ("node-1", "run"):
            fleet._start(name, ["tail", "-f", "/dev/null"])  # until it is ended

        def notify(text: str) -> None:
            told.append(text)
            fleet.processes["run"].terminate()

        _follow(fleet, notify)
    assert told == ["node-0 has ended: address already in use"]
