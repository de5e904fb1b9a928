"""What settings can name beside a user's own class: every built-in choice with the class behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpfl.registry import Registry

if TYPE_CHECKING:
    from cpfl.cohorts.base import CohortAssignment
    from cpfl.distillation.aggregation import TeacherAggregation
    from cpfl.distillation.losses import DistillationLoss
    from cpfl.distillation.weights import TeacherWeights
    from cpfl.federation.optimizers.base import ClientOptimizer, ServerOptimizer
    from cpfl.federation.selection.base import Selection
    from cpfl.federation.stopping import StoppingRule

_SELECTION, _OPTIMIZERS = "cpfl.federation.selection", "cpfl.federation.optimizers"
_STOPPING, _DISTILLATION, _COHORTS = "cpfl.federation.stopping", "cpfl.distillation", "cpfl.cohorts"

SELECTIONS: Registry[Selection] = Registry(
    "federation.selection",
    f"{_SELECTION}.base:Selection",
    {
        "random": f"{_SELECTION}.base:Random",
        "all": f"{_SELECTION}.base:All",
        "oort": f"{_SELECTION}.guided:Oort",
        "refl": f"{_SELECTION}.guided:LeastAvailable",
        "power-of-choice": f"{_SELECTION}.guided:PowerOfChoice",
    },
)
_CLIENTS = {
    "sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "fedprox": "FedProx", "scaffold": "Scaffold", "feddyn": "FedDyn"
}  # fmt: skip
CLIENT_OPTIMIZERS: Registry[ClientOptimizer] = Registry(
    "federation.client",
    f"{_OPTIMIZERS}.base:ClientOptimizer",
    {name: f"{_OPTIMIZERS}.client:{kind}" for name, kind in _CLIENTS.items()},
)
_SERVERS = {
    "mean": "FedAvg", "fedavgm": "FedAvgM", "fedadagrad": "FedAdagrad", "fedadam": "FedAdam", "fedyogi": "FedYogi",
    "fednova": "FedNova", "median": "Median", "trimmed-mean": "TrimmedMean", "krum": "Krum",
}  # fmt: skip
SERVER_OPTIMIZERS: Registry[ServerOptimizer] = Registry(
    "federation.server",
    f"{_OPTIMIZERS}.base:ServerOptimizer",
    {name: f"{_OPTIMIZERS}.server:{kind}" for name, kind in _SERVERS.items()},
)
STOPPING_RULES: Registry[StoppingRule] = Registry(
    "stopping.rule",
    f"{_STOPPING}:StoppingRule",
    {
        "plateau": f"{_STOPPING}:Plateau",
        "rounds": f"{_STOPPING}:FixedRounds",
        "budget": f"{_STOPPING}:StoppingRule",
        "joint": f"{_STOPPING}:Joint",
    },
)
TEACHER_WEIGHTS: Registry[TeacherWeights] = Registry(
    "distillation.weights",
    f"{_DISTILLATION}.weights:TeacherWeights",
    {"labels": f"{_DISTILLATION}.weights:Labels", "uniform": f"{_DISTILLATION}.weights:Uniform"},
)
_AGGREGATIONS = {"probabilities": "Probabilities", "logits": "Logits", "log-probabilities": "LogProbabilities"}
TEACHER_AGGREGATIONS: Registry[TeacherAggregation] = Registry(
    "distillation.aggregation",
    f"{_DISTILLATION}.aggregation:TeacherAggregation",
    {name: f"{_DISTILLATION}.aggregation:{kind}" for name, kind in _AGGREGATIONS.items()},
)
DISTILLATION_LOSSES: Registry[DistillationLoss] = Registry(
    "distillation.loss",
    f"{_DISTILLATION}.losses:DistillationLoss",
    {name: f"{_DISTILLATION}.losses:{name.upper()}" for name in ("kl", "mse", "l1")},
)
ASSIGNMENT_RULES: Registry[CohortAssignment] = Registry(
    "assignment.rule",
    f"{_COHORTS}.base:CohortAssignment",
    {
        "random": f"{_COHORTS}.base:RandomAssignment",
        "speed": f"{_COHORTS}.optimized:BySpeed",
        "column": f"{_COHORTS}.predefined:FromColumn",
        "label-balanced": f"{_COHORTS}.optimized:LabelBalanced",
        "label-clustered": f"{_COHORTS}.optimized:LabelClustered",
        "multi-objective": f"{_COHORTS}.optimized:MultiObjective",
        "csv": f"{_COHORTS}.predefined:FromCsv",
    },
)
