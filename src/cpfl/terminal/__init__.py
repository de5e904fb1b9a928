"""What a person sees while runs go on: a live view on a terminal, plain lines elsewhere."""

from cpfl.terminal.run_view import RunView
from cpfl.terminal.sweep_view import SweepView

__all__ = ["RunView", "SweepView"]
