"""Checks of this machine: versions, devices, disk space, data sets."""

import importlib.util
import os
import platform
import shutil
from pathlib import Path

import torch

from cpfl.data import sources
from cpfl.data.catalogue import CATALOGUE
from cpfl.runs.folder import versions


def examine(data: Path | None) -> list[tuple[str, bool, str]]:
    """All checks, each as (what, whether it is fine, what was found)."""
    roots = sources.search_roots(data)
    present = [name for name in CATALOGUE if sources.describe(name, roots).format != "missing"]
    missing = [name for name in CATALOGUE if name not in present]
    free = shutil.disk_usage(Path.cwd()).free
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none: runs on the CPU"
    onnx = all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript"))
    works = bool(torch.nn.functional.conv2d(torch.ones(1, 1, 3, 3), torch.ones(1, 1, 3, 3)).item() == 9)
    return [
        *((f"{name} {version}", True, "") for name, version in versions().items()),
        ("torch computes", works, "a convolution gave the right answer" if works else "a convolution was wrong"),
        ("processor", True, f"{platform.machine()}, {os.cpu_count()} cores"),
        ("GPU", True, gpu),
        ("disk here", free > 1e9, f"{free / 1e9:.0f} GB free"),
        ("ONNX export", True, "ready" if onnx else "not installed: pip install 'cpfl[onnx]'"),
        ("data folders", True, ", ".join(str(root) for root in roots)),
        ("data found", True, ", ".join(present)),
        ("data to fetch", True, ", ".join(missing) or "none"),
    ]
