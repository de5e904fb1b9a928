"""The command line."""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import click
import typer

from cpfl.cli import bench, board, data, deploy, models, plan, report, runs
from cpfl.errors import CpflError
from cpfl.runs.folder import versions

INTERRUPTED = 130
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
plan.add_to(app)
models.add_to(app)
bench.add_to(app)
report.add_to(app)
board.add_to(app)
app.add_typer(data.app, name="data")
app.add_typer(deploy.app, name="deploy")


def main() -> None:
    """Run a command; a user's mistake ends in one sentence and exit code 2."""
    sys.path.append(os.getcwd())  # where a user's own `module:Class` lies; last, so that it hides nothing
    try:
        code = app(standalone_mode=False)
    except CpflError as error:
        _end(str(error), 2)
    except click.ClickException as error:
        told = error.format_message().replace(" (env var: 'None')", "")  # click's, where there is none
        _end(f"{told} See cpfl --help", error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    if code == INTERRUPTED:  # typer turns Ctrl-C into this code and says nothing
        _end("interrupted; what was written is kept: cpfl list shows it, cpfl resume DIR goes on with it", INTERRUPTED)
    sys.exit(code)


def _end(sentence: str, code: int) -> NoReturn:
    print(f"cpfl: {sentence}", file=sys.stderr)
    sys.exit(code)
