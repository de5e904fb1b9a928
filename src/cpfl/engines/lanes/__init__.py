"""The engine for GPUs: many clients of all cohorts train at once, and one step advances them all."""

from cpfl.engines.lanes.engine import LaneEngine
from cpfl.engines.lanes.probe import why_not_lanes

__all__ = ["LaneEngine", "why_not_lanes"]
