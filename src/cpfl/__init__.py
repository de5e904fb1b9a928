"""Cohort-Parallel Federated Learning: train cohorts side by side, distil them into one model."""

from cpfl.api import Run, distill, load_run, resume, run
from cpfl.cohorts.own_plan import PlanPart
from cpfl.engines.base import Engine
from cpfl.errors import CpflError
from cpfl.experiment import Experiment
from cpfl.experiment_file import load as load_experiment
from cpfl.export import export
from cpfl.federation.local_part import LocalPart
from cpfl.federation.selection import Selection
from cpfl.federation.server_part import ServerPart
from cpfl.method import Watcher
from cpfl.report import report
from cpfl.study import study
from cpfl.sweep import sweep

__all__ = [
    "CpflError",
    "Engine",
    "Experiment",
    "LocalPart",
    "PlanPart",
    "Run",
    "Selection",
    "ServerPart",
    "Watcher",
    "distill",
    "export",
    "load_experiment",
    "load_run",
    "report",
    "resume",
    "run",
    "study",
    "sweep",
]
