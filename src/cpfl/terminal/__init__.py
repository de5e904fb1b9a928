"""What a user sees in a terminal: a live view of a run or a sweep, plain lines where there is no terminal."""

from cpfl.terminal.sweep_view import SweepView
from cpfl.terminal.views import RunView

__all__ = ["RunView", "SweepView"]
