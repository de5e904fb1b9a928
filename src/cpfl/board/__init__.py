"""A page that shows runs while they go on: follows their folders, and serves the report kept fresh. Writes nothing."""

from cpfl.board.server import serve

__all__ = ["serve"]
