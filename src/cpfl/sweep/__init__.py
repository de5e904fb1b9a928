"""One experiment over many n, seeds and other settings: a run for each, in one folder, several at a time if wanted."""

from cpfl.sweep.going import SweepWatcher, sweep
from cpfl.sweep.plan import Plan, default_folder

__all__ = ["Plan", "SweepWatcher", "default_folder", "sweep"]
