"""Trying an app on this machine: a new app from the template, and its run on a local fleet."""

import ast
import contextlib
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path

from cpfl.deploy._flower_internals import log_text
from cpfl.deploy.local_fleet import LocalFleet
from cpfl.errors import CpflError
from cpfl.runs import files

POLL_SECONDS = 0.2  # between reads of the run's log


def new_app(path: Path) -> Path:
    """Copy the template into a new or empty folder."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise CpflError(f"{path} exists and is not an empty folder: choose another name")
    name = re.sub(r"[^a-z0-9-]+", "-", path.absolute().name.lower()).strip("-") or "fleet"
    with files.explained(path), resources.as_file(resources.files("cpfl.deploy") / "template") as template:
        shutil.copytree(template, path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        project = path / "pyproject.toml"
        project.write_text(project.read_text().replace('name = "fleet"', f'name = "{name}"'))
    return path


def run_locally(
    app: Path | None,
    nodes: int,
    cohorts: int,
    out: Path,
    settings: str,
    keep: Path | None,
    notify: Callable[[str], None],
) -> Path:
    """Run an app, or the template, on so many nodes with TLS and node keys; the run folder.

    Every started process is ended. Certificates, keys and logs stay in `keep` if it is given.
    """
    project = app / "pyproject.toml" if app else None
    if project and not (project.is_file() and "[tool.flwr.app" in project.read_text(errors="replace")):
        raise CpflError(f"{app} is no Flower app: it has no pyproject.toml with [tool.flwr.app]; see cpfl deploy new")
    with contextlib.ExitStack() as stack:
        temporary = partial(tempfile.TemporaryDirectory, prefix="cpfl-deploy-", ignore_cleanup_errors=True)
        folder = keep or Path(stack.enter_context(temporary()))
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
        status = fleet.wait(5.0)
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


def _follow(fleet: LocalFleet, notify: Callable[[str], None]) -> None:
    """Repeat the run's log until the run ends."""
    process = fleet.processes["run"]
    with fleet.log("run").open(errors="replace") as log:
        rest, ended = "", False
        while not ended:
            ended = process.poll() is not None
            *lines, rest = (rest + log.read()).split("\n")
            for text in filter(None, map(log_text, lines)):
                notify(text)
            if not ended:
                time.sleep(POLL_SECONDS)
