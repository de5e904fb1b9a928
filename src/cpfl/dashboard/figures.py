"""The figures of the live part: loss curves of the cohorts of a run, with its meetings, and runs side by side.

A run has the same colour in both, in its tile and in the table, and keeps it while others begin and end.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from cpfl.dashboard.follow import Followed
from cpfl.reports import style
from cpfl.reports.cohort_figures import FAINT, FEWEST, POINTS, short, side_by_side, thinned
from cpfl.reports.content import Tree, figure, with_rows
from cpfl.reports.style import GREY, Spec, field, mark, only

CURVES = 400  # in one figure, all runs together
COMPARED = 8  # runs side by side: as many as there are colours


class Colours:
    """A colour for every run that is drawn."""

    def __init__(self) -> None:
        self._of: dict[str, str] = {}

    def of(self, drawn: Sequence[str]) -> Mapping[str, str]:
        """Runs that had a colour keep it; others get those that are free, or from the first again."""
        self._of = {name: self._of[name] for name in drawn if name in self._of}
        for name in drawn:
            if name not in self._of:
                used = Counter(self._of.values())
                self._of[name] = min(style.PALETTE, key=lambda colour: used[colour])
        return self._of


def drawn_live(active: Sequence[Followed]) -> list[Followed]:
    """Unfinished runs that have curves, as many as fit into one figure, but at least one."""
    chosen: list[Followed] = []
    curves = 0
    for run in (run for run in active if any(history.curve for history in run.histories)):
        curves += len(run.histories)
        if chosen and curves > CURVES:
            break
        chosen.append(run)
    return chosen


def live_figures(runs: Sequence[Followed], active: Sequence[Followed], colours: Mapping[str, str]) -> list[Tree]:
    """The figures that have something to show; `runs` with the latest first."""
    made, drawn = [], drawn_live(active)
    if drawn:
        made.append(figure("live-curves", _curves(drawn, colours), meetings=_told(drawn)))
    compared = {run.name: run.histories for run in runs[:COMPARED]}
    if active and len(compared) > 1:
        made.append(figure("live-runs", side_by_side(compared, [colours[name] for name in compared])))
    return with_rows(made)


def _told(runs: Sequence[Followed]) -> str:
    """What the caption says of meetings."""
    return ", and a dashed line at every meeting" if any(run.meetings for run in runs) else ""


def _curves(runs: Sequence[Followed], colours: Mapping[str, str]) -> Spec:
    """Validation loss of every cohort of one run at a time, a dot where it stopped, a dashed line at every meeting."""
    names = [run.name for run in runs]
    menu = [{"input": "select", "options": names, "name": "run = "}] if len(runs) > 1 else []
    shown = [only("datum.run == which_run")] * len(menu)
    axes, tooltip = style.channels("live-curves")
    scale = {"domain": names, "range": [colours[name] for name in names]}
    base = axes | {"color": field("run:N", scale=scale, legend=None), "detail": field("cohort:N")}
    most = max(len(run.histories) for run in runs)
    faint = next(opacity for count, opacity in FAINT.items() if most <= count)
    meeting = {"x": axes["x"], "tooltip": style.tips(meeting="", hours=("virtual hours", ".2f"))}
    return style.chart(
        "Validation loss of every cohort over virtual hours, with stops and meetings",
        mark("line", base, *shown, strokeWidth=1.5, opacity=faint),
        mark("circle", base | tooltip, *shown, only("isValid(datum.stop)"), opacity=1, size=45),
        mark("rule", meeting, *shown, data="meetings", color=GREY, strokeDash=[3, 4], strokeWidth=1.5),
        params=[{"name": "which_run", "value": names[0], "bind": bind} for bind in menu],
        cohorts=_loss_rows(runs),
        meetings=_meeting_rows(runs),
    )


def _loss_rows(runs: Sequence[Followed]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    each = max(FEWEST, POINTS // sum(len(run.histories) for run in runs))
    for run in runs:
        for cohort, history in enumerate(run.histories):
            curve = thinned(history.curve, each)
            rows += [
                {"run": run.name, "cohort": cohort, "hours": short(hours), "loss": short(loss)} for hours, loss in curve
            ]
            if curve and history.stop:
                rows[-1] |= {"stop": history.stop, "rounds": history.rounds}
    return rows


def _meeting_rows(runs: Sequence[Followed]) -> list[dict[str, Any]]:
    rows = [
        {"run": run.name, "meeting": number, "hours": short(clock / 3600)}
        for run in runs
        for number, clock in enumerate(run.meetings, 1)
    ]
    return thinned(rows, FEWEST * len(runs))
