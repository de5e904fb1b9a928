"""Figures of what n costs and gains: the trade-off, every measure against n, and distilling earlier."""

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from cpfl.reports import style
from cpfl.reports.cohort_figures import short
from cpfl.reports.groups import Group
from cpfl.reports.reading import RunFacts
from cpfl.reports.style import GREY, Row, Rows, Spec, field, mark, only
from cpfl.reports.tables import by_cohorts, deviation

AGAINST = [name for name in style.FIGURES if name.endswith("-against-n")]
PLAIN = "n = 1"
STAGES = {"teachers": "teacher_accuracy_mean", "ensemble": "ensemble_accuracy", "student": "student_accuracy"}
LINKS = {"client_gb": "clients to their server", "global_gb": "cohort servers to the global one"}
DEADLINE = ({"calculate": "deadline", "as": "deadline"}, only("datum.deadline > 0"))
HOLLOW: Spec = {"shape": "diamond", "size": 90, "strokeWidth": 2}


def trade_off(summaries: Iterable[Row], published: Sequence[Row] = (), recommended: int | None = None) -> Spec:
    """Accuracy against virtual hours: a point for every n, CPU hours as its size, the Pareto front in steps."""
    means = sorted(by_cohorts(summaries), key=lambda row: row["hours"])
    points = [
        {
            "n": row["cohorts"],
            "label": f"n = {row['cohorts']}" + (" (recommended)" if row["cohorts"] == recommended else ""),
            "hours": row["hours"],
            "accuracy": row["student_accuracy"],
            **_ends(row, "hours", "hours_"),
            **_ends(row, "student_accuracy", "accuracy_"),
            "cpu_hours": row["cpu_hours"],
            "seeds": row["seeds"],
            "rank": rank,
        }
        for rank, row in enumerate(means)
    ]
    paper = [
        {"label": f"paper, n = {row['n']}", "hours": row["hours"], "accuracy": row["student"]}
        for row in published
        if "hours" in row and "student" in row
    ]
    metric = means[0]["metric"] if means else style.ACCURACY
    base, tooltip = style.channels("trade-off", metric)
    label = {"text": field("label:N")}
    costs = sorted({float(f"{end(point['cpu_hours'] for point in points):.2g}") for end in (min, max)})
    legend = {"values": costs, "symbolFillColor": GREY, "symbolStrokeColor": GREY, "symbolOpacity": 1}
    size = field("cpu_hours:Q", title="CPU hours", scale={"range": [60, 700]}, legend=legend)
    colour = {"color": style.colour_n([row["cohorts"] for row in sorted(means, key=lambda row: row["cohorts"])])}
    colour["color"]["legend"] = None
    hours = {"x": field("hours_low:Q"), "x2": {"field": "hours_high"}}
    accuracies = {"y": field("accuracy_low:Q"), "y2": {"field": "accuracy_high"}}
    layers = [
        mark("line", base, data="front", color=GREY, strokeDash=[6, 4], strokeWidth=2, interpolate="step-after"),
        mark("rule", base | hours | colour),
        mark("rule", base | accuracies | colour),
        mark("circle", base | tooltip | colour | {"size": size}, opacity=1),
        *(
            mark("text", base | label, only(f"datum.rank % 2 == {odd}"), dy=dy, fontWeight="bold")
            for odd, dy in enumerate((-22, 24)[: len(points)])  # neighbours would cover each other's names
        ),
    ]
    if paper:
        layers += [
            mark("point", base, data="paper", color=GREY, **HOLLOW),
            mark("text", base | label, data="paper", dy=16, color=GREY),
        ]
    values = "; ".join(
        f"n = {row['cohorts']}: {row['student_accuracy']:.1f} % after {row['hours']:.3g} h" for row in means
    )
    description = f"{style.named('{Metric}', metric)} against hours. {values}"
    return style.chart(description, *layers, height=340, points=points, front=pareto(points), paper=paper)


def pareto(points: Iterable[Row]) -> Rows:
    """The points that no other beats in both hours and accuracy, fastest first."""
    front: list[Row] = []
    for point in sorted(points, key=lambda p: (p["hours"], -p["accuracy"])):
        if not front or point["accuracy"] > front[-1]["accuracy"]:
            front.append({"hours": point["hours"], "accuracy": point["accuracy"]})
    return front


def against_n(name: str, series: Mapping[str, Sequence[Row]], published: Mapping[str, Sequence[Row]]) -> Spec:
    """A measure of AGAINST over n on a logarithmic axis: a line for every experiment, mean and spread over seeds."""
    metrics = {row["metric"] for rows in series.values() for row in rows}
    axis, keys = style.named(style.FIGURES[name]["axis"], common(metrics)), style.FIGURES[name]["lines"]
    points, paper = [], []
    for label, rows in series.items():
        for kind, (key, printed) in keys.items():
            fields = {"experiment": label, "model": kind}
            points += [
                {**fields, "n": row["cohorts"], "value": row[key], **_ends(row, key)}
                for row in rows
                if row[key] is not None and (kind != "teachers" or row["cohorts"] > 1)  # n = 1 has no teacher
            ]
            beside = (row for row in published.get(label, ()) if printed in row)
            paper += [{**fields, "n": row["n"], "value": row[printed]} for row in beside]
    numbers = sorted({point["n"] for point in points + paper})
    several, scores = len(series) > 1, len(keys) > 1  # of student and teachers; the other measures are costs, from 0
    colour = style.colour_of("experiment", list(series)) if several else {"value": GREY}
    x = field(
        "n:Q",
        title="n, the number of cohorts",
        scale={"type": "log", "base": 2, "nice": False, "padding": 16},
        axis={"values": numbers, "format": "d", "grid": False, "labelOverlap": True},
    )
    y = field("value:Q", title=axis, scale={"zero": False, "padding": 12} if scores else {"zero": True})
    base = {"x": x, "y": y, "color": colour, "detail": field("model:N")}
    dash = field("model:N", title=None, scale={"domain": list(keys), "range": [[1, 0], [4, 3], [1, 3]][: len(keys)]})
    tooltip = {"tooltip": style.tips(experiment="", model=("of", ""), n="", value=(axis, ".4~g"))}
    layers = [
        mark("line", base | ({"strokeDash": dash} if scores else {}), strokeWidth=2),
        mark("rule", base | {"y": field("low:Q"), "y2": {"field": "high"}}, strokeWidth=1),
        mark("circle", base | tooltip, size=60, opacity=1),
    ]
    if paper:
        other = {"x": x, "y": y, "color": colour if several else {"value": GREY}}
        layers.append(mark("point", other | tooltip, data="paper", **HOLLOW))
    return style.chart(f"{axis} against n, for {', '.join(series)}", *layers, height=260, points=points, paper=paper)


def common(metrics: Collection[str]) -> str:
    """The name of a metric, or what several have in common."""
    return next(iter(metrics)) if len(metrics) == 1 else "score"


def quorum_rows(group: Group) -> Rows:
    """Accuracy and hours by the share of cohorts that had stopped; n = 1 has no quorum to wait for."""
    found: dict[tuple[int, float], list[Any]] = defaultdict(list)
    for run in group.runs:
        if run.n > 1:
            for quorum, student in {s.quorum: s for s in reversed(run.students) if s.at is None}.items():
                found[run.n, quorum].append(student)
    return [
        {
            "n": n,
            "quorum": short(100 * quorum),
            **_spread("accuracy", [student.accuracy for student in students]),
            **_spread("hours", [student.hours for student in students]),
        }
        for (n, quorum), students in sorted(found.items())
    ]


def budget_rows(group: Group) -> Rows:
    """Accuracy if the cohorts are distilled after so many hours; a run that has ended gives its final student."""
    moments = {s.at for run in group.runs for s in run.students if s.at is not None}
    ended = [run for run in group.runs if run.summary]
    longest = max((run.students[0].hours for run in ended), default=0.0)
    rows = []
    for n in sorted({run.n for run in ended}):
        every = [run for run in ended if run.n == n]
        runs = [run for run in every if any(s.at is not None for s in run.students)] or every  # redistilled seeds
        own_end = max(run.students[0].hours for run in runs)
        for moment in sorted({*moments, own_end, longest}):
            known = [accuracy for run in runs if (accuracy := _accuracy_at(run, moment)) is not None]
            if len(known) == len(runs):  # a mean over other seeds than its neighbours' would jump
                rows.append({"n": n, "hours": short(moment), **_spread("accuracy", known)})
    return rows


def earlier(
    name: str,
    rows: Rows,
    numbers: Iterable[int],
    published: Iterable[Row] = (),
    metric: str = style.ACCURACY,
    stops: Iterable[Row] = (),
) -> Spec:
    """Accuracy or hours of students that were distilled earlier: steps for every n over the quorum or the hours.

    The figure over hours has a square at every quorum of `stops`, and a deadline that a reader can drag.
    """
    paper = [{"n": row["n"], "hours": row["hours"], "accuracy": row["student"]} for row in published]
    every = sorted({*numbers, *(row["n"] for row in paper)})
    axes, tooltip = style.channels(name, metric)
    if axes["x"]["field"] == "quorum":
        axes["x"]["axis"] = {"values": sorted({row["quorum"] for row in rows})}
    shown = {row["n"] for row in [*rows, *paper]}
    base, key, axis = axes | {"color": style.colour_n(every, shown)}, axes["y"]["field"], axes["y"]["title"]
    layers = [
        mark("line", base, strokeWidth=2, interpolate="step-after"),
        mark("rule", base | {"y": field(f"{key}_low:Q"), "y2": {"field": f"{key}_high"}}, strokeWidth=1),
        mark("circle", base | tooltip, size=50, opacity=1),
    ]
    if paper:
        layers.append(mark("point", base | tooltip, data="paper", **HOLLOW))
    extra: dict[str, Any] = {"paper": paper}
    if name == "time-budget":
        tips = {"tooltip": style.tips(n="", quorum=["at", ""], hours=".2f", accuracy=[axis, ".4~g"])}
        layers += [
            mark("point", base | tips, data="stops", filled=True, size=70, shape="square", opacity=1),
            mark("rule", {"x": field("deadline:Q")}, *DEADLINE, data="line", color=GREY, strokeWidth=2),
        ]
        extra |= {"stops": list(stops), "line": [{}]}
    params = [{"name": "deadline", "value": 0}] if name == "time-budget" else []
    description = f"{axis}, for n = {', '.join(map(str, every))}"
    return style.chart(description, *layers, height=280, params=params, rows=rows, **extra)


def lost(rows: Iterable[Row], numbers: Sequence[int], metric: str) -> Spec:
    """Where accuracy is lost: from plain federated learning to teachers, ensemble and student, a colour for every n."""
    found = sorted(rows, key=lambda row: row["cohorts"])
    plain = next((row for row in found if row["cohorts"] == 1), None)
    points = []
    for row in (row for row in found if row["cohorts"] > 1):
        stages = [*([(f"{PLAIN}", plain, "student_accuracy")] if plain else [])]
        stages += [(stage, row, key) for stage, key in STAGES.items()]
        points += [
            {"n": row["cohorts"], "stage": stage, "accuracy": short(of[key]), **_ends(of, key)}
            for stage, of, key in stages
        ]
    axes, tooltip = style.channels("lost", metric)
    axes["x"] |= {"sort": [PLAIN, *STAGES], "axis": {"labelAngle": 0, "grid": False}}
    base = axes | {"color": style.colour_n(numbers, {point["n"] for point in points})}
    layers = [
        mark("line", base, strokeWidth=2, strokeDash=[2, 3]),
        mark("rule", base | {"y": field("low:Q"), "y2": {"field": "high"}}, strokeWidth=1),
        mark("circle", base | tooltip, size=70, opacity=1),
    ]
    return style.chart(f"{metric} of teachers, ensemble and student", *layers, height=280, stages=points)


def stop_rows(group: Group) -> Rows:
    """Where runs stopped, and where a quorum of their cohorts had: mean hours and accuracy over seeds."""
    rows = []
    for row in quorum_rows(group):
        text = "all stopped" if row["quorum"] == 100 else f"quorum {row['quorum']:g} %"
        rows.append({"n": row["n"], "quorum": text, "hours": row["hours"], "accuracy": row["accuracy"]})
    plain = [run.students[0] for run in group.runs if run.n == 1 and run.summary]
    if plain:
        hours, accuracy = (statistics.fmean(getattr(s, key) for s in plain) for key in ("hours", "accuracy"))
        rows.append({"n": 1, "quorum": "stopped", "hours": short(hours), "accuracy": short(accuracy)})
    return rows


def links(rows: Iterable[Row]) -> Spec:
    """Traffic by link: between clients and their servers, and between those and the global one, drawn apart."""
    points = [
        {"n": row["cohorts"], "link": link, "gb": short(row[key])}
        for row in rows
        for key, link in LINKS.items()
        if row[key] is not None
    ]
    axes, tooltip = style.channels("traffic-by-link")
    scale = {"type": "log", "nice": False} if all(point["gb"] > 0 for point in points) else {"zero": True}
    axes["y"]["scale"] = scale
    axes["y"]["axis"]["grid"] = False
    shape = field("link:N", title=None, scale={"domain": list(LINKS.values()), "range": ["circle", "square"]})
    shape["legend"] = {"columns": 1, "labelLimit": 300}
    base = axes | {"shape": shape}
    layers = [
        mark("line", axes | {"detail": field("link:N")}, color=GREY, strokeDash=[2, 3]),
        mark("point", base | tooltip, color=GREY, filled=True, size=70, opacity=1),
    ]
    return style.chart("GB between clients and servers, and between servers", *layers, height=260, links=points)


def _accuracy_at(run: RunFacts, moment: float) -> float | None:
    final = run.students[0]
    found = [final] if final.hours <= moment else [s for s in run.students if s.at == moment]
    return found[0].accuracy if found else None


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    mean, spread = statistics.fmean(values), deviation(values)
    return {name: short(mean), f"{name}_low": short(mean - spread), f"{name}_high": short(mean + spread)}


def _ends(row: Row, key: str, prefix: str = "") -> dict[str, float]:
    """One standard deviation below and above the mean."""
    spread = row[f"{key}_spread"]
    return {f"{prefix}low": row[key] - spread, f"{prefix}high": row[key] + spread}
