"""A view on the screen: drawn twice a second on a terminal and in a notebook, plain lines elsewhere."""

import time
from collections.abc import Sequence
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from cpfl.errors import printable
from cpfl.terminal.notebook import Notebook

REFRESH = 2  # times a second
WIDE = 100  # columns from which there is space for longer bars and words


class LiveView:
    """A view that a `with` statement keeps on the screen. It draws at once, so call this last in a constructor."""

    quiet_seconds = 10.0  # between plain lines, where there is no terminal

    def __init__(self, console: Console) -> None:
        self._console = console
        self._unicode = console.options.encoding.startswith("utf")
        self._last_line = time.monotonic()
        refresh: dict[str, Any] = {"refresh_per_second": REFRESH, "transient": True, "vertical_overflow": "crop"}
        self._live = Live(console=console, get_renderable=self._draw, **refresh)
        self._notebook: Notebook | None = None

    def __enter__(self) -> Self:
        if self._console.is_jupyter:
            self._notebook = Notebook(1 / REFRESH)
        elif self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        if self._notebook is not None:
            self._notebook.show(self._draw)

    def _is_live(self) -> bool:
        return self._live.is_started or self._notebook is not None

    def _changed(self) -> None:
        """A notebook has no thread that draws: it is drawn when something has happened."""
        if self._notebook is not None and self._notebook.is_due():
            self._notebook.show(self._draw)

    def on_message(self, text: str) -> None:
        """Print a line."""
        self._console.print(printable(text), highlight=False, markup=False, soft_wrap=not self._live.is_started)

    def _draw(self) -> Text:
        """All lines, truncated and not wrapped: a line too many would push the view up the screen."""
        lines = [line if isinstance(line, Text) else Text(printable(line)) for line in self._lines()]
        for line in lines:
            line.truncate(self._console.width - 1)
        return Text("\n").join(lines)

    def _lines(self) -> Sequence[Text | str]:
        raise NotImplementedError

    def _line_due(self) -> bool:
        """Whether it is time for another plain line; never while there is a live view."""
        now = time.monotonic()
        due = not self._is_live() and now - self._last_line > self.quiet_seconds
        if due:
            self._last_line = now
        return due

    def _flow(self, head: str, facts: Sequence[str], indent: int) -> list[str]:
        """Facts after a head, on as many lines as the screen is narrow."""
        lines, room = [head], self._console.width - 1
        for number, fact in enumerate(filter(None, facts)):
            longer = f"{lines[-1]}{' · ' if number and lines[-1].strip() else ''}{fact}"
            if number and len(longer) > room:
                lines.append(" " * indent + fact)
            else:
                lines[-1] = longer
        return lines

    def _bar(self, share: float) -> str:
        size = 24 if self._console.width >= WIDE else 12
        full = round(share * size)
        done, open_ = ("━", "·") if self._unicode else ("#", ".")
        return done * full + open_ * (size - full)
