"""A whole fleet on this machine to try an app on: started, run, and taken down again."""

from __future__ import annotations

import ast
import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from cpfl.deploy import new
from cpfl.deploy.loopback import Loopback
from cpfl.errors import CpflError

LOOK = 0.2  # seconds between looks at the run's log


def run_locally(
    app: Path | None,
    nodes: int,
    cohorts: int,
    out: Path,
    settings: str,
    keep: Path | None,
    note: Callable[[str], None],
) -> Path:
    """Run an app, or the template, on so many nodes with TLS and node keys; the run folder.

    Everything that was started is ended, whatever happens; certificates, keys and logs stay in `keep` if given.
    """
    if app is not None and not new.is_app(app):
        raise CpflError(f"{app} is no Flower app: it has no pyproject.toml with [tool.flwr.app]; see cpfl deploy new")
    place = Path(tempfile.mkdtemp(prefix="cpfl-deploy-")) if keep is None else keep
    try:
        chosen = (new.new_app(place / "app") if app is None else app).absolute()
        with Loopback(place / "fleet", preload=imported(chosen)) as fleet:
            note(f"SuperLink at {fleet.address}, with TLS; logs in {fleet.folder / 'logs'}")
            fleet.start_link()
            for client in range(nodes):
                fleet.register(f"node-{client}")
                config = {"client": client, "clients": nodes}
                fleet.start_node(f"node-{client}", config)
            note(f"{nodes} nodes, each with a key of its own")
            fleet.run(chosen, {"clients": nodes, "cohorts": cohorts, "out": str(out.absolute()), "set": settings})
            _follow(fleet, note)
            ended = fleet.wait(5.0)
            if ended != "finished:completed":
                raise CpflError(f"the run ended as {ended}: {fleet.tail('run', 300)}")
    finally:
        if keep is None:
            shutil.rmtree(place, ignore_errors=True)
    return out


def imported(app: Path) -> list[str]:
    """Modules that an app's files import and its folder does not hold: what every message would load again."""
    files = sorted(app.glob("*.py"))
    found = set[str]()
    for file in files:
        with contextlib.suppress(SyntaxError, ValueError):  # Flower tells of these when it loads the app
            for line in ast.parse(file.read_bytes()).body:
                if isinstance(line, ast.Import):
                    found |= {alias.name for alias in line.names}
                elif isinstance(line, ast.ImportFrom) and line.module and not line.level:
                    found.add(line.module)
    own = {path.stem for path in app.iterdir()}
    return sorted(name for name in found if name.partition(".")[0] not in own)


def _follow(fleet: Loopback, note: Callable[[str], None]) -> None:
    """Tell what the run logs, until it ends."""
    process = fleet.processes["run"]
    with fleet.log("run").open(errors="replace") as log:
        rest = ""
        while True:
            ended = process.poll() is not None
            rest += log.read()
            *lines, rest = rest.split("\n")
            for line in lines:
                told = line.rpartition("\x1b[0m:")[2].strip()
                if told:
                    note(told)
            if ended:
                return
            time.sleep(LOOK)
