"""The command that shows runs while they train: dashboard."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cpfl.cli.options import console, notes

if TYPE_CHECKING:
    from cpfl.dashboard.server import Server


def dashboard(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder with runs, or a run folder.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")] = 8900,
    host: Annotated[
        str, typer.Option(help="Address to listen on; the default answers this machine only.")
    ] = "127.0.0.1",
) -> None:
    """Serve the report as a page that follows the runs while they train; Ctrl-C ends it.

    Example: cpfl dashboard runs; cpfl dashboard runs/demo --port 9000
    """
    from cpfl.dashboard.server import is_local, serve  # Altair takes half a second to import

    def ready(server: Server) -> None:
        if not is_local(host):
            notes.print(
                f"warning: everyone who can reach {host} can read this page; there is no password", soft_wrap=True
            )
        console.print(f"dashboard: {server.address} (Ctrl-C ends it)", highlight=False, soft_wrap=True, markup=False)

    serve(folder, host, port, ready)
