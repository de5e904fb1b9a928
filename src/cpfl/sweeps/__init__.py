"""Sweeps: one experiment over many n, seeds and other settings, one run folder for each. What a run does is in api."""

from cpfl.sweeps.callback import RunProgress, SweepCallback
from cpfl.sweeps.grid import SweepGrid, default_folder
from cpfl.sweeps.runner import sweep

__all__ = ["RunProgress", "SweepCallback", "SweepGrid", "default_folder", "sweep"]
