"""The parts that live views share: drawing twice a second, plain lines elsewhere, bars and curves of text."""

import itertools
import time
from collections.abc import Callable
from typing import Any, Self

from rich.console import Console, RenderableType
from rich.live import Live

REFRESH = 2  # times a second
LEVELS = "▁▂▃▄▅▆▇█"
PLAIN_LEVELS = "_.-=+*%#"  # where the terminal knows no Unicode
LONGEST = 128


class LiveView:
    """A view that a `with` statement keeps on the screen. It draws at once, so call this last in a constructor."""

    quiet_seconds = 10.0  # between plain lines, where there is no terminal

    def __init__(self, console: Console, draw: Callable[[], RenderableType], **options: Any) -> None:
        self._console = console
        self._unicode = console.options.encoding.startswith("utf")
        self._last_line = time.monotonic()
        refresh: dict[str, Any] = {"refresh_per_second": REFRESH, "transient": True}
        self._live = Live(console=console, get_renderable=draw, **refresh, **options)

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def on_message(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=not self._live.is_started)

    def _line_due(self) -> bool:
        """Whether it is time for another plain line; never while there is a live view."""
        now = time.monotonic()
        due = not self._live.is_started and now - self._last_line > self.quiet_seconds
        if due:
            self._last_line = now
        return due

    def _bar(self, share: float) -> str:
        size = 24 if self._console.width >= 100 else 12
        full = round(share * size)
        done, open_ = ("━", "·") if self._unicode else ("#", ".")
        return done * full + open_ * (size - full)


class Curve:
    """A series of any length in bounded memory: when it gets long, neighbours are averaged."""

    def __init__(self) -> None:
        self._values: list[float] = []
        self._each = 1  # numbers in one value
        self._sum, self._count = 0.0, 0

    def add(self, number: float) -> None:
        """Append a number, in constant time on average."""
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
        """The whole curve, scaled from its lowest to its highest value, in at most so many characters."""
        values = self._values[:]
        if not values:
            return ""
        if len(values) > width:
            edges = [len(values) * k // width for k in range(width + 1)]
            values = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
        low, high = min(values), max(values)
        scale = (len(levels) - 1) / (high - low) if high > low else 0.0
        return "".join(levels[round((value - low) * scale)] for value in values)
