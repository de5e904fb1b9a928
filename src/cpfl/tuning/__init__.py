"""Tune: which settings suit a fleet, a deadline and a budget. Trials train as runs of a sweep; Optuna proposes them."""

from cpfl.tuning.result import TuneResult, read
from cpfl.tuning.start import resume, tune

__all__ = ["TuneResult", "read", "resume", "tune"]
