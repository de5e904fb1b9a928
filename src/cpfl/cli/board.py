"""The command that looks at runs while they go on: board."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cpfl.cli.options import console, notes

if TYPE_CHECKING:
    from cpfl.board.server import Server

PORT = 8900


def add_to(app: typer.Typer) -> None:
    """Put the command into the program."""
    app.command()(board)


def board(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder with runs, or a run folder.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen; 0: any port that is free.")] = PORT,
    host: Annotated[
        str, typer.Option(help="Address to listen at; the usual one answers this machine only.")
    ] = "127.0.0.1",
) -> None:
    """Serve the report as a page that follows the runs as they go on; Ctrl-C ends it.

    Example: cpfl board runs; cpfl board runs/demo --port 9000
    """
    from cpfl.board.server import local, serve  # drawing takes half a second to import

    def ready(server: Server) -> None:
        if not local(host):
            notes.print(
                f"warning: everyone who can reach {host} can read this page; there is no password", soft_wrap=True
            )
        console.print(f"board: {server.address} (Ctrl-C ends it)", highlight=False, soft_wrap=True, markup=False)

    serve(folder, host, port, ready)
