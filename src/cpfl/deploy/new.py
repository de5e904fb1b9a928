"""A new app to start from: the template, in a folder of the user's."""

from __future__ import annotations

import re
import shutil
from importlib import resources
from pathlib import Path

from cpfl.errors import CpflError
from cpfl.runs import files


def new_app(path: Path) -> Path:
    """The template's files in a new folder; one that holds something is never touched."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise CpflError(f"{path} exists and is not an empty folder: choose another name")
    name = re.sub(r"[^a-z0-9-]+", "-", path.absolute().name.lower()).strip("-") or "fleet"
    with files.explained(path), resources.as_file(resources.files("cpfl.deploy") / "template") as template:
        path.mkdir(parents=True, exist_ok=True)
        for file in sorted(template.iterdir()):
            if file.is_file():
                shutil.copyfile(file, path / file.name)
        project = path / "pyproject.toml"
        project.write_text(project.read_text().replace('name = "fleet"', f'name = "{name}"'))
    return path


def is_app(path: Path) -> bool:
    """Whether a folder holds a Flower app."""
    project = path / "pyproject.toml"
    return project.is_file() and "[tool.flwr.app" in project.read_text(errors="replace")
