"""Tune: which settings suit a fleet, a deadline and a budget. Trials train as runs of a sweep; Optuna proposes them."""

from cpfl.tune.result import TuneResult, read
from cpfl.tune.tuner import tune

__all__ = ["TuneResult", "read", "tune"]
