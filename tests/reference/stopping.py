"""When a cohort stops, and with which model.

The method: "A moving average (window 20; shorter at the start) is taken over rounds. The cohort stops when that average
has made no new minimum for r rounds"; "The cohort's teacher is the model with the lowest moving average so far";
"A cohort where nobody can validate … has no signal: it stops after r rounds and its record says so";
"The model that is evaluated is the one that is kept".
"""

from __future__ import annotations

import math

import numpy as np

PLATEAU = "plateau"  # no new minimum for r rounds
NO_SIGNAL = "no signal"  # r rounds in which nobody ever reported
MAX_ROUNDS = "max rounds"


class Stopping:
    """The rule of one cohort; `update` takes its rounds 1, 2, … one after the other."""

    def __init__(self, patience, window, max_rounds):
        self.patience = patience
        self.window = window
        self.max_rounds = max_rounds
        self.losses = []  # of the rounds in which somebody reported
        self.moving_average = None
        self.lowest = math.inf
        self.best_round = 0
        self.candidate = None

    def update(self, round_number, loss, model):
        """`loss`: the mean loss of `model`, the cohort's new one; None where nobody reported."""
        if loss is None:
            return
        self.losses.append(loss)
        recent = self.losses[-self.window :]
        self.moving_average = sum(recent) / len(recent)
        if self.moving_average < self.lowest:
            self.lowest = self.moving_average
            self.best_round = round_number
            self.candidate = model

    def reason_to_stop(self, round_number):
        """At the end of a round: why the cohort stops here, or None if it continues."""
        if round_number - self.best_round >= self.patience:
            return PLATEAU if self.losses else NO_SIGNAL
        if round_number == self.max_rounds:
            return MAX_ROUNDS
        return None

    def teacher(self, keep, last_model):
        """The cohort's model: its best, or its last (also where there never was a best)."""
        if keep == "last" or self.candidate is None:
            return last_model
        return self.candidate


def gain_per_doubling(points, window):
    """ "A least-squares line through the last evaluations over log₂ of the work"; None for fewer than four."""
    if len(points) < 4:
        return None
    work, accuracy = zip(*points[-window:], strict=True)
    return np.polyfit(np.log2(work), accuracy, 1)[0]


def all_stop(points, min_gain, window):
    """ "When the gain per doubling is below min_gain and not above that of one phase earlier"."""
    now, before = gain_per_doubling(points, window), gain_per_doubling(points[:-1], window)
    return min_gain > 0 and now is not None and before is not None and now < min_gain and now <= before
