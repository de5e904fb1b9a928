"""When a cohort stops, and with which model.

METHOD.md: "A moving average (window 20; shorter at the start) is taken over rounds. The cohort stops when that average
has made no new minimum for r rounds"; "The cohort's teacher is the model with the lowest moving average so far";
"A cohort where nobody can validate … has no signal: it stops after r rounds and its record says so";
"The judged model is the one that is kept".
"""

from __future__ import annotations

import math

PLATEAU = "plateau"  # no new minimum for r rounds
NO_SIGNAL = "no signal"  # r rounds in which nobody ever reported
MAX_ROUNDS = "max rounds"


class Stopping:
    """The rule of one cohort, told about its rounds 1, 2, … one after the other."""

    def __init__(self, patience, window, max_rounds):
        self.patience = patience
        self.window = window
        self.max_rounds = max_rounds
        self.values = []  # of the rounds in which somebody reported
        self.average = None
        self.lowest = math.inf
        self.best_round = 0
        self.candidate = None

    def judge(self, round_number, value, model):
        """`value`: the mean loss of `model`, the cohort's new one; None where nobody reported."""
        if value is None:
            return
        self.values.append(value)
        recent = self.values[-self.window :]
        self.average = sum(recent) / len(recent)
        if self.average < self.lowest:
            self.lowest = self.average
            self.best_round = round_number
            self.candidate = model

    def reason_to_stop(self, round_number):
        """At the end of a round: why the cohort stops here, or None if it goes on."""
        if round_number - self.best_round >= self.patience:
            return PLATEAU if self.values else NO_SIGNAL
        if round_number == self.max_rounds:
            return MAX_ROUNDS
        return None

    def teacher(self, keep, last_model):
        """The model the cohort hands in: its best, or its last (also where there never was a best)."""
        if keep == "last" or self.candidate is None:
            return last_model
        return self.candidate
