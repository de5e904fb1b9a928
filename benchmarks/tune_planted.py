"""How far is the best of 40 trials of `cpfl tune` from the best of all combinations?

    python benchmarks/tune_planted.py enumerate    # runs every combination once; continues where it was
    python benchmarks/tune_planted.py compare      # 40 trials with each of five seeds, against random search
    python benchmarks/tune_planted.py try          # with twenty other seeds, to choose the search by; writes nothing

A small fleet of fast, slower and slow devices. Every combination of the space is trained as `cpfl tune` trains a trial,
and its curve is kept in results/tune/planted.jsonl. Then the search proposes trials as it does in `cpfl tune`, and is
told the curves that are known: nothing is trained twice. No trial is stopped early.
"""

import itertools
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cpfl.engines.ray import resolve_cluster
from cpfl.errors import CpflError
from cpfl.reports import style
from cpfl.runs import files, records
from cpfl.settings import Experiment
from cpfl.sweeps.callback import SweepCallback
from cpfl.sweeps.one_run import End, Work
from cpfl.sweeps.runner import machines
from cpfl.tuning.curve import FILE, CurveFollower, read_curve
from cpfl.tuning.goal import Goal, Point
from cpfl.tuning.space import Dimension, settings_of
from cpfl.tuning.start import load
from cpfl.tuning.tuner import Tuner

RESULTS = Path(__file__).parents[1] / "results" / "tune"
TABLE = RESULTS / "planted.jsonl"
CLIENTS, HOURS, POINTS, TRIALS, CHUNK = 12, 0.016, 8, 40, 30
SPEEDS = [10] * 6 + [20] * 3 + [60] * 3  # milliseconds a sample
SEARCH = {
    "cohorts": [1, 2, 4],
    "assignment.rule": ["random", "speed"],
    "meetings.rule": ["none", "mean"],
    "meetings.interval": ["5s"],
    "federation.deadline": [0, 2.0, 6.0],
    "federation.straggler_policy": ["drop", "partial"],
    "federation.participation": [0.25, 0.5, 1.0],
    "federation.server": ["mean", "fedavgm"],
    "federation.server_args.lr": {"values": [0.3, 1.0], "when": "federation.server = fedavgm"},
    "federation.local_epochs": [1, 4],
    "distillation.weights": ["labels"],
}


def tuner(folder: Path) -> Tuner:
    """A tune of this fleet into a folder."""
    fleet = folder / "fleet.csv"
    rows = [f"{number},{speed},5000" for number, speed in enumerate(SPEEDS)]
    fleet.write_text("\n".join(["client_id,computation_ms_per_sample,communication_kbps", *rows]) + "\n")
    base = Experiment(
        name="planted",
        clients=CLIENTS,
        cohorts=1,
        data={
            "train": "digits-grainy", "public": "letters-grainy", "train_limit": 540, "public_limit": 200,
            "validation": 0.4, "alpha": 1.0,
        },
        model={"name": "mlp"},
        federation={"lr": 0.05, "momentum": 0.5},
        devices={"trace": str(fleet)},
    )  # fmt: skip
    request = {"trials": TRIALS, "search": SEARCH, "fixed": [], "points": POINTS, "batch": 6, "prune": False}
    common = {"engine": "auto"}
    made = Tuner(base, Goal(hours=HOURS), folder, request, common, SweepCallback(), partial(load, common=common))
    made.prepare(None)
    return made


def combinations(made: Tuner) -> dict[str, tuple[dict[str, Any], Experiment]]:
    """All experiments of the space that differ and can be run, by their checksum."""
    found: dict[str, tuple[dict[str, Any], Experiment]] = {}
    for values in itertools.product(*(one.values for one in made.space)):
        chosen = dict(zip((one.key for one in made.space), values, strict=True))
        settings = settings_of(made.space, made.base, partial(chosen_value, chosen))
        with suppress(CpflError):  # nobody of a cohort is ever in time
            experiment = made.planner.plan(settings).experiment.resolved("cpu")
            found.setdefault(name(experiment), (settings, experiment))
    return found


def chosen_value(chosen: Mapping[str, Any], one: Dimension) -> Any:
    """What a combination has of a dimension."""
    return chosen[one.key]


def name(experiment: Experiment) -> str:
    """What tells experiments apart, wherever the fleet's file is."""
    tree = experiment.model_dump(mode="json")
    tree["devices"]["trace"] = "fleet.csv"
    return files.checksum(tree)


def stored(made: Tuner) -> dict[str, list[Point]]:
    """The curves that are known, by the names of their experiments as this version of cpfl has them."""
    experiments = ((line, made.planner.plan(line["settings"]).experiment) for line in records.read(TABLE))
    return {name(one.resolved("cpu")): [Point(**point) for point in line["curve"]] for line, one in experiments}


def enumerate_all() -> None:
    """Train what is missing."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    records.repair(TABLE)
    common = {"engine": "auto", "cluster": resolve_cluster(None, "cpu"), "device": "cpu", "train_only": True}
    with tempfile.TemporaryDirectory() as folder:
        made = tuner(Path(folder))
        wanted = combinations(made)
        done = stored(made)
        left = [one for one in wanted if one not in done]
        print(f"{len(wanted)} combinations, {len(left)} to run", flush=True)
        common["follow"] = Follow(made.goal)
        with machines("auto", Path(folder), 1, common) as (_, make_runs):
            for chunk in chunks(left):
                work = {Path(folder) / "runs" / key: wanted[key][1] for key in chunk}
                errors: dict[Path, str] = {}

                def end(path: Path, error: Exception | None, errors: dict[Path, str] = errors) -> None:
                    if error is not None:
                        errors[path] = str(error)

                make_runs(work, common, SweepCallback(), end)
                for key, path in zip(chunk, work, strict=True):
                    curve = read_curve(path)[0] if path.is_dir() else []
                    line = {"settings": wanted[key][0], "error": errors.get(path, "")}
                    records.append(TABLE, {**line, "curve": [asdict(point) for point in curve]})
                    shutil.rmtree(path, ignore_errors=True)
                print(f"{len(records.read(TABLE))} of {len(wanted)}", flush=True)


class Follow:
    """A follower for every run, without pruning."""

    def __init__(self, goal: Goal) -> None:
        self._goal = goal

    def __call__(self, path: Path) -> CurveFollower:
        return CurveFollower(self._goal, prune=False)


def chunks(keys: list[str]) -> list[list[str]]:
    """In order, a few at a time."""
    return [keys[k : k + CHUNK] for k in range(0, len(keys), CHUNK)]


def compare(seeds: Sequence[int] = range(5), write: bool = True) -> None:
    """The search with these seeds, and random search, from the table."""
    with tempfile.TemporaryDirectory() as folder:
        table = stored(tuner(Path(folder)))
    goal = Goal(hours=HOURS)
    values = {key: goal.value(curve) for key, curve in table.items()}
    best = max(values.values())
    print(f"{len(values)} combinations: best {best:.2f} %, median {statistics.median(values.values()):.2f} %")
    near = sum(value >= best - 0.5 for value in values.values())
    print(f"{near} of them are within 0.5 points of the best")
    searched = {f"search, seed {seed}": regrets(seed, table, values, best) for seed in seeds}
    rng = np.random.default_rng(0)
    pool = np.array(sorted(values.values()))
    draws = np.array([np.maximum.accumulate(rng.permutation(pool)[:TRIALS]) for _ in range(2000)])
    random = best - draws.mean(axis=0)
    for who, curve in searched.items():
        print(f"{who}: {curve[-1]:.2f} points from the best after {len(curve)} trials")
    means = np.mean([curve[:TRIALS] for curve in searched.values()], axis=0)
    last = [curve[-1] for curve in searched.values()]
    print(f"within 0.5 points: {sum(regret <= 0.5 for regret in last)} of {len(last)} searches")
    within = (best - draws[:, -1] <= 0.5).mean()
    print(
        f"mean of the search {means[-1]:.2f}; random search {random[-1]:.2f}, within 0.5 points: {100 * within:.0f} %"
    )
    if not write:
        return
    outcome = {
        "combinations": len(values), "best": best, "within_half_a_point": near, "trials": TRIALS, "search": searched,
        "random_mean": random.tolist(), "random_within_half_a_point": float(within),
        "planted": best_settings(goal, best),
    }  # fmt: skip
    files.write_json(RESULTS / "planted.json", outcome)
    draw(searched, random.tolist())


def best_settings(goal: Goal, best: float) -> list[dict[str, Any]]:
    """The settings of the best combinations."""
    lines = [(line, [Point(**point) for point in line["curve"]]) for line in records.read(TABLE)]
    return [line["settings"] for line, curve in lines if goal.value(curve) == best]


def regrets(seed: int, table: Mapping[str, list[Point]], values: Mapping[str, float], best: float) -> list[float]:
    """How far the best trial so far is from the best of all, trial after trial."""
    with tempfile.TemporaryDirectory() as folder:
        made = tuner(Path(folder))

        def look_up(work: Work, common: Mapping[str, Any], callback: SweepCallback, end: End) -> None:
            for path, experiment in work.items():
                path.mkdir(parents=True)
                curve = table.get(name(experiment), [])  # references may lie outside of the space
                records.append(path / FILE, *(asdict(point) for point in curve), {"stop": "end"})
                end(path, None)

        (Path(folder) / "trials").mkdir()
        made.begin("cpu", look_up, seed)
        made.run_trials()
        found = [made.goal.value(t.curve) for t in made.outcome.trials.values() if t.experiment and t.same_as is None]
    return [best - value for value in np.maximum.accumulate(found[:TRIALS]).tolist()]


def draw(searched: Mapping[str, list[float]], random: list[float]) -> None:
    """Regret against trials."""
    rows = [
        {"trials": k + 1, "points": value, "who": "cpfl tune", "line": who}
        for who, curve in searched.items()
        for k, value in enumerate(curve)
    ]
    rows += [{"trials": k + 1, "points": v, "who": "random search, mean", "line": "r"} for k, v in enumerate(random)]
    figure = {
        "title": "Distance to the best of all combinations",
        "data": {"values": rows},
        "width": 420,
        "height": 240,
        "mark": {"type": "line", "interpolate": "step-after"},
        "encoding": {
            "x": {"field": "trials", "type": "quantitative", "title": "trials"},
            "y": {"field": "points", "type": "quantitative", "title": "points of validation accuracy"},
            "color": {"field": "who", "type": "nominal", "title": None},
            "detail": {"field": "line"},
        },
    }
    print(style.save(figure, RESULTS / "planted.png"))


if __name__ == "__main__":
    trying = partial(compare, range(100, 120), write=False)
    commands: dict[str, Callable[[], None]] = {"enumerate": enumerate_all, "compare": compare, "try": trying}
    commands[sys.argv[1] if len(sys.argv) > 1 else json.dumps(None)]()
