"""Theorem 1 of the paper, measured: its terms on finished runs, their sum, and the risk that the sum bounds.

Nothing here trains a run or writes into one. Axes: S samples, J counted items of a sample, N cohorts, C classes.
"""

from cpfl.bounds.runs import Bounds, bound

__all__ = ["Bounds", "bound"]
