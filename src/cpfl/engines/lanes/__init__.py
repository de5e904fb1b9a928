"""The engine for GPUs: many clients of all cohorts train at once, and one step advances them all."""

from cpfl.engines.lanes.engine import LaneEngine

__all__ = ["LaneEngine"]
