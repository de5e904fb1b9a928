"""Workers: clients train on all cores of a machine, a process each."""

from cpfl.engines.workers.engine import WorkerEngine

__all__ = ["WorkerEngine"]
