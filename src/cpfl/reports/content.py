"""The whole report as one plain tree, which becomes a page, files, or an answer over HTTP."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cpfl.reports import cohort_figures as inside
from cpfl.reports import figures, findings, style, tables
from cpfl.reports.advice import advise
from cpfl.reports.candidates import comparisons
from cpfl.reports.groups import Group, group
from cpfl.reports.method_figure import link_rows, method
from cpfl.reports.reading import READ_ERRORS, RunFacts, damage, read_all
from cpfl.reports.tuned import Tuned, read_tunes
from cpfl.reports.verdict import USUAL, Limits

Tree = dict[str, Any]
FALLS = {
    "hours-against-n": ("hours", "Hours", "h"),
    "cpu-hours-against-n": ("cpu_hours", "CPU hours", "CPU h"),
    "traffic-against-n": ("comm_gb", "GB sent", "GB"),
}


def content(paths: Iterable[Path], limits: Limits = USUAL, tunes: Iterable[Path] = ()) -> Tree:
    """Everything that a report says about the runs in these folders, and about these folders of tunes."""
    runs, damaged = read_all(paths)
    tuned, broken = read_tunes(tunes)
    damaged += broken
    while True:  # until every file that is drawn can be read
        bad = {}
        for run in (run for one in group(runs) for run in one.first_seeds):
            try:
                _ = run.histories, run.evaluations, run.meetings
            except READ_ERRORS as error:
                bad[run.name] = damage(error)
        if not bad:
            return content_of(runs, damaged, limits, tuned)
        damaged += bad.items()
        runs = [run for run in runs if run.name not in bad]


def content_of(
    runs: Iterable[RunFacts],
    damaged: Sequence[tuple[str, str]],
    limits: Limits = USUAL,
    tuned: Sequence[Tuned] = (),
) -> Tree:
    """The same for runs that are read already."""
    groups = group(runs)
    several = len(groups) > 1
    advices = [advise(one, limits) for one in comparisons(groups)]
    chosen = {one.group.id: one.n for one in advices if one.group}
    advices += [advice for one in tuned for advice in one.advice(limits)]
    titles = [one.label for one in groups] + [f"tune of {one.tune.name}" for one in tuned]
    return {
        "title": titles[0] if len(titles) == 1 else f"{len(titles)} experiments" if titles else "no readable run",
        "tunes": [_tune(one, f"tune-{i + 1}" if len(tuned) > 1 else "tune") for i, one in enumerate(tuned)],
        "advice": [one.tree() for one in advices],
        "explorers": [one.explorer() for one in advices],
        "notes": _notes(groups, damaged),
        "together": _prefixed(_against(groups), "all-") if several else [],
        "groups": [_group(one, chosen.get(one.id), several) for one in groups],
        "damaged": [{"path": path, "reason": reason} for path, reason in damaged],
    }


def all_figures(tree: Tree) -> list[Tree]:
    """Every figure of the report that could be drawn."""
    live = tree.get("live", {}).get("figures", [])
    found = [
        *live,
        *(f for one in tree["tunes"] for f in one["figures"]),
        *tree["together"],
        *(f for g in tree["groups"] for s in g["sections"] for f in s["figures"]),
    ]
    return [one for one in found if "spec" in one]


def figure(
    name: str,
    spec: Tree,
    shown: str = "",
    metric: str = style.ACCURACY,
    finding: str = "",
    findings: Sequence[Tree] = (),
    **words: str,
) -> Tree:
    """A figure with its title, a finding if there is one, and its caption.

    Files, which have no selector, add to the title what is `shown`. The page's selector chooses among `findings`,
    each with its n, and its seed where that matters.
    `words` are written into the title and the caption, where figures.toml leaves gaps for them.
    """
    texts = (style.named(style.FIGURES[name][key], metric) for key in ("title", "caption"))
    title, caption = (text.format(**words) for text in texts)
    titled = {"text": finding, "subtitle": title + shown} if finding else title + shown
    spec = spec | {"title": titled} | ({"usermeta": {"findings": list(findings)}} if findings else {})
    return {"id": name, "title": title, "finding": finding, "caption": caption, "spec": spec}


def with_rows(figures: Iterable[Tree]) -> list[Tree]:
    """The figures that have something to show."""
    return [one for one in figures if any(one["spec"]["datasets"].values())]


def _notes(groups: Sequence[Group], damaged: Sequence[Any]) -> list[str]:
    notes = []
    if len(groups) > 1:
        notes.append(
            f"These folders hold {len(groups)} different experiments. Each has its own section; "
            "only runs that differ in nothing but n and seed are averaged."
        )
    unfinished = sum(run.summary is None for one in groups for run in one.runs)
    if unfinished:
        are = "run is" if unfinished == 1 else "runs are"
        notes.append(f"{unfinished} {are} unfinished and in no mean; the list of runs shows their progress.")
    if damaged:
        are = "folder is" if len(damaged) == 1 else "folders are"
        notes.append(f"{len(damaged)} {are} damaged and left out; the last section names the damage.")
    if any(len({(run.n, run.experiment.seed) for run in one.runs}) < len(one.runs) for one in groups):
        notes.append("Some n was run more than once with the same seed; every run is counted.")
    return notes


def _group(one: Group, chosen: int | None, several: bool) -> Tree:
    rows, prefix = one.rows, f"{one.id}-" if several else ""
    sections = [
        ("trade-off", "The trade-off", [_trade_off(one, chosen), *_lost(one)] if rows else []),
        ("earlier", "When to stop", _earlier(one) if rows else []),
        ("against-n", "Against n", [] if several else _against([one])),
        ("cohorts", "Inside the cohorts", _cohorts(one, chosen)),
    ]
    return {
        "id": one.id,
        "label": one.label,
        "metric": one.metric,
        "n": chosen,
        "table": tables.cells(rows, one.published.get("by_n", [])) if rows else None,
        "source": one.published.get("source", ""),
        "remarks": one.published.get("remarks", []),
        "differences": one.differences,
        "sections": [
            {"id": f"{one.id}-{key}", "title": title, "figures": _prefixed(found, prefix)}
            for key, title, found in sections
            if found
        ],
        "runs": [_run(run) for run in sorted(one.runs, key=lambda run: (run.n, run.experiment.seed, run.name))],
    }


def _tune(one: Tuned, name: str) -> Tree:
    made = [figure(key, spec, finding=found) | {"id": f"{name}-{key}"} for key, (spec, found) in one.figures().items()]
    recommended = one.tune.recommendation
    return {
        "id": name,
        "label": f"Tune of {one.tune.name}",
        "metric": one.tune.metric,
        "state": one.tune.state,
        "recommended": recommended.text if recommended else "",
        "paragraph": one.tune.paragraph,
        "figures": made,
        "trials": one.table(),
    }


def _prefixed(figures: Iterable[Tree], prefix: str) -> list[Tree]:
    """The same figures with names that are unique among several experiments."""
    return [one | {"id": prefix + one["id"]} for one in figures]


def _run(run: RunFacts) -> Tree:
    last = max((cohort.hours for cohort in run.cohorts), default=0.0)
    return {
        "path": run.name,
        "n": run.n,
        "seed": run.experiment.seed,
        "state": run.state if run.summary else f"unfinished: {run.state}",
        "finished": run.summary is not None,
        "rounds": f"{sum(cohort.rounds for cohort in run.cohorts):,}",
        "hours": f"{run.summary['hours'] if run.summary else last:,.2f}",
        "accuracy": f"{run.summary['student_accuracy']:.2f}" if run.summary else "–",
    }


def _trade_off(one: Group, chosen: int | None) -> Tree:
    published = one.published.get("by_n", [])
    spec = figures.trade_off(one.summaries, published, chosen)
    found = findings.front(one.rows, one.metric)
    return figure("trade-off", spec, "", one.metric, found, label=one.label, diamonds=_diamonds([one], spec))


def _lost(one: Group) -> list[Tree]:
    spec = figures.lost(one.rows, one.numbers, one.metric)
    return with_rows([figure("lost", spec, "", one.metric, findings.lost(one.rows))])


def _against(groups: Sequence[Group]) -> list[Tree]:
    series = {one.label: one.rows for one in groups if one.rows}
    published = {one.label: one.published.get("by_n", []) for one in groups}
    specs = {name: figures.against_n(name, series, published) for name in figures.AGAINST if series}
    metric = figures.common({one.metric for one in groups})
    rows = groups[0].rows if len(groups) == 1 else []
    found = {name: findings.fall(rows, *FALLS[name]) for name in specs if name in FALLS}
    made = [
        figure(name, spec, "", metric, found.get(name, ""), diamonds=_diamonds(groups, spec))
        for name, spec in specs.items()
    ]
    apart = figures.links(rows)
    return [*made, *with_rows([figure("traffic-by-link", apart, finding=findings.links(rows))])]


def _diamonds(groups: Sequence[Group], spec: Tree) -> str:
    """What a caption says about the paper's figures, where some are drawn."""
    if not spec["datasets"]["paper"]:
        return ""
    other = " Settings that differ from the paper are listed under the table."
    return " Hollow diamonds are the paper's figures." + other * any(one.differences for one in groups)


def _cohorts(one: Group, taken: int | None) -> list[Tree]:
    numbers = one.numbers
    split = [n for n in numbers if n > 1]
    runs = [run for run in one.first_seeds if any(history.rounds for history in run.histories)]
    if not runs:
        return []
    first = next((run for n in (4, taken, *split) for run in runs if run.n == n and n in split), runs[0])
    chosen, seed = first.n, str(first.experiment.seed)
    picks, shown = {"n": chosen, "seed": seed}, f", n = {chosen}, seed {seed}"
    plain = "; the dashed line is the run that was not partitioned" if 1 in numbers and split else ""
    public = one.runs[0].experiment.stopping.metric == "public-agreement"
    shown_metric = "agreement" if public else one.metric
    axis = "agreement on public samples, %" if public else f"{one.metric} on validation samples, %"
    bars, meetings, finished = inside.bars(runs), inside.meeting_rows(runs), inside.finish_rows(one)
    met = " Ticks at the top: meetings; a cohort that waits for one waits, too." if meetings else ""
    waiting, ended = findings.waiting(bars, chosen, seed), findings.finishing(finished)
    each_n = [next(run for run in runs if run.n == n) for n in sorted({run.n for run in runs})]
    links = link_rows(each_n)
    waits = [
        {"n": run.n, "seed": own, "text": findings.waiting(bars, run.n, own)}
        for run in runs
        for own in [str(run.experiment.seed)]
    ]
    splits = [{"n": run.n, "text": findings.split(run)} for run in each_n]
    times = inside.timeline(bars, meetings, numbers, picks)
    drawn = method(links, numbers, picks)
    found = [
        figure("timeline", times, shown, finding=waiting, findings=waits, met=met),
        figure("method", drawn, f", n = {chosen}", finding=findings.split(first), findings=splits),
        figure("validation-loss", inside.losses_of(runs, numbers, picks), shown, plain=plain),
        figure(
            "evaluations", inside.evaluations(inside.evaluation_rows(runs), numbers, axis, picks), metric=shown_metric
        ),
        figure("finish-times", inside.finish_times(finished, numbers), finding=ended),
        figure("samples", inside.sizes(inside.size_rows(one), numbers)),
    ]
    return with_rows(found)


def _earlier(one: Group) -> list[Tree]:
    numbers, quorums = one.numbers, figures.quorum_rows(one)
    by_quorum = len({row["quorum"] for row in quorums}) > 1
    by_time = any(student.at is not None for run in one.runs for student in run.students)
    at, metric = one.published.get("at", []), one.metric
    rows, stops = figures.budget_rows(one), figures.stop_rows(one)
    budget = figures.earlier("time-budget", rows, numbers, at, metric, stops)
    ends = {row["cohorts"]: row["hours"] for row in one.rows}
    soon = findings.stopping(rows, ends, metric)
    found = [
        figure("time-budget", budget, "", metric, soon, diamonds=_diamonds([one], budget)),
        *(
            figure(name, figures.earlier(name, quorums, numbers, metric=metric), metric=metric)
            for name in ("quorum-accuracy", "quorum-hours")
        ),
    ]
    command = "cpfl report DIR --redistill"
    missing = (
        f"Not drawn yet: {command} makes the distillations that this figure needs."
        if any(run.experiment.snapshots for run in one.runs)
        else f"Not drawn: these runs kept no snapshots. Run them with --set snapshots=5h, then {command}."
    )
    return [
        made if available else {"missing": missing} | {key: made[key] for key in ("id", "title", "finding", "caption")}
        for made, available in zip(found, (by_time, by_quorum, by_quorum), strict=True)
        if max(numbers) > 1 or made["id"] == "time-budget"  # a single cohort has no quorum
    ]
