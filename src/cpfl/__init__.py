"""Cohort-Parallel Federated Learning: train cohorts side by side, distill them into one model.

The public names live in other modules. Each module is imported when its name is first used: `import cpfl` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cpfl.api import distill, load_run, resume, run
    from cpfl.bounds import bound
    from cpfl.callbacks import Callback
    from cpfl.cohorts.base import CohortAssignment
    from cpfl.data.embedded import load_digits
    from cpfl.distillation.objective import DistillationLoss, TeacherAggregation, TeacherWeights
    from cpfl.engines.base import Engine
    from cpfl.engines.ray import ClusterConfig
    from cpfl.errors import (
        ChangedError,
        ClusterError,
        CpflError,
        DamagedError,
        DataError,
        DivergedError,
        MissingError,
        ModelError,
        PrivacyError,
        RunFolderError,
        SettingError,
        StalledError,
        SweepError,
    )
    from cpfl.federation.optimizers.base import ClientOptimizer, ServerOptimizer
    from cpfl.federation.selection.base import Selection
    from cpfl.federation.stopping import StoppingRule
    from cpfl.inference.global_model import export
    from cpfl.inference.run import Run
    from cpfl.meetings.rules import Contribution, MeetingRule
    from cpfl.objectives.base import Objective
    from cpfl.reports import report
    from cpfl.settings import Experiment
    from cpfl.settings.experiment_file import load as load_experiment
    from cpfl.sweeps import sweep
    from cpfl.sweeps.callback import SweepCallback
    from cpfl.sweeps.redistill import redistill
    from cpfl.tuning import TuneResult, tune

    __version__: str

__all__ = [
    "Callback", "ChangedError", "ClientOptimizer", "ClusterConfig", "ClusterError", "CohortAssignment", "Contribution",
    "CpflError", "DamagedError", "DataError", "DistillationLoss", "DivergedError", "Engine", "Experiment",
    "MeetingRule", "MissingError", "ModelError", "Objective", "PrivacyError", "Run", "RunFolderError", "Selection",
    "ServerOptimizer", "SettingError", "StalledError", "StoppingRule", "SweepCallback", "SweepError",
    "TeacherAggregation", "TeacherWeights", "TuneResult", "__version__", "bound", "distill", "export", "load_digits",
    "load_experiment", "load_run", "redistill", "report", "resume", "run", "sweep", "tune",
]  # fmt: skip
_NAMES = {
    "cpfl.api": ("distill", "load_run", "resume", "run"),
    "cpfl.bounds": ("bound",),
    "cpfl.callbacks": ("Callback",),
    "cpfl.cohorts.base": ("CohortAssignment",),
    "cpfl.data.embedded": ("load_digits",),
    "cpfl.distillation.objective": ("DistillationLoss", "TeacherAggregation", "TeacherWeights"),
    "cpfl.engines.base": ("Engine",),
    "cpfl.engines.ray": ("ClusterConfig",),
    "cpfl.errors": (
        "ChangedError", "ClusterError", "CpflError", "DamagedError", "DataError", "DivergedError", "MissingError",
        "ModelError", "PrivacyError", "RunFolderError", "SettingError", "StalledError", "SweepError",
    ),
    "cpfl.federation.optimizers.base": ("ClientOptimizer", "ServerOptimizer"),
    "cpfl.federation.selection.base": ("Selection",),
    "cpfl.federation.stopping": ("StoppingRule",),
    "cpfl.inference.global_model": ("export",),
    "cpfl.inference.run": ("Run",),
    "cpfl.meetings.rules": ("Contribution", "MeetingRule"),
    "cpfl.objectives.base": ("Objective",),
    "cpfl.sweeps.callback": ("SweepCallback",),
    "cpfl.sweeps.redistill": ("redistill",),
    "cpfl.reports": ("report",),
    "cpfl.settings": ("Experiment",),
    "cpfl.settings.experiment_file": ("load_experiment",),
    "cpfl.sweeps": ("sweep",),
    "cpfl.tuning": ("TuneResult", "tune"),
}  # fmt: skip
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name not in _MODULES:
        raise AttributeError(f"module 'cpfl' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), "load" if name == "load_experiment" else name)
    globals()[name] = value
    return value


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("cpfl")
    except metadata.PackageNotFoundError:
        return "0+source"


def __dir__() -> list[str]:
    return __all__
