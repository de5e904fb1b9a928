"""Figures of the cohorts and their rows: loss curves and stops, timeline, evaluations, finish times, sizes."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cpfl.report import style
from cpfl.report.groups import Group
from cpfl.report.reading import CohortHistory
from cpfl.report.style import BLUE, GREY, ORANGE, Rows, Spec, field, mark, only

POINTS = 6000  # in all curves of one figure: enough for the eye, small enough for the page
FEWEST = 16  # in one curve, however many there are
SCATTERED = 3000  # dots in one figure
STEPS = 120  # moments at which runs are compared
NAMED = 24  # bars that still have space for a name each
FAINT = {8: 0.9, 32: 0.5, 10**9: 0.25}  # so many curves: how opaque each
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


def losses(cohorts: Sequence[tuple[dict[str, Any], CohortHistory]], key: str, chosen: Any) -> Spec:
    """Validation loss of every cohort with its stop, for one of several n or runs at a time; n = 1 stays beside.

    Parameters
    ----------
    cohorts
        Each with the fields that its rows carry.
    key, chosen
        What the menu of the figure is for, `n` or `run`, and the value that is drawn first.
    """
    counts = Counter(fields[key] for fields, _ in cohorts)
    by_n = key == "n"
    menu = by_n or len(counts) > 1
    shown, stopped = [only(f"datum.{key} == which_{key}")] if menu else [], only("isValid(datum.stop)")
    base, tooltip = style.channels("validation-loss" if by_n else "live-curves")
    dots = base | tooltip | ({"size": _size(45, 14)} if by_n else {})
    faint = next(opacity for most, opacity in FAINT.items() if max(counts.values()) <= most)
    layers = [
        mark("line", base | {"detail": field("cohort:N")}, *shown, color=BLUE, strokeWidth=1.5, opacity=faint),
        mark("circle", dots, *shown, stopped, color=BLUE, opacity=1, size=45),
    ]
    if by_n and 1 in counts:
        plain = only("datum.n == 1")
        layers += [
            mark("line", base, plain, color=ORANGE, strokeWidth=2.5, strokeDash=[6, 4]),
            mark("point", base | tooltip, plain, stopped, **DIAMOND | {"color": ORANGE, "size": 110}),
        ]
    first = f"Validation loss over virtual hours, n = {chosen} shown first"
    description = first if by_n else "Validation loss of every cohort over virtual hours, with stops"
    params = [_menu(key, counts, chosen)] if menu else []
    return style.chart(description, *layers, params=params, cohorts=_loss_rows(cohorts))


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


def _bars(group: Group) -> Rows:
    """One bar for every cohort, by stopping time: how long its average participant worked and how long it waited."""
    rows = []
    for run in group.first_seeds:
        bars: list[dict[str, Any]] = []
        for cohort, history in enumerate(run.histories):
            if not history.rounds:
                continue
            client, held_up = history.slowest.most_common(1)[0]
            total = history.clock
            bars.append(
                {
                    "n": run.n,
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
        slots = max(len(bars), 6)  # a few bars do not fill the figure
        for rank, bar in enumerate(sorted(bars, key=lambda bar: bar["hours"])):
            rows.append(bar | {"top": short((rank + 0.1) / slots), "bottom": short((rank + 0.9) / slots)})
    return rows


def timeline(group: Group, chosen: int) -> Spec:
    """One bar for every cohort: how long it trained, how long it waited for the slowest client, why it stopped."""
    rows = _bars(group)
    axes, tooltip = style.channels("timeline")
    parts = {
        "its average client works": ("0", "datum.busy"),
        "and waits for the slowest": ("datum.busy", "datum.hours"),
    }
    axes["y"]["axis"] = None
    ends = {"x2": {"field": "until"}, "y2": {"field": "bottom"}}
    bar = axes | ends | tooltip | {"color": style.colour_of("part", list(parts), (BLUE, ORANGE))}
    reasons = sorted({row["stop"] for row in rows})
    shapes = ["circle", "cross", "triangle-right", "square", "diamond", "triangle-up"]
    scale = {"domain": reasons, "range": shapes[: len(reasons)]}
    shape = field("stop:N", title="stop", scale=scale, legend={"orient": "bottom", "columns": 2})
    end = {"x": field("hours:Q"), "y": field("middle:Q"), "shape": shape, "size": _size(36, 9)} | tooltip
    shown, middle = only("datum.n == which_n"), {"calculate": "(datum.top + datum.bottom) / 2", "as": "middle"}
    text = {"calculate": "'cohort ' + datum.cohort + ', ' + datum.rounds + ' rounds'", "as": "name"}
    name = {"x": {"datum": 0}, "y": field("middle:Q"), "text": field("name:N")}
    layers = []
    for part, (start, until) in parts.items():
        values = {"from": start, "until": until, "part": f"'{part}'"}
        layers.append(mark("rect", bar, shown, *({"calculate": how, "as": key} for key, how in values.items())))
    layers += [
        mark("point", end, shown, middle, filled=True, opacity=1, color=GREY),
        mark("text", name, shown, middle, only(f"datum.n <= {NAMED}"), text, align="right", dx=-6, fontSize=11),
    ]
    description = f"One bar for every cohort, earliest stop first, n = {chosen} shown first"
    return style.chart(description, *layers, height=320, params=[_menu("n", group.numbers, chosen)], cohorts=rows)


def evaluation_rows(group: Group) -> Rows:
    """Every evaluation of the ensemble of all cohort models, for one seed of every n."""
    return [
        {
            "n": run.n,
            "round": line["round"],
            "cpu": short(line["cpu_hours"]),
            "accuracy": short(line["accuracy"]),
            "stop": line.get("decision") == "stop",
        }
        for run in group.first_seeds
        for line in run.evaluations
    ]


def evaluations(rows: Rows, numbers: Sequence[int], axis: str) -> Spec:
    """Accuracy of the ensemble of all cohort models against CPU hours; a diamond where the rule stopped training."""
    axes, _ = style.channels("evaluations")
    base = axes | {"y": field("accuracy:Q", title=axis, scale={"zero": False}), "color": style.colour_n(numbers)}
    tips = style.tips(n="", round=("after rounds", ""), cpu=("CPU hours", ".4~g"), accuracy=(axis, ".4~g"))
    return style.chart(
        f"{axis}, against CPU hours",
        mark("line", base, strokeWidth=2),
        mark("circle", base | {"tooltip": tips}, size=18, opacity=1),
        mark("point", base | {"tooltip": tips}, only("datum.stop"), **DIAMOND),
        evaluations=rows,
    )


def finish_rows(group: Group, most: int = 200) -> Rows:
    """The share of the cohorts of each n that had stopped by an hour, all seeds together."""
    rows = []
    for n in group.numbers:
        runs = group.runs_of(n)
        total = sum(len(run.about["cohorts"]) for run in runs)
        ended = sorted(cohort.hours for run in runs for cohort in run.cohorts if cohort.stop)
        steps = [{"n": n, "hours": short(h), "share": short(100 * (i + 1) / total)} for i, h in enumerate(ended)]
        if steps:
            last = steps[-1] | ({"last": True} if len(ended) == total else {})
            rows += [{"n": n, "hours": 0, "share": 0}, *thinned(steps[:-1], most), last]
    return rows


def finish_times(rows: Rows, numbers: Sequence[int]) -> Spec:
    """The share of cohorts that had stopped by an hour; the last one is marked."""
    axes, tooltip = style.channels("finish-times")
    base = axes | {"color": style.colour_n(numbers)}
    return style.chart(
        "Finish times of the cohorts, cumulated",
        mark("line", base, interpolate="step-after", strokeWidth=2),
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
    dots = mark("circle", axes | tooltip | {"color": style.colour_n(numbers)}, size=50, opacity=0.6)
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


def _menu(key: str, options: Iterable[Any], chosen: Any) -> Spec:
    """A menu on the page for the n or the run that is drawn; files show the chosen one."""
    menu = {"input": "select", "options": list(options), "name": f"{key} = "}
    return {"name": f"which_{key}", "value": chosen, "bind": menu}
