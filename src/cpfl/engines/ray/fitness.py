"""What a node has of what a worker needs."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
from pathlib import Path
from typing import Any

Fitness = dict[str, Any]


def fitness(path: str) -> Fitness:
    """Versions of packages, a checksum of cpfl's own code, and whether a path is seen."""
    found: Fitness = {"seen": not path or os.path.exists(path)}
    for name in ("cpfl", "torch", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "source" if importlib.util.find_spec(name) else "none"
    found["code"] = code()
    return found


def unlike(found: Fitness, here: Fitness) -> str:
    """What a node has that is not the driver's; empty: nothing."""
    remedy = "install the same on all nodes"
    for key in ("cpfl", "torch", "numpy"):
        if found[key] != here[key]:
            return f"has {key} {found[key]}, this driver has {here[key]}: {remedy}"
    if found["code"] != here["code"]:
        return f"has cpfl {found['cpfl']} with other code than this driver's: {remedy}"
    return ""


def code() -> str:
    """A checksum of the package's sources: two checkouts of one version need not be the same."""
    spec = importlib.util.find_spec("cpfl")
    digest = hashlib.sha256()
    for root in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(root).rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
