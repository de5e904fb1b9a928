"""Commands that show runs: list, report, dashboard."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Any

import typer

from cpfl.cli.options import (
    AsJson,
    DataFolder,
    Device,
    PathArgument,
    PathOption,
    at_once,
    console,
    notify,
    say,
    show_json,
)


def list_runs(
    folder: Annotated[Path, PathArgument(metavar="DIR", help="A folder of runs.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List the runs in a folder, finished or not, each with the students that were distilled from it later.

    Example: cpfl list runs
    """
    from cpfl.reports import tables

    rows = [{**row, "distillations": _later(Path(row["path"]))} for row in tables.overview(folder)]
    if as_json:
        show_json(rows)
    elif rows:
        console.print(tables.run_list(shown for row in rows for shown in (row, *row["distillations"])))
    else:
        say(f"there are no runs in {folder}")


def _later(path: Path) -> list[dict[str, Any]]:
    """Rows for the later distillations of a run."""
    from cpfl.reports.reading import READ_ERRORS, damage
    from cpfl.runs.folder import RunFolder
    from cpfl.runs.outcome import read_summary

    rows = []
    try:
        found_files = sorted(path.glob("distillations/*/summary.json"))
    except OSError:  # the run's own row says why it cannot be read
        found_files = []
    for file in found_files:
        row = {
            **dict.fromkeys(("cohorts", "seed", "rounds", "hours", "student_accuracy", "metric")),
            "path": str(file.parent),
        }
        try:
            found = read_summary(file, RunFolder.open(path).identity)
            rows.append({**row, **{key: found[key] for key in row.keys() & found.keys()}, "state": "distilled again"})
        except READ_ERRORS as error:
            rows.append({**row, "state": f"damaged: {damage(error)}"})
    return rows


def report(
    folders: Annotated[list[Path], PathArgument(metavar="DIR…", help="Folders with runs, or run folders.")],
    out: Annotated[Path | None, PathOption("--out", "-o", help="Where to write; else the first DIR.")] = None,
    redistill: Annotated[
        bool, typer.Option("--redistill", help="First distill finished runs at earlier moments, from their snapshots.")
    ] = False,
    max_drop: Annotated[
        float, typer.Option(help="Points of accuracy (or of another metric) to give up for speed.")
    ] = 2.0,
    max_hours: Annotated[float | None, typer.Option(help="A deadline in virtual hours, for every seed.")] = None,
    max_cpu_hours: Annotated[float | None, typer.Option(help="A budget of the clients' CPU hours.")] = None,
    max_gb: Annotated[float | None, typer.Option(help="A limit of the traffic in GB.")] = None,
    data: DataFolder = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Write report.html, which opens offline, and every figure as SVG, PDF and PNG.

    Example: cpfl report runs/demo --max-drop 1; cpfl report runs/demo --redistill
    """
    at_once(f"report {' '.join(map(str, folders))}")

    from cpfl.reports import writing
    from cpfl.reports.advice import check_limits
    from cpfl.reports.verdict import Limits
    from cpfl.sweeps.redistill import redistill as distill_again

    limits = Limits(max_drop, max_hours, max_cpu_hours, max_gb)
    check_limits(limits)
    runs = writing.runs_in(folders)
    if redistill:
        distill_again(runs, notify=notify, data=data, device=device)
    page, figures, tree = writing.report(
        *folders, out=out, max_drop=max_drop, max_hours=max_hours, max_cpu_hours=max_cpu_hours, max_gb=max_gb
    )
    if as_json:
        show_json({"page": page, "figures": figures, "advice": tree["advice"], "damaged": tree["damaged"]})
        return
    for advice in tree["advice"]:
        say((f"{advice['label']}: " if len(tree["advice"]) > 1 else "") + advice["text"])
    for damage in tree["damaged"]:
        notify(f"damaged: {damage['path']}: {damage['reason']}")
    say(f"page:    {page}\nfigures: {page.parent / 'figures'}, {len(figures)} files")


def dashboard(
    folder: Annotated[Path, PathArgument(metavar="DIR", help="A folder with runs, or a run folder.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")] = 8900,
    host: Annotated[
        str, typer.Option(help="Address to listen on; the default answers this machine only.")
    ] = "127.0.0.1",
) -> None:
    """Serve the report as a page that follows the runs while they train; Ctrl-C ends it.

    Example: cpfl dashboard runs; cpfl dashboard runs/demo --port 9000
    """
    at_once(f"dashboard {folder}")

    from cpfl.dashboard.server import Server, is_local

    with contextlib.suppress(KeyboardInterrupt), Server(folder, host, port) as server:
        server.dashboard.page()  # Vega's script takes seconds to make: not while a browser waits for it
        if not is_local(host):
            notify(f"warning: everyone who can reach {host} can read this page; there is no password")
        say(f"dashboard: {server.address} (Ctrl-C ends it)")
        server.serve_forever(poll_interval=0.5)
