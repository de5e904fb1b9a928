"""The command bound."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cpfl.cli import options
from cpfl.errors import CpflError, RunFolderError

if TYPE_CHECKING:
    from collections.abc import Sequence

HEADS = {
    "risk": "risk on clients",
    "half_divergence": "½ divergence",
    "joint": "λ",
    "hoeffding": "Hoeffding",
    "bound": "bound",
    "bound_in_body": "as in the body",
    "global_risk": "global model",
    "cohort_risk": "cohort models",
}


def bound(
    path: Annotated[Path, options.PathArgument(metavar="DIR", help="A finished run, or a folder of runs.")],
    delta: Annotated[float, typer.Option(help="The probability with which the bound may fail.")] = 0.05,
    divergence: Annotated[
        str,
        typer.Option(
            **options.one_of("classifier", "labels"),
            help="The distance of clients from the target; classifier: the proxy A-distance.",
        ),
    ] = "classifier",
    out: Annotated[
        Path | None,
        options.PathOption(
            "--out", "-o", help="Where to write the figure. Default: DIR if it is a folder of runs, else nowhere."
        ),
    ] = None,
    data: options.DataFolder = None,
    device: options.Device = "auto",
    as_json: options.AsJson = False,
) -> None:
    """Measure every term of the paper's Theorem 1, their sum, and the risk of the global model that it bounds.

    Example: cpfl bound runs/demo; cpfl bound runs/demo --divergence labels --delta 0.1
    """
    from cpfl.bounds import bound as measure
    from cpfl.reports import style
    from cpfl.runs.folder import check_outside

    where = out if out is not None else None if (path / "run.json").is_file() else path
    if where is not None:
        check_outside(where / "bound.svg")
        if where.exists() and not where.is_dir():
            raise RunFolderError(f"{where} is no folder: the figure needs one to lie in")
    if where is not None:
        try:
            style.converter()
        except CpflError as error:
            if out is not None:
                raise
            options.notify(f"no figure: {error}")
            where = None
    found = measure(path, delta=delta, divergence=divergence, data=data, device=device, notify=options.notify)
    figures = [] if where is None else _draw(found.rows, where)
    if as_json:
        options.show_json({**found.tree(), "figures": figures})
        return
    texts = ("settings",) if "settings" in found.rows[0] else ()
    cells = [(*(row[text] for text in texts), str(row["n"]), *(_cell(row, key) for key in HEADS)) for row in found.rows]
    several = f"; mean ± sample standard deviation over {max(row['seeds'] for row in found.rows)} seeds"
    title = f"Theorem 1: terms, their sum, and measured risks (δ = {delta:g}, divergence: {divergence}"
    title += (several if max(row["seeds"] for row in found.rows) > 1 else "") + ")"
    options.show_table(cells, texts, ("n", *HEADS.values()), title)
    vacuous = [f"n = {row['n']}" for row in found.rows if row["bound"] >= 1]
    if vacuous:
        options.say(f"vacuous, since no risk is above 1: {', '.join(dict.fromkeys(vacuous))}")
    options.say("\n".join(f"figure: {figure}" for figure in figures if figure.suffix == ".png"))


def _cell(row: dict[str, Any], key: str) -> str:
    spread = f" ± {row[f'{key}_spread']:.3f}" if row["seeds"] > 1 else ""
    return f"{row[key]:.3f}{spread}"


def _draw(rows: Sequence[dict[str, Any]], where: Path) -> list[Path]:
    """A figure for every group of runs, in every format."""
    from cpfl.reports import style
    from cpfl.reports.bound_figure import bound_figure
    from cpfl.runs import files

    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row.get("settings", ""), []).append(row)
    with files.explained(where):
        where.mkdir(parents=True, exist_ok=True)
    names = (f"bound-{number}" if len(groups) > 1 else "bound" for number in range(1, len(groups) + 1))
    return style.save_all({name: bound_figure(own) for name, own in zip(names, groups.values(), strict=True)}, where)
