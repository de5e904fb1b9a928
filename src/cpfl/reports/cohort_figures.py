"""Figures of the cohorts and their rows: loss curves and stops, timeline, evaluations, finish times, sizes."""

import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cpfl.reports import style
from cpfl.reports.groups import Group
from cpfl.reports.reading import CohortHistory, RunFacts
from cpfl.reports.style import GREY, Rows, Spec, field, mark, only

POINTS = 6000  # in all curves of one figure: enough for the eye, small enough for the page
FEWEST = 16  # in one curve, however many there are
SCATTERED = 3000  # dots in one figure
STEPS = 120  # moments at which runs are compared
MOMENTS = 60  # of a run, at which a reader sees the losses of all cohorts
TINY = 1e-9  # hours that are rounding
NAMED = 24  # bars that still have space for a name each
FAINT = {8: 1.0, 32: 0.7, 10**9: 0.4}  # so many curves: how opaque each
PICKED = "datum.n == which_n && datum.seed == which_seed"
PARTS = {"clients work": ("0", "datum.busy"), "clients wait for the slowest": ("datum.busy", "datum.hours")}
ACROSS = {  # all are numbers: Vega-Lite shows no text of the nearest mark
    "hours": ("virtual hours", ".2f"),
    "training": ("cohorts that train", "d"),
    "lowest": ("lowest loss", ".3f"),
    "best": ("lowest in cohort", "d"),
    "median": ("median loss", ".3f"),
    "highest": ("highest loss", ".3f"),
    "worst": ("highest in cohort", "d"),
}
# Dragged with the mouse, and with Ctrl and the wheel: without Ctrl the wheel moves the page. The page adds buttons.
ZOOM: Spec = {
    "name": "zoom",
    "bind": "scales",
    "select": {
        "type": "interval",
        "zoom": "wheel![event.ctrlKey]",
        "translate": "[pointerdown[event.pointerType === 'mouse'], window:pointerup] > window:pointermove!",
    },
}
HOVER: Spec = {
    "name": "hover",
    "select": {"type": "point", "nearest": True, "on": "pointermove", "clear": "pointerout"},
}
DIAMOND: Spec = {"filled": True, "size": 90, "shape": "diamond", "opacity": 1}


def _loss_rows(cohorts: Sequence[tuple[dict[str, Any], CohortHistory]]) -> Rows:
    """The smoothed validation loss of cohorts over time; each comes with the fields that its rows carry."""
    each = max(FEWEST, POINTS // max(1, len(cohorts)))
    rows: list[dict[str, Any]] = []
    for fields, history in cohorts:
        curve = thinned(history.curve, each)
        rows += [{**fields, "hours": short(hours), "loss": short(loss)} for hours, loss in curve]
        if curve and history.stop:
            rows[-1] |= {"stop": history.stop, "rounds": history.rounds}
    return rows


def losses(histories: Sequence[CohortHistory]) -> Spec:
    """Validation loss of every cohort of one run, with its stops."""
    base, tooltip = style.channels("live-curves")
    rows = _loss_rows([({"cohort": cohort}, history) for cohort, history in enumerate(histories)])
    return style.chart(
        "Validation loss of every cohort over virtual hours, with stops",
        mark("line", base | {"detail": field("cohort:N")}, color=GREY, strokeWidth=1.5, opacity=_faint(len(histories))),
        mark("circle", base | tooltip, only("isValid(datum.stop)"), color=GREY, opacity=1, size=45),
        cohorts=rows,
    )


def losses_of(runs: Sequence[RunFacts], numbers: Sequence[int], picks: Mapping[str, Any]) -> Spec:
    """Validation loss of every cohort of one n and seed, in the colour of n; the run that is not split stays beside.

    A reader can zoom, and sees the losses of all cohorts at the nearest of some moments.
    """
    cohorts = [
        ({"n": run.n, "seed": str(run.experiment.seed), "cohort": cohort}, history)
        for run in runs
        for cohort, history in enumerate(run.histories)
        if history.rounds
    ]
    most = max(Counter((fields["n"], fields["seed"]) for fields, _ in cohorts).values(), default=1)
    axes, tooltip = style.channels("validation-loss")
    base = axes | {"color": style.colour_n(numbers)}
    stopped, faint = only("isValid(datum.stop)"), _faint(most)
    near = {"condition": {"param": "hover", "empty": False, "value": 1}, "value": 0}
    hours = {"x": axes["x"], "opacity": near, "tooltip": style.tips(**ACROSS)}
    layers = [
        mark("line", base | {"detail": field("cohort:N")}, only(PICKED), strokeWidth=1.5, clip=True, opacity=faint),
        mark("rule", hours, only(PICKED), data="moments", color=GREY, clip=True),
        mark("circle", base | tooltip | {"size": _size(45, 14)}, only(PICKED), stopped, clip=True, opacity=1),
    ]
    layers[0]["params"], layers[1]["params"] = [ZOOM], [HOVER]
    if 1 in numbers:
        plain = only("datum.n == 1 && datum.seed == which_seed")
        layers += [
            mark("line", base, plain, strokeWidth=2.5, strokeDash=[6, 4], clip=True),
            mark("point", base | tooltip, plain, stopped, clip=True, **DIAMOND | {"size": 110}),
        ]
    description = f"Validation loss of every cohort over virtual hours, n = {picks['n']} shown first"
    return style.chart(description, *layers, picks=picks, cohorts=_loss_rows(cohorts), moments=moment_rows(runs))


def moment_rows(runs: Iterable[RunFacts]) -> Rows:
    """The lowest, the median and the highest loss of the cohorts that train, at evenly spaced moments of each run."""
    rows = []
    for run in runs:
        curves = {cohort: history.curve for cohort, history in enumerate(run.histories) if history.curve}
        ends = [curve[i][0] for curve in curves.values() for i in (0, -1)]
        steps = MOMENTS if len(ends) > 0 and max(ends) > min(ends) else 0
        for moment in (min(ends) + (max(ends) - min(ends)) * i / max(1, steps) for i in range(steps + 1) if ends):
            now = {
                cohort: curve[bisect_right(curve, (moment, float("inf"))) - 1][1]
                for cohort, curve in curves.items()
                if curve[0][0] <= moment <= curve[-1][0] + TINY
            }
            if not now:  # some cohorts had stopped before others ended a round
                continue
            low, high = min(now, key=lambda i: now[i]), max(now, key=lambda i: now[i])
            rows.append(
                {
                    "n": run.n,
                    "seed": str(run.experiment.seed),
                    "hours": short(moment),
                    "training": len(now),
                    "lowest": short(now[low]),
                    "best": low,
                    "median": short(statistics.median(now.values())),
                    "highest": short(now[high]),
                    "worst": high,
                }
            )
    return rows


def side_by_side(runs: Mapping[str, Sequence[CohortHistory]], colours: Sequence[str]) -> Spec:
    """The mean validation loss over the cohorts of each run; a cohort that has stopped keeps its last value."""
    rows = []
    for run, histories in runs.items():
        curves = [history.curve for history in histories]
        if not all(curves):  # a mean over some of the cohorts would jump
            continue
        first, last = max(curve[0][0] for curve in curves), max(curve[-1][0] for curve in curves)
        steps = STEPS if last > first else 0
        for moment in (first + (last - first) * i / max(1, steps) for i in range(steps + 1)):
            values = (curve[bisect_right(curve, (moment, float("inf"))) - 1][1] for curve in curves)
            rows.append({"run": run, "hours": short(moment), "loss": short(sum(values) / len(curves))})
    axes, tooltip = style.channels("live-runs")
    base = axes | {"color": style.colour_of("run", list(runs), colours)}
    return style.chart(
        f"Mean validation loss over virtual hours: {', '.join(runs)}",
        mark("line", base, strokeWidth=2),
        mark("circle", base | tooltip, size=60, opacity=0),  # invisible: they carry the tooltip
        runs=rows,
    )


def bars(runs: Iterable[RunFacts]) -> Rows:
    """One bar for every cohort, by stopping time: how long its average participant worked and how long it waited."""
    rows = []
    for run in runs:
        found: list[dict[str, Any]] = []
        for cohort, history in enumerate(run.histories):
            if not history.rounds:
                continue
            client, held_up = history.slowest.most_common(1)[0]
            total = history.clock
            found.append(
                {
                    "n": run.n,
                    "seed": str(run.experiment.seed),
                    "cohort": cohort,
                    "rounds": history.rounds,
                    "hours": short(total / 3600),
                    "busy": short(history.busy / 3600),
                    "waited": short(100 * (1 - history.busy / total) if total else 0.0),
                    "slowest": client,
                    "held_up": short(100 * held_up / total if total else 0.0),
                    "stop": history.stop or "still training",
                }
            )
        slots = max(len(found), 6)  # a few bars do not fill the figure
        for rank, bar in enumerate(sorted(found, key=lambda bar: bar["hours"])):
            place = {"top": short((rank + 0.1) / slots), "bottom": short((rank + 0.9) / slots)}
            rows.append(bar | place | {"share": short(100 * (rank + 1) / len(found))})
    return rows


def timeline(rows: Rows, meetings: Rows, numbers: Sequence[int], picks: Mapping[str, Any]) -> Spec:
    """One bar for every cohort: filled while its clients work, outlined while they wait for the slowest.

    A line shows when a quorum of the cohorts had stopped, ticks at the top when cohorts met.
    """
    axes, tooltip = style.channels("timeline")
    axes["y"]["axis"] = None
    ends = {"x2": {"field": "until"}, "y2": {"field": "bottom"}}
    bar = axes | ends | tooltip | {"color": style.colour_n(numbers) | {"legend": None}}
    shape = field("part:O", title=None, scale={"domain": list(PARTS), "range": [1, 0.12]})
    shape["legend"] = {"symbolType": "square", "symbolStrokeColor": GREY, "symbolFillColor": GREY}
    picked, middle = only(PICKED), {"calculate": "(datum.top + datum.bottom) / 2", "as": "middle"}
    name = {"calculate": "'cohort ' + datum.cohort + ', client ' + datum.slowest + ' slowest'", "as": "name"}
    left = {"x": {"datum": 0}, "y": field("middle:Q"), "text": field("name:N")}
    layers = []
    for part, (start, until) in PARTS.items():
        values = {"from": start, "until": until, "part": f"'{part}'"}
        made = ({"calculate": how, "as": key} for key, how in values.items())
        layers.append(mark("rect", bar | {"fillOpacity": shape}, picked, *made, strokeWidth=1))
        layers[-1]["encoding"]["stroke"] = style.colour_n(numbers) | {"legend": None}
    layers += [
        mark("text", left, picked, middle, only(f"datum.n <= {NAMED}"), name, align="right", dx=-6, fontSize=11),
        mark(
            "rule",
            {"x": field("at:Q"), "tooltip": style.tips(at=["quorum stopped after hours", ".2f"])},
            picked,
            only("datum.share >= which_quorum - 0.001"),
            {"aggregate": [{"op": "min", "field": "hours", "as": "at"}]},
            color=GREY,
            strokeDash=[6, 4],
            strokeWidth=2,
        ),
    ]
    if meetings:
        tick = {"x": field("hours:Q"), "y": {"datum": 0}, "tooltip": style.tips(meeting="", hours=".2f")}
        layers.append(mark("tick", tick, picked, data="meetings", color=GREY, thickness=2, size=14))
    quorum = {"input": "range", "min": 5, "max": 100, "step": 5, "name": "quorum, % of the cohorts: "}
    params = [{"name": "which_quorum", "value": 75, "bind": quorum}]
    description = f"One bar for every cohort, earliest stop first, n = {picks['n']} shown first"
    return style.chart(description, *layers, height=320, params=params, picks=picks, cohorts=rows, meetings=meetings)


def meeting_rows(runs: Iterable[RunFacts]) -> Rows:
    """When cohorts met."""
    return [
        {"n": run.n, "seed": str(run.experiment.seed), "meeting": i + 1, "hours": short(hour)}
        for run in runs
        for i, hour in enumerate(run.meetings)
    ]


def evaluation_rows(runs: Iterable[RunFacts]) -> Rows:
    """Every evaluation of the ensemble of all cohort models."""
    return [
        {
            "n": run.n,
            "seed": str(run.experiment.seed),
            "round": line["round"],
            "cpu": short(line["cpu_hours"]),
            "accuracy": short(line["accuracy"]),
            "stop": line.get("decision") == "stop",
        }
        for run in runs
        for line in run.evaluations
    ]


def evaluations(rows: Rows, numbers: Sequence[int], axis: str, picks: Mapping[str, Any]) -> Spec:
    """Accuracy of the ensemble of all cohort models against CPU hours; a diamond where the rule stopped training."""
    seed = only("datum.seed == which_seed")
    axes, _ = style.channels("evaluations")
    base = axes | {"y": field("accuracy:Q", title=axis, scale={"zero": False}), "color": style.colour_n(numbers)}
    tips = style.tips(n="", round=("after rounds", ""), cpu=("CPU hours", ".4~g"), accuracy=(axis, ".4~g"))
    return style.chart(
        f"{axis}, against CPU hours",
        mark("line", base, seed, strokeWidth=2, interpolate="step-after"),
        mark("circle", base | {"tooltip": tips}, seed, size=18, opacity=1),
        mark("point", base | {"tooltip": tips}, seed, only("datum.stop"), **DIAMOND),
        picks=picks,
        evaluations=rows,
    )


def finish_rows(group: Group, most: int = 100) -> Rows:
    """The share of the cohorts of each run that had stopped by an hour, seed by seed."""
    rows = []
    for run in (run for n in group.numbers for run in group.runs_of(n)):
        total, fields = len(run.about["cohorts"]), {"n": run.n, "seed": str(run.experiment.seed)}
        ended = sorted(cohort.hours for cohort in run.cohorts if cohort.stop)
        steps = [{**fields, "hours": short(h), "share": short(100 * (i + 1) / total)} for i, h in enumerate(ended)]
        if steps:
            last = steps[-1] | ({"last": True} if len(ended) == total else {})
            rows += [{**fields, "hours": 0, "share": 0}, *thinned(steps[:-1], most), last]
    return rows


def finish_times(rows: Rows, numbers: Sequence[int]) -> Spec:
    """The share of cohorts that had stopped by an hour, a line for every seed; the last cohort is marked."""
    axes, tooltip = style.channels("finish-times")
    base = axes | {"color": style.colour_n(numbers), "detail": field("seed:N")}
    return style.chart(
        "Finish times of the cohorts, cumulated",
        mark("line", base, interpolate="step-after", strokeWidth=1.5),
        mark("point", base | tooltip, only("datum.last"), **DIAMOND),
        cohorts=rows,
    )


def size_rows(group: Group) -> Rows:
    """Samples and hours of every cohort, all seeds, for n above 1."""
    rows = [
        {"n": run.n, "seed": run.experiment.seed, "samples": cohort.samples, "hours": short(cohort.hours)}
        for n in group.numbers
        if n > 1
        for run in group.runs_of(n)
        for cohort in run.cohorts
        if cohort.samples is not None and cohort.stop
    ]
    return thinned(rows, SCATTERED)


def sizes(rows: Rows, numbers: Sequence[int]) -> Spec:
    """The samples of a cohort against its training time."""
    axes, tooltip = style.channels("samples")
    colour = style.colour_n(numbers, {row["n"] for row in rows})
    dots = mark("point", axes | tooltip | {"color": colour}, size=40, opacity=1)
    return style.chart("Samples in a cohort against its hours", dots, cohorts=rows)


def thinned(rows: Sequence[Any], most: int) -> list[Any]:
    """At most so many rows, evenly spaced, with the first and the last."""
    if len(rows) <= most:
        return list(rows)
    step = (len(rows) - 1) / (most - 1)
    return [rows[round(i * step)] for i in range(most)]


def short(value: float) -> float:
    """Five digits are more than a figure shows."""
    return float(f"{value:.5g}")


def _size(few: int, many: int) -> Spec:
    """Marks that shrink where there are many."""
    return {"condition": {"test": f"datum.n <= {NAMED}", "value": few}, "value": many}


def _faint(curves: int) -> float:
    """How opaque each of so many curves is."""
    return next(opacity for most, opacity in FAINT.items() if curves <= most)
