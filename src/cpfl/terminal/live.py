"""What is drawn again and again while something goes on; nothing where there is no terminal."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from rich.console import Console, RenderableType
from rich.live import Live

REFRESH = 2  # times a second


class LiveView:
    """A view that a `with` statement keeps on the screen. It draws at once, so call this last when making one."""

    def __init__(self, console: Console, draw: Callable[[], RenderableType], **options: Any) -> None:
        self._console = console
        self._live = Live(
            console=console, get_renderable=draw, refresh_per_second=REFRESH, transient=True, **options
        )  # fmt: skip

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
