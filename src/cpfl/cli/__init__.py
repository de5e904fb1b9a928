"""The command line."""

from __future__ import annotations

import sys

import typer

from cpfl.cli import data, models, runs
from cpfl.errors import CpflError

app = typer.Typer(
    name="cpfl",
    help="Cohort-Parallel Federated Learning: train cohorts side by side, distil them into one model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
runs.add_to(app)
models.add_to(app)
app.add_typer(data.app, name="data")


def main() -> None:
    """Run a command; a user's mistake ends in one sentence and exit code 2."""
    try:
        app()
    except CpflError as error:
        print(f"cpfl: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("cpfl: interrupted; what was written is kept, cpfl resume goes on with it", file=sys.stderr)
        sys.exit(130)
