"""The engine for CPUs: clients train on all cores of a machine, in a process each."""

from cpfl.engines.workers.engine import WorkerEngine

__all__ = ["WorkerEngine"]
