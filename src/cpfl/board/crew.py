"""The workers of runs on a cluster, as a part of the board's tree; a run tells of them in a small file of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cpfl.report.content import Tree
from cpfl.terminal.workers import named

FRESH = 30.0  # seconds after which what the file says may be no longer true


def crew(name: str, run: Path, now: float) -> Tree | None:
    """Who trains what in a run just now; None: nobody tells."""
    path = run / "workers.json"
    try:
        if now - path.stat().st_mtime > FRESH:
            return None
        load = json.loads(path.read_bytes())
        rows = [_row(worker) for worker in load["workers"]]
        link = str(load.get("dashboard") or "")
    except (OSError, ValueError, KeyError, TypeError):  # it is written anew every second
        return None
    return {"run": name, "workers": rows, "dashboard": link if link.startswith(("http://", "https://")) else ""}


def _row(worker: dict[str, Any]) -> Tree:
    return {
        "worker": str(worker["worker"]),
        "node": str(worker["node"]),
        "device": str(worker["device"]),
        "load": f"{100 * float(worker['load']):.0f} %",
        "speed": f"{float(worker['samples_per_second']):,.0f}",
        "cohorts": named(worker["cohorts"]),
    }
