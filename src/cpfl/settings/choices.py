"""What settings can name: the choices of choices.toml, or a user's own class."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import TYPE_CHECKING, Any

from cpfl.registry import Registry

if TYPE_CHECKING:
    from cpfl.cohorts.base import CohortAssignment
    from cpfl.distillation.objective import DistillationLoss, TeacherAggregation, TeacherWeights
    from cpfl.federation.optimizers.base import ClientOptimizer, ServerOptimizer
    from cpfl.federation.selection.base import Selection
    from cpfl.federation.stopping import StoppingRule
    from cpfl.meetings.rules import MeetingRule
    from cpfl.objectives.base import Objective


_TABLE = tomllib.loads(resources.files("cpfl.settings").joinpath("choices.toml").read_text(encoding="utf-8"))


def _choices(key: str) -> Registry[Any]:
    return Registry(key, **_TABLE[key])


OBJECTIVES: Registry[Objective] = _choices("model.objective")
SELECTIONS: Registry[Selection] = _choices("federation.selection")
CLIENT_OPTIMIZERS: Registry[ClientOptimizer] = _choices("federation.client")
SERVER_OPTIMIZERS: Registry[ServerOptimizer] = _choices("federation.server")
STOPPING_RULES: Registry[StoppingRule] = _choices("stopping.rule")
MEETING_RULES: Registry[MeetingRule] = _choices("meetings.rule")
TEACHER_WEIGHTS: Registry[TeacherWeights] = _choices("distillation.weights")
TEACHER_AGGREGATIONS: Registry[TeacherAggregation] = _choices("distillation.aggregation")
DISTILLATION_LOSSES: Registry[DistillationLoss] = _choices("distillation.loss")
ASSIGNMENT_RULES: Registry[CohortAssignment] = _choices("assignment.rule")
