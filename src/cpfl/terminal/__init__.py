"""What a user sees in a terminal: a live view of a run or a sweep, plain lines where there is no terminal."""

from cpfl.terminal.views import RunView, SweepView

__all__ = ["RunView", "SweepView"]
