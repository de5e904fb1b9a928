"""Start a tune or continue one: what is asked for is checked before the first run, and against the folder."""

import importlib.util
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from cpfl import api
from cpfl.data.given import Given
from cpfl.engines.create import check_engine
from cpfl.engines.ray import resolve_cluster
from cpfl.errors import RunFolderError, SettingError, quoted
from cpfl.runs import files
from cpfl.runs.folder import RunFolder
from cpfl.settings import GIVEN, Experiment, effects, experiment_file
from cpfl.sweeps.callback import SweepCallback
from cpfl.sweeps.grid import value_of
from cpfl.sweeps.runner import PYTHON_ARGUMENTS, machines
from cpfl.task.given import client_settings, with_clients
from cpfl.task.loading import absolute, check_public, given_arrays, load_task
from cpfl.task.task import Task
from cpfl.tuning.goal import NAMES, Goal
from cpfl.tuning.result import FILE, TuneResult, read
from cpfl.tuning.tuner import Tuner
from cpfl.user_files import expanded

BATCH = 6  # trials that are asked for, and train, at the same time
POINTS = 20  # of a curve
MOST = 10_000  # of anything that is counted


def tune(
    experiment: str | Path | Experiment,
    *,
    hours: float | None = None,
    cpu_hours: float | None = None,
    traffic: str | float | None = None,
    accuracy: float | None = None,
    minimise: str | None = None,
    trials: int = 40,
    search: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    seeds: int = 3,
    points: int = POINTS,
    batch: int = BATCH,
    prune: bool = True,
    jobs: int = 1,
    callback: SweepCallback | None = None,
    **common: Any,
) -> TuneResult:
    """Find settings for a fleet, a deadline and a budget, among them whether cohorts pay; the same again continues.

    Parameters
    ----------
    experiment
        A preset, a TOML file or an Experiment: data, model and fleet. `settings` are fixed on top of it, and so not
        searched.
    hours, cpu_hours, traffic
        Limits: virtual hours, CPU hours of all clients, and traffic such as "50GB".
    accuracy, minimise
        The per cent that are to be reached with the least of hours, cpu or traffic; without, accuracy is maximised.
    trials, batch, points
        Runs of the search, how many train at the same time, and evaluations of each.
    search
        Settings with lists of values or ranges, in place of those that are searched by default or beside them.
    seeds
        Fresh seeds over which the recommended experiment and the references are tested.
    prune
        Stop trials early that are behind everywhere.
    common
        Arguments of `cpfl.run`.
    """
    goal = Goal.of(hours, cpu_hours, traffic, accuracy, minimise)
    counts = {"trials": trials, "batch": batch, "points": points, "jobs": jobs, "seeds": seeds}
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or not (name != "seeds") <= value <= MOST:
            raise SettingError(f"{name} = {quoted(value)} is not allowed: {int(name != 'seeds')} to {MOST:,}")
    if importlib.util.find_spec("optuna") is None:
        raise SettingError("a tune needs Optuna, which is not installed: pip install 'cpfl[tune]'")
    callback = callback or SweepCallback()
    base = _base(experiment, settings or {}, common)
    folder = expanded(Path(out), "out") if out is not None else api.RUNS / f"{api.new_name(base)}-tune"
    engine = common.setdefault("engine", "auto")
    common["cluster"] = resolve_cluster(common.get("cluster"), common.get("device", "auto"))
    check_engine(engine, common.get("workers", 0), common["cluster"])
    if engine == "ray" and jobs > 1:
        raise SettingError(f"jobs = {jobs} is for runs on this machine: with engine = 'ray', set workers")
    request = {
        "experiment": base.model_dump(mode="json"), **goal.tree(), "trials": trials, "search": search or {},
        "fixed": sorted(effects.leaves(settings or {})), "seeds": seeds, "points": points, "batch": batch,
        "prune": prune, "engine": engine,
    }  # fmt: skip
    before = _before(folder, request)
    if before is not None and before["state"] == "finished":
        return TuneResult(folder)
    tuner = Tuner(base, goal, folder, request, common, callback, partial(load, common=common))
    tuner.prepare(before)
    lock = RunFolder(folder)
    with files.explained(folder):
        (folder / "trials").mkdir(parents=True, exist_ok=True)
    lock.lock("tuned")
    try:
        with machines(engine, folder, jobs, common) as (device, make_runs):
            tuner.work(device, make_runs)
    finally:
        lock.unlock()
    return TuneResult(folder)


def resume(path: str | Path, jobs: int = 1, callback: SweepCallback | None = None, **common: Any) -> TuneResult:
    """Continue the tune in a folder with what it was started with; `common` are arguments of `cpfl.run`."""
    folder = expanded(Path(path), "the folder")
    asked = read(folder)["request"]
    base = Experiment.model_validate(asked["experiment"])
    tree = base.model_dump(mode="json")
    for key, argument in PYTHON_ARGUMENTS.items():
        if value_of(tree, key) == GIVEN and common.get(argument) is None:
            raise RunFolderError(f"{folder} was started from Python with {argument} = …: resume it with that, too")
    limits = asked["limits"]
    cost = {cost: name for name, cost in NAMES.items()}
    return tune(
        base,
        hours=limits["hours"],
        cpu_hours=limits["cpu_hours"],
        traffic=limits["traffic_gb"],
        accuracy=limits["accuracy"],
        minimise=cost[asked["goal"]["minimise"]] if "minimise" in asked["goal"] else None,
        settings={key: value_of(tree, key) for key in asked["fixed"]},
        out=folder,
        jobs=jobs,
        callback=callback,
        **{key: asked[key] for key in ("trials", "search", "seeds", "points", "batch", "prune")},
        **{**common, "engine": common.get("engine") or asked["engine"]},
    )


def _base(experiment: str | Path | Experiment, settings: Mapping[str, Any], common: dict[str, Any]) -> Experiment:
    """The experiment with what is fixed on top of it."""
    given = {key: GIVEN for key, argument in PYTHON_ARGUMENTS.items() if common.get(argument) is not None}
    base = experiment if isinstance(experiment, Experiment) else experiment_file.load(experiment)
    changes = {**settings, **given, **client_settings(common.get("train"), experiment, settings)}
    base = absolute(experiment_file.with_settings(base, changes, strict=False))
    base = with_clients(base, _arrays(base, common))
    check_public(base, experiment, settings)
    effects.check([base], effects.leaves(settings))
    if common.get("data") is not None:
        common["data"] = str(expanded(Path(common["data"]), "data").absolute())  # runs may start in another folder
    return base


def load(experiment: Experiment, common: Mapping[str, Any]) -> Task:
    """The task of an experiment with the data and the model that are given from Python."""
    arrays = _arrays(experiment, common)
    return load_task(experiment, common.get("data"), common.get("model"), arrays, lambda text: None)


def _arrays(experiment: Experiment, common: Mapping[str, Any]) -> Given:
    train, test, public = (common.get(key) for key in ("train", "test", "public"))
    return given_arrays(train, test, public, experiment)


def _before(folder: Path, request: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the folder holds of this tune; None: nothing."""
    if not (folder / FILE).is_file():
        if folder.exists() and (not folder.is_dir() or any(one.name != "trials" for one in folder.iterdir())):
            raise RunFolderError(f"{folder} exists and holds no tune: choose another folder")
        return None
    found = read(folder)
    wanted = json.loads(json.dumps(request, default=list))
    one, other = effects.leaves(wanted), effects.leaves(found["request"])
    for key in [*other, *one]:
        if one.get(key) != other.get(key):
            raise RunFolderError(
                f"{folder} holds a tune with other settings ({key} = {quoted(other.get(key))}): choose another folder"
            )
    return found
