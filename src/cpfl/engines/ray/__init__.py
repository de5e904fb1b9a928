"""Ray: cohorts train on the workers of a cluster; the driver keeps sessions, records and checkpoints, as ever.

Nothing here imports Ray before it is asked for: those who do not have it lose nothing.
"""

from cpfl.engines.ray.place import Place

__all__ = ["Place"]
