"""The modules that `cpfl deploy local` preloads, so that nodes answer sooner."""

from __future__ import annotations

from pathlib import Path

from cpfl.deploy.local_fleet import imported_modules, new_app


def test_what_the_template_imports(tmp_path: Path) -> None:
    assert {"torch", "cpfl", "cpfl.deploy"} <= set(imported_modules(new_app(tmp_path / "app")))


def test_what_the_folder_holds_is_left_to_flower(tmp_path: Path) -> None:
    """And so is a file that is not Python."""
    (tmp_path / "app.py").write_text("import json, parts.net\nfrom . import task\nfrom task import model\nimport a.b\n")
    (tmp_path / "task.py").write_text("import torch\n\ndef model():\n    import never\n")
    (tmp_path / "parts").mkdir()
    (tmp_path / "broken.py").write_text("import (\n")
    assert imported_modules(tmp_path) == ["a.b", "json", "torch"]
