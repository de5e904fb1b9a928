"""Settings of an experiment: each section beside its checks, every setting documented where it is declared.

What a setting does lives in the package that it configures; nothing here imports torch.
"""

from cpfl.settings.assignment import Assignment
from cpfl.settings.data import Data
from cpfl.settings.devices import Devices
from cpfl.settings.distillation import RECIPES, Distillation
from cpfl.settings.experiment import GIVEN, Experiment
from cpfl.settings.federation import Federation
from cpfl.settings.model import Model
from cpfl.settings.privacy import Privacy
from cpfl.settings.stopping import Stopping

__all__ = [
    "GIVEN",
    "RECIPES",
    "Assignment",
    "Data",
    "Devices",
    "Distillation",
    "Experiment",
    "Federation",
    "Model",
    "Privacy",
    "Stopping",
]
