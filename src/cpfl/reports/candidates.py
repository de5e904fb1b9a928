"""What a report can recommend: each n of an experiment, its earlier distillations, and the same with other settings.

Runs on the same data, clients and devices are compared, whatever else differs. Others are not: they have other tasks.
"""

import json
import re
import shlex
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cpfl.errors import CpflError
from cpfl.reports.groups import VARIED, Group, differing
from cpfl.reports.reading import RunFacts, Student
from cpfl.reports.sentences import Measure
from cpfl.reports.verdict import Candidate, Score, known_mean
from cpfl.settings import GIVEN, Experiment, effects, experiment_file

TASK = ("clients", "devices", "model.objective")  # with the clients' data: what all candidates have in common
MOST_SETTINGS = 6  # in a command that begins with a preset; with more it begins with a run's file


@dataclass
class Comparison:
    """Candidates for one task; the lists have an entry for every candidate."""

    label: str
    candidates: list[Candidate] = field(default_factory=list)
    measure: Measure = field(default_factory=Measure)
    groups: list[Group] = field(default_factory=list)  # that the runs are of; none: they are not read
    runs: list[list[RunFacts]] = field(default_factory=list)
    early: list[tuple[str, str]] = field(default_factory=list)  # at or quorum, and its value
    commands: list[str] = field(default_factory=list)  # that make it again
    settings: list[dict[str, str]] = field(default_factory=list)  # that are not the same for all


def comparisons(groups: Iterable[Group]) -> list[Comparison]:
    """One for every task, in the order of the groups."""
    tasks: dict[str, list[Group]] = defaultdict(list)
    for group in groups:
        tasks[_task(group)].append(group)
    return [_comparison(members) for members in tasks.values()]


def command(word: str, run: RunFacts, without: Collection[str] = (), *more: str) -> str:
    """`cpfl run` or `cpfl sweep` with the settings of a run; empty where Python gave it what no command can."""
    experiment = run.experiment
    if GIVEN in effects.flat(experiment).values():
        return ""
    words = _source(experiment, without) or [f"{run.name}/experiment.toml"]
    return shlex.join(["cpfl", word, *words, *more])


def command_on(word: str, run: RunFacts, *more: str) -> str:
    """A command on a run folder, such as `cpfl distill`; empty where it needs what Python gave."""
    given = GIVEN in effects.flat(run.experiment).values()
    return "" if given else shlex.join(["cpfl", word, run.name, *more])


def _task(group: Group) -> str:
    settings = effects.flat(group.runs[0].experiment)
    public = "data.public"  # what is distilled on may differ
    keys = [key for key in settings if key.startswith(("data.", "devices.", *TASK)) and not key.startswith(public)]
    return json.dumps([group.metric, *(settings[key] for key in sorted(keys))])


def _comparison(groups: Sequence[Group]) -> Comparison:
    names = differing(groups)
    label = groups[0].label if len(groups) == 1 else groups[0].runs[0].experiment.name
    own = Comparison(label, measure=_measure(groups), groups=[*groups])
    for group, name in zip(groups, names, strict=True):
        finished = [run for run in group.runs if run.summary]
        for n in sorted({run.n for run in finished}):
            runs = [run for run in finished if run.n == n]
            text = ", ".join([f"n = {n}", *name])
            whole = [(run, run.students[0]) for run in runs]
            _add(own, text, n, whole)
            moments: dict[tuple[str, float], list[tuple[RunFacts, Student]]] = defaultdict(list)
            for run in runs:
                for student in run.students[1:]:
                    key = ("quorum", student.quorum) if student.at is None else ("at", student.at)
                    moments[key].append((run, student))
            for (kind, value), found in sorted(moments.items(), key=lambda one: (one[0][0], -one[0][1])):
                moment = f"at {value:g} h" if kind == "at" else f"quorum {100 * value:g} %"
                if len({run.experiment.seed for run, _ in found}) == len({run.experiment.seed for run in runs}):
                    _add(own, f"{text}, {moment}", n, found, (kind, f"{value:g}{'h' * (kind == 'at')}"))
    own.settings = _settings(own)
    return own


def _measure(groups: Sequence[Group]) -> Measure:
    """Metric and size of the test set, where every run has the same."""
    about = [run.about for group in groups for run in group.runs]
    sizes = {facts.get("samples", {}).get("test", 0) for facts in about}
    metric = groups[0].metric
    known = len(sizes) == 1 and metric == "accuracy"  # of others the size does not say how exact they are
    unit = "images" if {facts.get("inputs") for facts in about} == {"pixels"} else "samples"
    return Measure(metric, sizes.pop() if known else 0, unit)


def _settings(own: Comparison) -> list[dict[str, str]]:
    every = []
    for runs, (kind, value) in zip(own.runs, own.early, strict=True):
        settings = effects.flat(runs[0].experiment) | ({f"distillation.{kind}": value} if kind else {})
        every.append({key: str(value) for key, value in settings.items() if key not in ("seed", *VARIED[2:])})
    keys = {key for one in every for key in one if len({str(other.get(key)) for other in every}) > 1}
    return [{key: one[key] for key in sorted(keys & one.keys())} for one in every]


def _add(
    own: Comparison, name: str, n: int, found: Sequence[tuple[RunFacts, Student]], early: tuple[str, str] = ("", "")
) -> None:
    by_seed: dict[int, list[Student]] = defaultdict(list)
    for run, student in found:
        by_seed[run.experiment.seed].append(student)
    scores = {
        seed: Score(*(known_mean([getattr(s, key) for s in students]) for key in Score._fields))  # type: ignore[arg-type]
        for seed, students in sorted(by_seed.items())
    }
    if early[0] and any(one.n == n and one.scores == scores for one in own.candidates):
        return  # of two cohorts, a quorum of 25 % is one of 50 %
    runs = [run for run, _ in found]
    distilled = n > 1 and all((run.summary or {}).get("distill_seconds", 0) > 0 for run in runs)
    cut_off = 0 if early[0] == "at" else sum((run.summary or {}).get("cut_off", 0) for run in runs)
    own.candidates.append(Candidate(name, n, scores, bool(early[0]), distilled, cut_off))
    own.runs.append(runs)
    own.early.append(early)
    kind, value = early
    own.commands.append(
        command_on("distill", runs[0], f"--{kind}", value) if kind else command("run", runs[0], ("seed",))
    )


def _source(experiment: Experiment, without: Collection[str]) -> list[str]:
    """A preset's name and the settings on top of it, checked; empty: a command of it would be too long."""
    if experiment.name not in experiment_file.presets():
        return []
    preset, own = effects.flat(experiment_file.load(experiment.name)), effects.flat(experiment)
    keys = [key for key in own if own[key] != preset.get(key) and key not in ("precision", *without)]
    keys = [key for key in keys if key in ("cohorts", "seed") or not effects.unmet(experiment, key)]
    texts = [f"{key}={_word(own[key])}" for key in keys]
    try:
        made = experiment_file.load(experiment.name, texts)
    except CpflError:
        return []
    same = {key: value for key, value in effects.flat(made).items() if key not in ("precision", *without)}
    if len(keys) > MOST_SETTINGS or any(own[key] != value for key, value in same.items()):
        return []
    return [experiment.name, *(word for text in texts for word in ("--set", text))]


def _word(value: Any) -> str:
    bare = isinstance(value, str) and re.fullmatch(r"[\w./-]*[A-Za-z_/][\w./-]*", value)
    return value if bare and value not in ("true", "false", "inf", "nan") else json.dumps(value)
