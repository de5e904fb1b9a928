"""Commands for a real fleet on Flower: new, local, node."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from cpfl.cli.options import AsJson, PathArgument, PathOption, Settings, notify, say
from cpfl.errors import CpflError

app = typer.Typer(no_args_is_help=True, help=r"A real fleet on Flower: pip install 'cpfl\[flower]'.")
ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": list[str]()}


@app.command()
def new(
    path: Annotated[Path, PathArgument(metavar="DIR", help="A new folder for the app.")],
) -> None:
    """Write a short app to start from: your model, your data, the experiment.

    Example: cpfl deploy new fleet
    """
    _needs_flower()
    from cpfl.deploy.local_fleet import new_app

    made = new_app(path)
    say(f"{made}/app.py is the app; try it with: cpfl deploy local {made}")


@app.command()
def local(
    folder: Annotated[Path | None, PathArgument(metavar="[APP]", help="The app. Default: the template.")] = None,
    nodes: Annotated[int, typer.Option(min=1, max=64, help="Number of nodes, one client each.")] = 8,
    cohorts: Annotated[int, typer.Option("--cohorts", "-n", min=1, help="Number of cohorts, n.")] = 2,
    out: Annotated[Path | None, PathOption("--out", "-o", help="The run folder. Default: a new one in runs/.")] = None,
    settings: Settings = None,
    keep: Annotated[Path | None, PathOption(help="Keep certificates, keys and logs in this new folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run an app on this machine: a SuperLink and nodes with TLS and keys on localhost, stopped at the end.

    Example: cpfl deploy local --nodes 8 --cohorts 2
    """
    _needs_flower()
    from cpfl import api
    from cpfl.cli.runs import show
    from cpfl.deploy.local_fleet import run_locally
    from cpfl.runs.folder import RunFolder
    from cpfl.settings import experiment_file

    if cohorts > nodes:
        raise CpflError(f"--cohorts {cohorts} is more than --nodes {nodes}: 1 to {nodes}")
    if keep is not None and keep.exists():
        raise CpflError(f"--keep {keep} exists: choose another name")
    words = settings or []
    if any(" " in word for word in words):
        raise CpflError("--set takes no spaces here: Flower passes settings on as words")
    named = {"name": "fleet", "clients": nodes, "cohorts": cohorts}
    path = out or api.RUNS / api.new_name(experiment_file.load("digits", settings=named))
    RunFolder.check_free(path)

    show_message = notify if as_json else say
    finished = api.load_run(run_locally(folder, nodes, cohorts, path, " ".join(words), keep, show_message))
    show(finished.summary, finished.path, as_json)


@app.command(context_settings=ANYTHING)
def node(context: typer.Context) -> None:
    """Run flower-supernode with cpfl imported in advance and no sleep during a run. Takes flower-supernode's options.

    Example: cpfl deploy node --superlink server:9092 --root-certificates ca.crt
    """
    _needs_flower()
    from cpfl.deploy.prefork import run_supernode

    sys.argv = ["flower-supernode", *context.args]
    run_supernode()


def _needs_flower() -> None:
    try:
        import flwr  # noqa: F401
    except ImportError:
        raise CpflError("cpfl deploy needs Flower: pip install 'cpfl[flower]'") from None
