"""Whether what clients keep from round to round has room: engines hold it as one row for each client."""

from __future__ import annotations

import os

import torch

from cpfl.errors import SettingError
from cpfl.federation import parts
from cpfl.problem import Problem


def check(problem: Problem, device: torch.device, in_lanes: bool) -> None:
    """Refuse, before anything is begun, what can never fit."""
    experiment = problem.experiment
    federation, dtype = experiment.federation, problem.data.transform.dtype
    numbers = sum(value.numel() for value in problem.start.values())
    if parts.local_part(federation).keeps_rows:
        key, remedy = f'federation.local = "{federation.local}"', "a local part that remembers nothing"
    elif federation.late == "stale" and in_lanes:  # their updates may all wait to be joined at once
        key, remedy = 'federation.late = "stale"', "another way with late clients"
    else:
        return
    needed, there = experiment.clients * numbers * dtype.itemsize, memory(device)
    if needed > there:
        raise SettingError(
            f"{key} needs room for a model of each of {experiment.clients:,} clients, {needed / 1e9:,.0f} GB, and "
            f"{device.type} has {there / 1e9:,.0f} GB: have fewer clients, or {remedy}"
        )


def memory(device: torch.device) -> int:
    """Bytes of the device, all told."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
