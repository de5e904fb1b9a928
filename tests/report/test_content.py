"""Figures and tables show what the run folders hold."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import reseal

import cpfl
from cpfl.reports import style
from cpfl.reports.cohort_figures import thinned
from cpfl.reports.content import all_figures, content
from cpfl.runs import records
from cpfl.runs.finding import find_runs

Summaries = dict[tuple[int, int], dict[str, Any]]
Change = Callable[[Path, Callable[[dict[str, Any]], None]], None]


def values(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """All rows that a specification carries."""
    named = [row for rows in spec.get("datasets", {}).values() for row in rows]
    own = spec.get("data", {}).get("values", [])
    return [*named, *own, *(row for layer in spec.get("layer", ()) for row in values(layer))]


def figure(tree: dict[str, Any], name: str) -> dict[str, Any]:
    return next(figure for figure in all_figures(tree) if figure["id"] == name)


@pytest.fixture(scope="module")
def tree(made: Path) -> dict[str, Any]:
    return content(find_runs(made))


def test_every_figure_of_the_paper(tree: dict[str, Any]) -> None:
    names = {figure["id"] for figure in all_figures(tree)}
    assert names >= {"trade-off", "accuracy-against-n", "hours-against-n", "cpu-hours-against-n", "traffic-against-n"}
    assert names >= {"validation-loss", "timeline", "finish-times", "samples"}
    json.dumps(tree, allow_nan=False)  # plain data, nothing else


@pytest.mark.parametrize(
    ("name", "key"),
    [("hours-against-n", "hours"), ("cpu-hours-against-n", "cpu_hours"), ("traffic-against-n", "comm_gb")],
)
def test_mean_and_spread_over_seeds(tree: dict[str, Any], summaries: Summaries, name: str, key: str) -> None:
    rows = {row["n"]: row for row in values(figure(tree, name)["spec"])}
    assert set(rows) == {1, 2, 4}
    for n, row in rows.items():
        of_seeds = [summaries[n, seed][key] for seed in (90, 91)]
        assert row["value"] == pytest.approx(sum(of_seeds) / 2)
        assert row["high"] - row["value"] == pytest.approx(statistics.stdev(of_seeds))


def test_the_table_is_the_papers(tree: dict[str, Any], summaries: Summaries) -> None:
    table = tree["groups"][0]["table"]
    rows = {row[0]["text"]: dict(zip(table["head"], (c["text"] for c in row), strict=True)) for row in table["rows"]}
    of_four = [summaries[4, seed] for seed in (90, 91)]
    teachers = statistics.fmean(s["teacher_accuracy_mean"] for s in of_four)
    student = statistics.fmean(s["student_accuracy"] for s in of_four)
    assert rows["4"]["teachers %"].startswith(f"{teachers:.1f} ± ")
    assert rows["4"]["student %"].startswith(f"{student:.1f} ± ")
    assert rows["4"]["gain"] == f"{student - teachers:.1f}"
    assert rows["1"]["teachers %"] == "–"


def without_patience(settings: dict[str, Any]) -> dict[str, Any]:
    """For other rules than plateau, where it has no effect."""
    return {key: value for key, value in settings.items() if key != "stopping.patience"}


def test_evaluations_of_the_ensemble(tmp_path: Path, small: dict[str, Any]) -> None:
    """Under the rule joint: the figure shows what was written, and a damaged line is named."""
    joint = {"stopping.rule": "joint", "stopping.eval_interval": 2, "stopping.eval_window": 4, "max_rounds": 10}
    for n in (1, 2):
        settings = without_patience(small) | joint | {"cohorts": n}
        cpfl.run("digits", out=tmp_path / f"n{n}", settings=settings, device="cpu", engine="reference")
    written = {n: records.read(tmp_path / f"n{n}/evaluations.jsonl") for n in (1, 2)}
    rows = values(figure(content(find_runs(tmp_path)), "evaluations")["spec"])
    assert len(written[2]) > 1
    for n, lines in written.items():
        drawn = [(row["round"], row["cpu"], row["accuracy"], row["stop"]) for row in rows if row["n"] == n]
        want = [(line["round"], line["cpu_hours"], line["accuracy"], line["decision"] == "stop") for line in lines]
        assert [one[::3] for one in drawn] == [one[::3] for one in want]
        np.testing.assert_allclose([one[1:3] for one in drawn], [one[1:3] for one in want], rtol=1e-3)
    with (tmp_path / "n2/evaluations.jsonl").open("a") as file:
        file.write('{"round": 12, "accuracy": 50}\n')
    tree = content(find_runs(tmp_path))
    assert [one["path"].endswith("n2") for one in tree["damaged"]] == [True]
    assert "evaluations.jsonl was changed after it was written" in tree["damaged"][0]["reason"]


def test_finish_times(tree: dict[str, Any], summaries: Summaries) -> None:
    rows = values(figure(tree, "finish-times")["spec"])
    for n, seed in summaries:  # no seeds are pooled
        hours = [cohort["hours"] for cohort in summaries[n, seed]["by_cohort"]]
        own = [row for row in rows if (row["n"], row["seed"]) == (n, str(seed))]
        last = next(row for row in own if row.get("last"))
        assert last["hours"] == pytest.approx(max(hours), rel=1e-4)
        assert last["share"] == 100
        for row in own:
            if row["hours"]:
                ended = sum(hour <= row["hours"] * 1.0001 for hour in hours)
                assert row["share"] == pytest.approx(100 * ended / len(hours), rel=1e-3)


def test_losses_and_stops(tree: dict[str, Any], made: Path) -> None:
    rows = figure(tree, "validation-loss")["spec"]["datasets"]["cohorts"]
    for n, seed in itertools.product((2, 4), (90, 91)):
        for cohort in range(n):
            text = (made / f"n{n}-seed{seed}" / "rounds" / f"cohort-{cohort:04d}.jsonl").read_text()
            last = json.loads(text.splitlines()[-1])
            stop = [
                row
                for row in rows
                if (row["n"], row["seed"]) == (n, str(seed)) and row["cohort"] == cohort and "stop" in row
            ]
            assert len(stop) == 1
            assert stop[0]["hours"] == pytest.approx(last["clock"] / 3600, rel=1e-4)
            assert stop[0]["loss"] == pytest.approx(last["moving_average"], rel=1e-4)


def test_the_timeline_adds_up(tree: dict[str, Any], made: Path) -> None:
    rows = [row for row in values(figure(tree, "timeline")["spec"]) if (row["n"], row["seed"]) == (4, "90")]
    bars = {row["cohort"]: row for row in rows}
    for cohort, bar in bars.items():
        text = (made / "n4-seed90" / "rounds" / f"cohort-{cohort:04d}.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        busy = sum(line["cpu_seconds"] / len(line["participants"]) for line in lines)
        assert bar["rounds"] == len(lines)
        assert bar["busy"] * 3600 == pytest.approx(busy, rel=1e-4)
        assert bar["waited"] == pytest.approx(100 * (1 - busy / lines[-1]["clock"]), rel=1e-3)
        assert 0 <= bar["busy"] <= bar["hours"] * 1.0001
    ordered = sorted(bars.values(), key=lambda bar: bar["top"])
    assert [bar["hours"] for bar in ordered] == sorted(bar["hours"] for bar in bars.values())


def test_samples_are_those_of_the_cohort(tree: dict[str, Any], made: Path) -> None:
    counts = json.loads((made / "n2-seed91" / "run.json").read_text())["label_counts"]
    rows = values(figure(tree, "samples")["spec"])
    assert sorted(r["samples"] for r in rows if (r["n"], r["seed"]) == (2, 91)) == sorted(map(sum, counts))


def test_experiments_that_differ_are_kept_apart(runs: Path) -> None:
    for seed in (90, 91):
        for n in (1, 2):
            path = runs / f"n{n}-seed{seed}" / "experiment.toml"
            path.write_text(path.read_text().replace("alpha = 0.5", "alpha = 3.0"))
            reseal(path.parent)
    tree = content(find_runs(runs))
    assert [group["label"] for group in tree["groups"]] == ["digits, α = 0.5", "digits, α = 3"]
    assert [len(group["runs"]) for group in tree["groups"]] == [2, 4]
    assert "2 different experiments" in tree["notes"][0]
    together = figure(tree, "all-accuracy-against-n")
    assert {row["experiment"] for row in values(together["spec"])} == {"digits, α = 0.5", "digits, α = 3"}
    assert len({figure["id"] for figure in all_figures(tree)}) == len(all_figures(tree))


def test_what_is_kept_does_not_make_another_experiment(runs: Path) -> None:
    path = runs / "n2-seed90" / "experiment.toml"
    path.write_text(path.read_text().replace('snapshots = "2 rounds"', 'snapshots = ""'))
    reseal(path.parent)
    assert len(content(find_runs(runs))["groups"]) == 1


def test_published_figures_are_shown_beside(runs: Path, change: Change) -> None:
    carried = {"source": "A paper", "by_n": [{"n": 2, "student": 12.5, "student_spread": 0.5, "hours": 3}], "at": []}
    for path in runs.glob("*/run.json"):
        change(path, lambda about: about.update(published=carried))
    tree = content(find_runs(runs))
    row = next(row for row in tree["groups"][0]["table"]["rows"] if row[0]["text"] == "2")
    assert [cell["paper"] for cell in row if cell["paper"]] == ["12.5 ± 0.5", "3"]
    for name in ("trade-off", "accuracy-against-n", "hours-against-n"):
        made = figure(tree, name)
        assert "Hollow diamonds" in made["caption"]
        assert any(12.5 in row.values() or 3 in row.values() for row in values(made["spec"]))
    assert "Hollow" not in figure(tree, "traffic-against-n")["caption"]
    for path in runs.glob("*/run.json"):  # no hours are printed, as the paper prints none for α = 1
        change(path, lambda about: about.update(published=carried | {"by_n": [{"n": 2, "student": 12.5}]}))
    tree = content(find_runs(runs))
    assert "Hollow diamonds" in figure(tree, "accuracy-against-n")["caption"]
    assert "Hollow" not in figure(tree, "trade-off")["caption"]


@pytest.mark.parametrize("carried", ["text", {"by_n": 3}, {"by_n": [{"n": "x"}], "at": []}, {"by_n": [[]], "at": []}])
def test_published_figures_of_another_shape(runs: Path, change: Change, carried: object) -> None:
    change(runs / "n2-seed90" / "run.json", lambda about: about.update(published=carried))
    damaged = content(find_runs(runs))["damaged"]
    assert [(Path(run["path"]).name, "published" in run["reason"]) for run in damaged] == [("n2-seed90", True)]


def test_damage_that_only_a_figure_meets(runs: Path) -> None:
    """The summary is fine, a round is not: the other seed is drawn instead, and the run is named."""
    (runs / "n4-seed90" / "rounds" / "cohort-0001.jsonl").write_text('{"round": 1}\n')
    tree = content(find_runs(runs))
    assert [Path(run["path"]).name for run in tree["damaged"]] == ["n4-seed90"]
    assert "cohort-0001.jsonl is damaged" in tree["damaged"][0]["reason"]
    assert any(row["n"] == 4 for row in values(figure(tree, "validation-loss")["spec"]))


@pytest.mark.parametrize("value", [None, "much", math.inf])
def test_a_summary_without_its_numbers(runs: Path, change: Change, value: object) -> None:
    change(runs / "n2-seed91" / "summary.json", lambda summary: summary.update(hours=value))
    tree = content(find_runs(runs))
    assert [Path(run["path"]).name for run in tree["damaged"]] == ["n2-seed91"]
    assert "hours" in tree["damaged"][0]["reason"]


@pytest.mark.parametrize("count", [1, 2, 5, 99, 100, 101, 5000])
def test_thinned_curves_keep_their_ends(count: int) -> None:
    rows = list(range(count))
    kept = thinned(rows, 100)
    assert len(kept) == min(count, 100)
    assert (kept[0], kept[-1]) == (0, count - 1)
    assert kept == sorted(set(kept))


def test_max_rounds_separates_no_runs_unless_one_reached_it(tmp_path: Path, small: dict[str, Any]) -> None:
    def run(n: int, most: int) -> list[str]:
        rule = {"stopping.rule": "rounds", "stopping.rounds": 4}
        settings = without_patience(small) | rule | {"cohorts": n, "max_rounds": most}
        out = tmp_path / f"n{n}-most{most}"
        cpfl.run("digits", out=out, settings=settings, device="cpu", engine="reference")
        return [group["label"] for group in content(find_runs(tmp_path))["groups"]]

    assert run(1, most=9) == ["digits"]
    assert run(2, most=8) == ["digits"]
    assert run(4, most=3) == [f"digits, max_rounds = {most}" for most in (3, 8, 9)]


def test_meetings_are_ticks_in_the_timeline(small: dict[str, Any], tmp_path: Path) -> None:
    meet = {
        "cohorts": 2,
        "meetings.rule": "mean",
        "meetings.interval": "3 rounds",
        "max_rounds": 12,
        "stopping.patience": 20,
    }
    run = cpfl.run("digits", out=tmp_path / "run", settings=small | meet, device="cpu", engine="reference")
    drawn = figure(content([run.path]), "timeline")
    lines = (run.path / "meetings.jsonl").read_text().splitlines()
    clocks = [line["clock"] for line in map(json.loads, lines) if "clock" in line]
    assert len(clocks) >= 2
    ticks = drawn["spec"]["datasets"]["meetings"]
    assert [tick["hours"] for tick in ticks] == pytest.approx([clock / 3600 for clock in clocks], rel=1e-4)
    assert "meetings" in drawn["caption"]
    picture = style.converter().vegalite_to_svg(drawn["spec"])
    assert picture.count('aria-roledescription="tick"') == len(clocks)
