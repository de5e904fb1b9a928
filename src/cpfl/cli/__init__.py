"""The command line: options, help texts and what is printed. What a command does is in the library."""

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Annotated, NoReturn

import click
import typer

import cpfl
from cpfl.cli import bound, data, deploy, experiment, machine, report, runs, streams, sweeps, tune
from cpfl.errors import CpflError, one_sentence

INTERRUPTED = 130
app = typer.Typer(
    name="cpfl",
    no_args_is_help=True,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def program(
    version: Annotated[bool, typer.Option("--version", "-V", help="Show the version.", is_eager=True)] = False,
) -> None:
    """Cohort-Parallel Federated Learning: train cohorts side by side, distill them into one model."""
    if version:
        print(f"cpfl {cpfl.__version__}")
        raise typer.Exit


# A command imports what it needs when it is called: help and mistyped options must answer at once.
COMMANDS: dict[str, Callable[..., None]] = {
    "run": runs.run,
    "sweep": sweeps.sweep,
    "tune": tune.tune,
    "resume": runs.resume,
    "distill": runs.distill,
    "list": report.list_runs,
    "presets": experiment.presets,
    "settings": experiment.settings,
    "cohorts": experiment.cohorts,
    "export": runs.export,
    "predict": runs.predict,
    "doctor": machine.doctor,
    "bench": machine.bench,
    "report": report.report,
    "dashboard": report.dashboard,
    "bound": bound.bound,
}
for name, command in COMMANDS.items():
    app.command(name)(command)
app.add_typer(data.app, name="data")
app.add_typer(deploy.app, name="deploy")


def main() -> None:
    """Run a command; a user's mistake ends in one sentence and exit code 2."""
    with contextlib.suppress(FileNotFoundError):  # the folder was deleted
        sys.path.append(os.getcwd())  # for the user's own `module:Class`; last, so that it hides nothing
    streams.prepare()
    try:
        code = app(prog_name="cpfl", standalone_mode=False)
        streams.flush()
    except CpflError as error:
        _end(str(error), 2)
    except click.ClickException as error:
        message = error.format_message().replace(" (env var: 'None')", "")  # click adds this where there is none
        if message:
            command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "cpfl"
            _end(f"{message}{'' if message.endswith(('.', '?')) else '.'} See {command} --help", error.exit_code)
        code = error.exit_code  # no command was given: its help has been printed
    except (click.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except BrokenPipeError:  # as in cpfl list | head -1: nobody reads any more
        code = streams.CLOSED
    except OSError as error:
        sentence = streams.explain(error)
        if sentence is None:
            raise
        _end(sentence, 2)
    if code == INTERRUPTED:  # typer turns Ctrl-C into this code and prints nothing
        _end("interrupted; what was written is kept: cpfl list shows it, cpfl resume DIR continues it", INTERRUPTED)
    streams.discard()
    sys.exit(code)


def _end(sentence: str, code: int) -> NoReturn:
    with contextlib.suppress(OSError):  # standard error may be closed or full, too
        print(f"cpfl: {one_sentence(sentence)}", file=sys.stderr)
    streams.discard()
    sys.exit(code)
