"""What a user sees of a run: a live view in a terminal or a notebook, plain lines elsewhere."""

from cpfl.terminal.views import RunView, following

__all__ = ["RunView", "following"]
