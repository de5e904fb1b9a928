"""Text in the output of a notebook's cell that is replaced as it changes. It needs no widgets."""

import time
from collections.abc import Callable
from html import escape

from rich.text import Text


class Notebook:
    """One output of a cell, shown again at most every so many seconds."""

    def __init__(self, seconds: float) -> None:
        from IPython.display import display  # there is one in every notebook

        self._seconds, self._shown = seconds, 0.0
        self._output = display({"text/plain": ""}, raw=True, display_id=True)

    def is_due(self) -> bool:
        """Whether it was shown long enough ago."""
        return time.monotonic() - self._shown >= self._seconds

    def show(self, draw: Callable[[], Text]) -> None:
        """Replace what is shown."""
        self._shown = time.monotonic()
        lines = draw().plain
        page = f'<pre style="line-height: 1.2">{escape(lines)}</pre>'
        self._output.update({"text/plain": lines, "text/html": page}, raw=True)
