"""The software of a node. Ray sends this module by value to nodes that may have another cpfl, or none."""

import hashlib
import importlib.metadata
import importlib.util
import os
from pathlib import Path
from typing import Any

PACKAGES = ("cpfl", "torch", "numpy")
Environment = dict[str, Any]


def inspect(path: str = "") -> Environment:
    """Versions of packages, a checksum of cpfl's files, and whether a path exists on this node."""
    spec, digest = importlib.util.find_spec("cpfl"), hashlib.sha256()
    for root in (spec.submodule_search_locations or []) if spec else []:
        files = (file for file in Path(root).rglob("*") if file.suffix in (".py", ".toml", ".npz"))
        for file in sorted(files):  # two checkouts of one version may differ
            digest.update(f"{file.relative_to(root)}\n".encode() + file.read_bytes())
    found: Environment = {"path_exists": not path or os.path.exists(path), "code": digest.hexdigest()[:16]}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "source" if importlib.util.find_spec(name) else "none"
    return found


def difference(node: Environment, driver: Environment) -> str:
    """The first difference between a node and the driver; empty: none."""
    remedy = "install the same on all nodes"
    for key in PACKAGES:
        if node[key] != driver[key]:
            return f"has {key} {node[key]}, this driver has {driver[key]}: {remedy}"
    if node["code"] != driver["code"]:
        return f"has cpfl {node['cpfl']} with other code than this driver's: {remedy}"
    return ""
