"""The runs of a sweep in one process: side by side if they can share an engine."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cpfl.engines.base import Engine
from cpfl.engines.create import create_engine, lane_engine, resolve_engine, torch_device, worker_engine
from cpfl.engines.lanes.shared import SharedLanes, common_settings
from cpfl.engines.shared import RunEngine, SharedEngine
from cpfl.engines.workers.pool import can_fork, cores
from cpfl.engines.workers.shared import SharedWorkers
from cpfl.errors import CpflError
from cpfl.runs.folder import RunFolder
from cpfl.settings import Experiment
from cpfl.settings.effects import leaves
from cpfl.sweeps.callback import SweepCallback
from cpfl.sweeps.one_run import End, Work, run_or_resume
from cpfl.sweeps.side_by_side import SideBySide, Take
from cpfl.task.loading import given_arrays, load_task
from cpfl.task.task import Task

MOST_SHOWN = 4  # settings in a message

Group = Sequence[tuple[Path, Experiment]]


def run_here(work: Work, common: Mapping[str, Any], callback: SweepCallback, end: End) -> None:
    """All runs in this process."""
    parts = groups(work, common)
    tell_groups(parts, common, callback)
    for group in parts:
        make_runs(group, partial(next, iter(group), None), common, callback, end)


def groups(work: Work, common: Mapping[str, Any]) -> list[list[tuple[Path, Experiment]]]:
    """Runs that can share an engine, in their order: any with workers, and in lanes those with the same common
    settings."""
    if uses_workers(common):
        return [list(work.items())]
    found: dict[str, list[tuple[Path, Experiment]]] = {}
    for path, experiment in work.items():
        found.setdefault(common_settings(experiment), []).append((path, experiment))
    return list(found.values())


def tell_groups(parts: Sequence[Group], common: Mapping[str, Any], callback: SweepCallback) -> None:
    """Say which settings keep runs from sharing lanes."""
    if len(parts) > 1 and uses_lanes(common):
        kept = [leaves(json.loads(common_settings(group[0][1]))) for group in parts]
        names = dict.fromkeys(name for one in kept for name in one)
        differ = [name for name in names if any(one.get(name) != kept[0].get(name) for one in kept)]
        shown = ", ".join(differ[:MOST_SHOWN]) + (" and others" if len(differ) > MOST_SHOWN else "")
        callback.on_message(
            f"the runs train in {len(parts)} groups, since lanes are shared by runs with the same {shown}"
        )


def make_runs(group: Group, take: Take, common: Mapping[str, Any], callback: SweepCallback, end: End) -> None:
    """Runs of a group, as `take` gives them: side by side if they can share an engine."""
    shared = shared_engine(group, common, callback.on_message) if len(group) > 1 else None
    if shared is not None:

        def run(experiment: Experiment, path: Path, engine: RunEngine) -> None:
            own = {**common, "engine": engine, "workers": 0}
            run_or_resume(experiment, path, callback.on_progress, **own)

        def alone(task: Task) -> Engine:
            return create_engine(shared.name, task, shared.device, callback.on_message)

        SideBySide(shared, take, run, alone, end).work()
        return
    while (taken := take()) is not None:
        path, experiment = taken
        error = None
        try:
            run_or_resume(experiment, path, callback.on_progress, **common)
        except Exception as caught:  # whatever it is, the other runs continue
            error = caught
        end(path, error)


def uses_workers(common: Mapping[str, Any]) -> bool:
    """Whether these arguments of `cpfl.run` mean the engine workers."""
    name = common.get("engine", "auto")
    return name in ("auto", "workers") and torch_device(common["cluster"].device, name).type == "cpu"


def uses_lanes(common: Mapping[str, Any]) -> bool:
    """The same for the engine lanes."""
    name = common.get("engine", "auto")
    return name == "lanes" or (name == "auto" and torch_device(common["cluster"].device, name).type == "cuda")


def shared_engine(group: Group, common: Mapping[str, Any], notify: Callable[[str], None]) -> SharedEngine | None:
    """The engine that these runs can share; None: there is none."""
    experiments = [experiment for _, experiment in group]
    if any(experiment.model.by_cohort for experiment in experiments):
        notify("the runs are made one after the other, since they have models by cohort (model.by_cohort)")
        return None
    begun = set[str]()
    if common.get("engine", "auto") == "auto":  # else all continue with the one that is asked for
        begun = {RunFolder.open(path).engine() for path, _ in group if (path / "run.json").is_file()}
    if uses_workers(common):
        workers = common.get("workers") or cores()
        if workers == 1 or not can_fork() or begun - {"workers"}:
            return None
        return SharedWorkers(workers, lambda task, pool: worker_engine(task, pool=pool))
    if begun - {"lanes"} or not uses_lanes(common):
        return None
    name = common.get("engine", "auto")
    device = torch_device(common["cluster"].device, name)
    try:
        given = given_arrays(common.get("train"), common.get("test"), common.get("public"), experiments[0])
        task = load_task(experiments[0], common.get("data"), common.get("model"), given, lambda text: None)
    except CpflError:  # each run says what is wrong with it
        return None
    if resolve_engine(name, task, device, notify) != "lanes":
        return None
    return SharedLanes(experiments, device, partial(lane_engine, device=device, notify=notify))
