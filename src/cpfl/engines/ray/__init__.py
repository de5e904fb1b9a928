"""The engine of a Ray cluster: workers train whole cohorts, the driver keeps sessions, records and checkpoints.

Importing this package does not import Ray.
"""

from cpfl.engines.ray.config import ClusterConfig

__all__ = ["ClusterConfig"]
