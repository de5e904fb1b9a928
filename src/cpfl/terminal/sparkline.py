"""A curve in one line of text, and the little memory that it needs."""

from __future__ import annotations

import itertools

LEVELS = "▁▂▃▄▅▆▇█"
PLAIN_LEVELS = "_.-=+*%#"  # where the terminal knows no Unicode
LONGEST = 128


class Curve:
    """A series of any length in bounded memory: when it gets long, neighbours are averaged."""

    def __init__(self) -> None:
        self._values: list[float] = []
        self._each = 1  # numbers in one value
        self._sum, self._count = 0.0, 0

    def add(self, number: float) -> None:
        """One more, in constant time over the long run."""
        self._sum += number
        self._count += 1
        if self._count < self._each:
            return
        self._values.append(self._sum / self._count)
        if len(self._values) == LONGEST:  # a new list: another thread may be drawing the old one
            self._values = [(a + b) / 2 for a, b in zip(self._values[::2], self._values[1::2], strict=True)]
            self._each *= 2
        self._sum, self._count = 0.0, 0

    def line(self, width: int, levels: str = LEVELS) -> str:
        """The whole course, from its lowest to its highest value, in at most so many characters."""
        values = self._values[:]
        if not values:
            return ""
        if len(values) > width:
            edges = [len(values) * k // width for k in range(width + 1)]
            values = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
        low, high = min(values), max(values)
        scale = (len(levels) - 1) / (high - low) if high > low else 0.0
        return "".join(levels[round((value - low) * scale)] for value in values)
