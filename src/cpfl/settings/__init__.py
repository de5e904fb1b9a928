"""Settings of an experiment: each section beside its checks, every setting documented where it is declared.

What a setting does lives in the package that it configures; nothing here imports torch.
"""

from cpfl.settings.distillation import RECIPES, Distillation
from cpfl.settings.experiment import GIVEN, Experiment
from cpfl.settings.meetings import Meetings
from cpfl.settings.sections import Assignment, Data, Devices, Federation, Model, Privacy, Stopping

__all__ = [
    "GIVEN", "RECIPES", "Assignment", "Data", "Devices", "Distillation", "Experiment", "Federation", "Meetings",
    "Model", "Privacy", "Stopping",
]  # fmt: skip
