"""What settings can name beside a user's own class: every built-in choice with the class behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cpfl.registry import Registry

if TYPE_CHECKING:
    from cpfl.cohorts.base import CohortAssignment
    from cpfl.distillation.objective import DistillationLoss, TeacherAggregation, TeacherWeights
    from cpfl.federation.optimizers.base import ClientOptimizer, ServerOptimizer
    from cpfl.federation.selection.base import Selection
    from cpfl.federation.stopping import StoppingRule


def _choices(key: str, package: str, base: str, built_in: dict[str, str]) -> Registry[Any]:
    """What this setting can name: subclasses of `base`, all as "module:Class" of one of our packages."""
    return Registry(key, f"cpfl.{package}.{base}", {name: f"cpfl.{package}.{path}" for name, path in built_in.items()})


SELECTIONS: Registry[Selection] = _choices(
    "federation.selection", "federation.selection", "base:Selection",
    {
        "random": "base:Random", "all": "base:All", "oort": "guided:Oort", "refl": "guided:LeastAvailable",
        "power-of-choice": "guided:PowerOfChoice",
    },
)  # fmt: skip
CLIENT_OPTIMIZERS: Registry[ClientOptimizer] = _choices(
    "federation.client", "federation.optimizers", "base:ClientOptimizer",
    {
        "sgd": "client:SGD", "adam": "client:Adam", "adamw": "client:AdamW", "fedprox": "client:FedProx",
        "scaffold": "client:Scaffold", "feddyn": "client:FedDyn",
    },
)  # fmt: skip
SERVER_OPTIMIZERS: Registry[ServerOptimizer] = _choices(
    "federation.server", "federation.optimizers", "base:ServerOptimizer",
    {
        "mean": "server:FedAvg", "fedavgm": "server:FedAvgM", "fedadagrad": "server:FedAdagrad",
        "fedadam": "server:FedAdam", "fedyogi": "server:FedYogi", "fednova": "server:FedNova",
        "median": "server:Median", "trimmed-mean": "server:TrimmedMean", "krum": "server:Krum",
    },
)  # fmt: skip
STOPPING_RULES: Registry[StoppingRule] = _choices(
    "stopping.rule", "federation", "stopping:StoppingRule",
    {
        "plateau": "stopping:Plateau", "rounds": "stopping:FixedRounds", "budget": "stopping:StoppingRule",
        "joint": "stopping:Joint",
    },
)  # fmt: skip
TEACHER_WEIGHTS: Registry[TeacherWeights] = _choices(
    "distillation.weights", "distillation", "objective:TeacherWeights",
    {"labels": "objective:Labels", "uniform": "objective:Uniform"},
)  # fmt: skip
TEACHER_AGGREGATIONS: Registry[TeacherAggregation] = _choices(
    "distillation.aggregation", "distillation", "objective:TeacherAggregation",
    {
        "probabilities": "objective:Probabilities", "logits": "objective:Logits",
        "log-probabilities": "objective:LogProbabilities",
    },
)  # fmt: skip
DISTILLATION_LOSSES: Registry[DistillationLoss] = _choices(
    "distillation.loss", "distillation", "objective:DistillationLoss",
    {"kl": "objective:KL", "mse": "objective:MSE", "l1": "objective:L1"},
)  # fmt: skip
ASSIGNMENT_RULES: Registry[CohortAssignment] = _choices(
    "assignment.rule", "cohorts", "base:CohortAssignment",
    {
        "random": "base:RandomAssignment", "speed": "optimized:BySpeed", "column": "predefined:FromColumn",
        "label-balanced": "optimized:LabelBalanced", "label-clustered": "optimized:LabelClustered",
        "multi-objective": "optimized:MultiObjective", "csv": "predefined:FromCsv",
    },
)  # fmt: skip
