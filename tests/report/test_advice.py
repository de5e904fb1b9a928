"""What a report recommends: the rule, its sentences, and the candidates that it finds in run folders."""

from __future__ import annotations

import json
import math
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_runs import reseal

import cpfl
from cpfl.errors import SettingError
from cpfl.reports.advice import Advice, advise, advise_runs, check_limits
from cpfl.reports.candidates import Comparison, comparisons
from cpfl.reports.figures import pareto
from cpfl.reports.groups import group
from cpfl.reports.sentences import Measure, fixed, sentences
from cpfl.reports.verdict import USUAL, Candidate, Limits, Score, decide
from cpfl.runs.finding import find_runs
from cpfl.settings import experiment_file

Triple = tuple[float, float, float]
# Accuracy, hours and CPU hours of make demo, by n and seed.
DEMO: dict[int, list[Triple]] = {
    1: [(68.25, 3.19, 30.6), (70.47, 7.18, 33.7), (71.31, 3.00, 34.0)],
    2: [(69.64, 3.69, 29.5), (68.80, 6.11, 30.8), (71.03, 3.01, 34.1)],
    4: [(64.35, 2.92, 16.4), (69.64, 3.88, 21.8), (69.64, 2.65, 30.4)],
    8: [(68.25, 1.79, 21.6), (67.69, 2.45, 18.4), (67.13, 3.01, 24.5)],
}
NEAR = "n = 8 would end 1.7× sooner (seed by seed 1.78×, 2.93×, 1.00×) and misses your limit by 0.3 points"


def candidate(n: int, values: list[Triple], ensemble: float | None = None, **more: Any) -> Candidate:
    scores = {90 + i: Score(a, h, cpu, h / 10, ensemble or a) for i, (a, h, cpu) in enumerate(values)}
    return Candidate(more.pop("name", f"n = {n}"), n, scores, **more)


def table(**hours: Triple) -> list[Candidate]:
    """One seed: n1=(70, 10, 5) …"""
    return [candidate(int(name[1:]), [values] * 3) for name, values in hours.items()]


def take(candidates: list[Candidate], limits: Limits = USUAL, samples: int = 0) -> str | None:
    chosen = decide(candidates, limits, samples).chosen
    return None if chosen is None else candidates[chosen].name


def said(candidates: list[Candidate], limits: Limits = USUAL, samples: int = 359) -> Any:
    return sentences(decide(candidates, limits, samples), Measure("accuracy", samples, "images"))


PAPER = table(n1=(70.4, 413, 5577), n4=(69.8, 218, 4249), n16=(64.6, 120, 2158), n200=(47.9, 59, 634))


@pytest.mark.parametrize(("max_drop", "n"), [(0, 1), (0.5, 1), (0.7, 4), (2, 4), (6, 16), (100, 200)])
def test_the_fastest_that_loses_no_more(max_drop: float, n: int) -> None:
    assert take(PAPER, Limits(max_drop)) == f"n = {n}"


def test_the_sentences() -> None:
    words = said(PAPER, samples=10_000)
    assert words.headline == "n = 4 ends 1.9× sooner than n = 1 and loses 0.6 points of accuracy"
    assert "218 h instead of 413, takes 4,249 CPU hours instead of 5,577" in words.detail
    assert "n = 16 would end 3.4× sooner, but loses 5.8 points, 3.8 over your limit." in words.detail
    assert words.evidence == "faster in 3 of 3 seeds · 10,000 test images, one is 0.01 points · none cut off"


def test_equal_hours_are_a_tie_whatever_rounding_says() -> None:
    """A difference of 1e-15 CPU hours must not choose the less accurate n."""
    assert take(table(n1=(70, 10, 9), n2=(69.5, 5, 4), n4=(68.5, 5, 4 - 1e-15))) == "n = 2"
    assert take(table(n1=(70, 10, 9), n2=(69.5, 5.2, 4), n4=(68.5, 5, 4))) == "n = 2"  # within 5 %
    assert take(table(n1=(70, 10, 9), n2=(69.5, 5.3, 4), n4=(68.5, 5, 4))) == "n = 4"
    assert take(table(n1=(70, 10, 9), n2=(69, 5, 4), n4=(69, 5, 3))) == "n = 4"  # then CPU hours decide


def test_what_gains_nothing_seed_by_seed_is_not_recommended() -> None:
    """The mean hours of n = 2 are lower, but only because of one seed."""
    found = [candidate(n, values) for n, values in DEMO.items()]
    words = said(found)
    assert take(found, samples=359) == "n = 1"
    assert words.headline == "No n gains time within 2 points: keep n = 1, or try n = 8"
    assert (
        "n = 8 would end 1.7× sooner (seed by seed 1.78×, 2.93×, 1.00×) and misses your limit by 0.3 points"
        in words.detail
    )
    assert "less than 359 test images can tell (±2.4)" in words.detail
    assert "n = 2 ends no sooner, seed by seed 0.86×, 1.18×, 1.00×" in words.detail
    assert words.verdicts == [
        "best within your limits",
        "fits, gains no time (1.00×)",
        "loses 2.1 points, 0.1 over your limit",
        "loses 2.3 points, 0.3 over your limit",
    ]
    assert words.evidence.startswith("3 seeds · 359 test images, one is 0.28 points")


def test_what_is_as_soon_and_more_accurate_is_taken() -> None:
    """In every seed, and by more than the test set may err; else it is luck."""
    plain = candidate(1, [(83.0, 1.0, 0.6), (84.0, 1.0, 0.6), (85.0, 1.0, 0.6)])
    better = candidate(4, [(91.0, 1.0, 6.0), (90.0, 1.0, 6.0), (91.0, 1.01, 6.0)])
    assert take([plain, better], samples=359) == "n = 4"
    words = said([plain, better])
    assert words.headline == "n = 4 ends no sooner than n = 1 and gains 6.7 points of accuracy"
    assert words.evidence.startswith("more accurate in 3 of 3 seeds")
    once = candidate(4, [(99.0, 1.0, 6.0), (90.0, 1.0, 6.0), (84.9, 1.0, 6.0)])
    later = candidate(4, [(91.0, 1.2, 6.0), (90.0, 1.2, 6.0), (91.0, 1.2, 6.0)])
    little = candidate(4, [(83.5, 1.0, 6.0), (84.5, 1.0, 6.0), (85.5, 1.0, 6.0)])
    for other in (once, later, little):
        assert take([plain, other], samples=359) == "n = 1"


def test_a_near_miss_is_one_that_the_test_set_cannot_tell() -> None:
    found = table(n1=(70, 10, 9), n4=(67.5, 5, 4))
    assert decide(found, Limits(), 359).near == 1  # 0.5 over the limit, and 359 samples tell 2.4 points
    assert decide(found, Limits(), 100_000).near is None
    assert decide(found, Limits(1.9)).near is None  # 0.6 over, where the size of the test set is unknown


def test_accuracy_that_distillation_loses_is_not_blamed_on_n() -> None:
    found = [candidate(1, [(77, 10, 9)] * 3), candidate(2, [(64.8, 5, 4)] * 3, ensemble=77.9)]
    words = said(found)
    assert words.headline == "Keep n = 1 until distillation works: it loses 13.1 points at n = 2"
    assert "its ensemble has 77.9 %, its student 64.8 %" in words.detail
    merged = [found[0], candidate(2, [(64.8, 5, 4)] * 3, ensemble=77.9, distilled=False)]
    assert "distillation" not in said(merged).headline
    by_n = [found[0], candidate(2, [(64.8, 5, 4)] * 3, ensemble=66.0)]
    assert said(by_n).headline == "No n gains time within 2 points: keep n = 1"


def test_what_was_distilled_earlier_can_be_chosen() -> None:
    early = candidate(4, [(69, 3, 3)] * 3, name="n = 4, quorum 50 %", early=True)
    found = [*table(n1=(70, 10, 9), n4=(69.5, 8, 7)), early]
    assert take(found) == "n = 4, quorum 50 %"
    plain = candidate(1, [(71, 2, 2)] * 3, name="n = 1, at 2 h", early=True)
    assert decide([*found, plain], Limits()).reference == 0  # the whole run stays the reference
    assert take([*found, plain]) == "n = 1, at 2 h"


def test_limits_of_time_compute_and_traffic() -> None:
    found = [candidate(n, values) for n, values in DEMO.items()]
    assert take(found, Limits(3, max_hours=4)) == "n = 8"
    assert take(found, Limits(3, max_hours=3.005)) is None  # one seed of n = 8 ends after 3.01 hours
    assert take(found, Limits(3, max_cpu_hours=22)) == "n = 8"
    assert take(found, Limits(3, max_gb=0.25)) == "n = 8"
    words = said(found, Limits(2, max_hours=3.5))
    assert words.headline == "No n fits these limits; n = 8 comes closest"
    assert words.detail.startswith(
        "n = 8 would end 1.7× sooner (seed by seed 1.78×, 2.93×, 1.00×) and misses your limit by 0.3 points"
    )
    assert "ends after 7.18 h, past your deadline" in words.verdicts[0]


def test_other_settings_are_compared_with_the_strongest_plain_run() -> None:
    weak = candidate(1, [(60, 9, 9)] * 3, name="n = 1, federation.lr = 0.01")
    found = [weak, *table(n1=(70, 10, 9)), candidate(4, [(69, 5, 4)] * 3, name="n = 4, meetings.rule = mean")]
    choice = decide(found, Limits())
    assert found[choice.reference].name == "n = 1"
    words = said(found)
    assert words.headline.startswith("n = 4, meetings.rule = mean ends 2.0× sooner than n = 1 and loses 1.0 points")


def test_seeds_that_do_not_match_are_named() -> None:
    found = [Candidate("n = 1", 1, {90: Score(70, 10, 9, 1, 70)}), Candidate("n = 2", 2, {91: Score(69, 5, 4, 1, 69)})]
    choice = decide(found, Limits())
    assert not choice.rows[1].paired
    assert choice.rows[1].speed == pytest.approx(2)
    assert said(found).evidence.startswith("no seed in common with n = 1")


KNOWN = st.none() | st.floats(0, 100)
COSTS = (st.floats(0, 99), st.floats(0, 99), st.floats(0, 9))
SCORES = st.builds(Score, st.floats(0, 100), *COSTS, st.floats(0, 100), KNOWN, KNOWN)


@given(st.lists(st.lists(SCORES, min_size=1, max_size=3), min_size=2, max_size=6), st.floats(0, 20))
def test_what_is_chosen_fits_and_no_other_that_fits_is_notably_faster(table: list[list[Score]], drop: float) -> None:
    found = [Candidate(f"n = {i + 1}", i + 1, dict(enumerate(scores))) for i, scores in enumerate(table)]
    choice = decide(found, Limits(drop))
    assert choice.chosen is not None  # n = 1 loses nothing against itself
    row = choice.rows[choice.chosen]
    assert row.drop <= drop + 1e-6
    fitting = [other for other in choice.rows if not other.fails]
    assert all(other.speed < 1.1 + 1e-6 or other.speed <= 1.05 * row.speed * (1 + 1e-6) for other in fitting)
    assert said(found, Limits(drop)).headline


@given(st.floats(0, 1e6), st.integers(0, 3))
def test_numbers_are_rounded_to_the_nearest(value: float, digits: int) -> None:
    assert math.isclose(float(fixed(value, digits).replace(",", "")), value, abs_tol=0.5 * 10.0**-digits + 1e-6)


@pytest.mark.parametrize("max_drop", [-1.0, float("nan"), float("inf"), 101.0])
def test_a_max_drop_that_is_none(max_drop: float) -> None:
    with pytest.raises(SettingError, match=r"max_drop = .* points of accuracy, 0 to 100"):
        check_limits(Limits(max_drop))


@pytest.mark.parametrize("hours", [0.0, -1.0, float("nan"), float("inf")])
def test_a_deadline_that_is_none(hours: float) -> None:
    with pytest.raises(SettingError, match=r"max_hours = .* is not allowed: a number above 0"):
        check_limits(Limits(max_hours=hours))


# From run folders.


def only(folder: Path, limits: Limits = USUAL) -> Advice:
    found = advise_runs(find_runs(folder), limits)
    assert len(found) == 1
    return found[0]


def test_of_run_folders(made: Path, summaries: dict[tuple[int, int], dict[str, Any]]) -> None:
    advice = only(made, Limits(100))
    found = {one.name: one for one in advice.comparison.candidates}
    assert list(found) == ["n = 1", "n = 2", "n = 4"]
    for (n, seed), summary in summaries.items():
        score = found[f"n = {n}"].scores[seed]
        assert score.accuracy == summary["student_accuracy"]
        assert (score.hours, score.cpu_hours, score.gb) == tuple(summary[k] for k in ("hours", "cpu_hours", "comm_gb"))
    assert advice.comparison.measure.samples > 0
    lines = advice.text().splitlines()
    assert lines[:2] == [advice.words.headline, advice.words.evidence]
    tree = advice.tree()
    assert tree["n"] == advice.n
    assert [one["name"] for one in tree["candidates"]] == list(found)


def test_the_next_command_can_be_run(made: Path, small: dict[str, Any]) -> None:
    """Its settings are those of the runs, in a command that the program takes."""
    advice = only(made)
    words = shlex.split(advice.next)
    assert words[:2] == ["cpfl", "sweep"]  # two seeds are few
    assert words[-4:] == ["--cohorts", "1,2,4", "--seeds", "92,93,94"]
    source = words[2]
    assert source.endswith("experiment.toml")  # so many settings are no command
    assert experiment_file.load(source).clients == small["clients"]


def test_nothing_to_choose_between(made: Path, tmp_path: Path) -> None:
    assert comparisons(group([])) == []
    only_n = only(made / "n4-seed90")
    assert only_n.n is None
    assert only_n.words.headline == "Only n = 4 has been run: there is nothing to compare"
    assert "--cohorts 1,2,4,8 --seeds 90,91,92" in only_n.next
    shutil.copytree(made / "n4-seed90", tmp_path / "open")
    (tmp_path / "open" / "summary.json").unlink()
    assert only(tmp_path / "open").words.headline == "No run is finished yet"


def test_doubts_are_listed(made: Path, runs: Path, change: Callable[..., None]) -> None:
    shutil.rmtree(runs / "n4-seed91")
    change(runs / "n2-seed90" / "summary.json", lambda tree: tree.update(cut_off=1))
    doubts = " ".join(only(runs).doubts)
    assert "One seed only for n = 4" in doubts
    assert "max_rounds stopped cohorts before they had converged: n = " in doubts
    for seed in (90, 91):
        shutil.rmtree(runs / f"n1-seed{seed}")
    without = only(runs)
    assert "There is no finished run with n = 1" in " ".join(without.doubts)
    assert "--cohorts 1 --seeds" in without.next


def test_runs_with_other_settings_are_candidates_of_one_comparison(runs: Path) -> None:
    """Another stopping rule is another candidate; other data are another task."""
    shutil.copytree(runs / "n4-seed90", runs / "other")
    _edit(runs / "other", "window = 2", "window = 3")
    advice = only(runs)
    found = advice.comparison.candidates
    assert [one.name for one in found] == ["n = 1", "n = 2", "n = 4", "n = 4, stopping.window = 3"]
    assert found[3].scores == {90: found[2].scores[90]}  # as good, and still another candidate
    assert [one.get("stopping.window") for one in advice.comparison.settings] == ["2", "2", "2", "3"]
    _edit(runs / "other", "alpha = 0.5", "alpha = 0.2")
    assert len(advise_runs(find_runs(runs))) == 2


def test_a_quorum_that_is_another_ones_is_no_candidate(runs: Path) -> None:
    """Of two cohorts a quorum of 25 % is one of 50 %."""
    for seed in (90, 91):
        for quorum in (0.25, 0.5):
            cpfl.distill(runs / f"n2-seed{seed}", quorum=quorum)
    cpfl.distill(runs / "n4-seed90", quorum=0.5)  # one seed of two
    names = [one.name for one in only(runs).comparison.candidates]
    assert names == ["n = 1", "n = 2", "n = 2, quorum 50 %", "n = 4"]
    assert only(runs).comparison.commands[2] == shlex.join(["cpfl", "distill", f"{runs}/n2-seed90", "--quorum", "0.5"])


def test_runs_that_have_names_are_called_by_them(runs: Path) -> None:
    for seed in (90, 91):
        _edit(runs / f"n4-seed{seed}", 'name = "digits"', 'name = "meeting"')
        _edit(runs / f"n4-seed{seed}", "window = 2", "window = 3")
    names = [one.name for one in only(runs).comparison.candidates]
    assert names == ["n = 1, digits", "n = 2, digits", "n = 4, meeting"]


def _edit(run: Path, old: str, new: str) -> None:
    path = run / "experiment.toml"
    text = f"\n{path.read_text()}"
    assert text.count(f"\n{old}\n") == 1
    path.write_text(text.replace(f"\n{old}\n", f"\n{new}\n")[1:])
    reseal(run)


POINTS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=12)


@given(POINTS)
def test_the_pareto_front_is_what_no_point_beats(pairs: list[tuple[int, int]]) -> None:
    front = pareto({"hours": hours, "accuracy": accuracy} for hours, accuracy in pairs)
    unbeaten = {
        (h, a) for h, a in pairs if not any((x <= h and y >= a) and (x, y) != (h, a) for x, y in pairs)
    }  # the definition
    assert {(p["hours"], p["accuracy"]) for p in front} == unbeaten


def test_validation_is_told_and_its_disagreement_is_a_doubt(runs: Path) -> None:
    """Of the run folders' own clients.json; then of one in which validation is much worse."""
    paths = find_runs(runs)
    advice = advise_runs(paths, Limits(100))[0]
    assert advice.choice is not None
    row = next(row for row in advice.choice.rows if row.candidate.n == 4)
    means = []
    for n in (1, 4):
        for seed in (90, 91):
            clients = json.loads((runs / f"n{n}-seed{seed}" / "clients.json").read_text())["clients"]
            held = [one for one in clients if one["held_back"]]
            own = sum(one["held_back"] * one["accuracy_held_back"] for one in held)
            means.append(own / sum(one["held_back"] for one in held))
    assert row.validation_drop == pytest.approx((means[0] - means[2] + means[1] - means[3]) / 2)
    assert row.global_gb is not None
    assert 0 < row.global_gb < row.gb


def test_test_set_and_validation_on_two_sides_of_the_limit() -> None:
    scores = {1: Score(70, 10, 9, 1, 70, 71), 2: Score(69, 5, 4, 1, 69, 66)}
    found = [Candidate(f"n = {n}", n, {90: score}) for n, score in scores.items()]
    advice = advise(Comparison("two", found, commands=["", ""]))
    assert advice.n == 2
    assert advice.words.evidence.endswith("on validation samples it loses 5.0 points")
    assert advice.doubts[-1] == (
        "Test and validation disagree about your limit of 2 points: "
        "n = 2 loses 1.0 points on the test set, but loses 5.0 points on validation samples."
    )
    assert not any(
        "disagree" in doubt for doubt in advise(Comparison("two", found, commands=["", ""]), Limits(10)).doubts
    )
