"""The command line."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from cpfl.cli import data, models, runs
from cpfl.errors import CpflError
from cpfl.runs.folder import versions

app = typer.Typer(
    name="cpfl",
    no_args_is_help=True,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.callback()
def program(
    version: Annotated[bool, typer.Option("--version", help="Show the version.", is_eager=True)] = False,
) -> None:
    """Cohort-Parallel Federated Learning: train cohorts side by side, distil them into one model."""
    if version:
        print(f"cpfl {versions()['cpfl']}")
        raise typer.Exit


runs.add_to(app)
models.add_to(app)
app.add_typer(data.app, name="data")


def main() -> None:
    """Run a command; a user's mistake ends in one sentence and exit code 2."""
    sys.path.append(os.getcwd())  # where a user's own `module:Class` lies; last, so that it hides nothing
    try:
        app()
    except CpflError as error:
        print(f"cpfl: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("cpfl: interrupted; what was written is kept, cpfl resume goes on with it", file=sys.stderr)
        sys.exit(130)
