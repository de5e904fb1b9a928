"""Doing a sweep: all runs that are missing, in this process or several, each to its end or its own trouble."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from cpfl import experiment_file, trackers
from cpfl.api import Run
from cpfl.engines.ray.place import settled
from cpfl.engines.workers.crew import cores
from cpfl.errors import RunFolderError, SettingError, SweepError
from cpfl.experiment import GIVEN, Experiment
from cpfl.opening import absolute, check_engine, check_moment, given_arrays, prepare_named, torch_device
from cpfl.runs.folder import RunFolder
from cpfl.sweep import plan as plans
from cpfl.sweep.plan import Plan
from cpfl.sweep.workers import Pulse, in_processes, run_or_resume

OWN = {"model.name": "model", "data.train": "train", "data.public": "public"}


class SweepWatcher(Protocol):
    """Somebody who looks on at a sweep."""

    def on_plan(self, plan: Plan, finished: Sequence[str]) -> None:
        """It begins, or goes on: these runs are finished already."""

    def on_pulse(self, pulse: Pulse) -> None:
        """How far a run has come; a few times a second at most."""

    def on_wait(self) -> None:
        """Nothing happened for a moment."""

    def on_run(self, run: Run) -> None:
        """A run is finished, now or before."""

    def on_failure(self, path: Path, error: Exception) -> None:
        """A run ended in trouble; the others go on."""

    def on_note(self, text: str) -> None:
        """Something worth a line happened."""


class _Silent:
    def on_plan(self, plan: Plan, finished: Sequence[str]) -> None: ...
    def on_pulse(self, pulse: Pulse) -> None: ...
    def on_wait(self) -> None: ...
    def on_run(self, run: Run) -> None: ...
    def on_failure(self, path: Path, error: Exception) -> None: ...
    def on_note(self, text: str) -> None: ...


def sweep(
    experiment: str | Path | Experiment,
    *,
    cohorts: Sequence[int] | None = None,
    seeds: Sequence[int] | None = None,
    over: Mapping[str, Sequence[Any]] | None = None,
    out: str | Path | None = None,
    jobs: int = 1,
    settings: Mapping[str, Any] | None = None,
    on_run: Callable[[Run], None] = lambda run: None,
    watcher: SweepWatcher | None = None,
    **common: Any,
) -> list[Run]:
    """Run every combination of n, seeds and the values of `over`, such as {"data.alpha": [0.1, 1]}.

    What the folder `out` already holds is not done again, and what was interrupted there is resumed; the folder of a
    sweep in place of `experiment` goes on with all of it. `jobs` processes work side by side. `common` goes to
    `cpfl.run` as it is. A run that fails lets the others go on; then a SweepError tells of it and holds the others.
    """
    looking = watcher or _Silent()
    if jobs < 1:
        raise SettingError(f"jobs = {jobs} is not allowed: 1 or more")
    given = {key: GIVEN for key, argument in OWN.items() if common.get(argument) is not None}
    found = None if isinstance(experiment, Experiment) or _is_preset(experiment) else plans.stored(Path(experiment))
    if found is not None:
        if cohorts is not None or seeds is not None or over or settings or out is not None:
            raise SettingError(f"{experiment} is a sweep: going on with it takes no other settings")
        where, chosen = Path(str(experiment)), _taken_up(found, Path(str(experiment)), given)
        common = {"engine": found.engine, "data": found.data} | {k: v for k, v in common.items() if v not in ("", None)}
    else:
        base = experiment if isinstance(experiment, Experiment) else experiment_file.load(experiment)
        base = absolute(experiment_file.with_settings(base, {**(settings or {}), **given}))
        where = Path(out) if out is not None else plans.default_folder(base)
        chosen = plans.grid(base, cohorts, seeds, over or {}, settings)
    data = common.get("data")
    named = None if data is None else str(Path(data).expanduser().absolute())
    if named is not None:
        common["data"] = named  # runs may begin in another folder than this
    chosen = replace(chosen, engine=common.get("engine", "auto"), data=named)
    if chosen.engine == "ray" and jobs > 1:
        raise SettingError(f"jobs = {jobs} goes with runs on this machine: with --engine ray, say --workers")
    common["cluster"] = settled(common.get("cluster"), common.get("device", "auto"))
    finished = _check(chosen, where, common, looking.on_note)
    with contextlib.ExitStack() as until_then:
        hall = None
        if chosen.engine == "ray":
            from cpfl.sweep.on_ray import Hall  # only those who ask for it need Ray

            hall = Hall(common["cluster"], where, named, common.get("workers", 0))
            until_then.callback(hall.close)
        plans.store(where, plans.joined(chosen, where))
        looking.on_plan(chosen, finished)
        failed: dict[Path, Exception] = {}

        def end(name: str, error: Exception | None) -> None:
            if error is None:
                looking.on_run(Run(where / name))
                on_run(Run(where / name))
            else:
                failed[where / name] = error
                looking.on_failure(where / name, error)

        for name in finished:
            end(name, None)
        if not common.get("workers"):  # runs side by side share the cores
            common["workers"] = max(1, cores() // jobs)
        missing = [name for name in chosen.runs if name not in finished]
        work = {name: (absolute(chosen.experiment(name)), where / name) for name in missing}
        if hall is not None:
            hall.work(work, common, looking.on_pulse, looking.on_wait, end)
        elif jobs == 1 or len(work) < 2:
            for name, (variant, path) in work.items():
                end(name, _attempt(variant, path, looking.on_pulse, common))
        elif work:
            in_processes(work, min(jobs, len(work)), common, looking.on_pulse, looking.on_wait, end)
    runs = [Run(where / name) for name in chosen.runs if where / name not in failed]
    if failed:
        raise SweepError(len(chosen.runs), runs, failed)
    return runs


def _is_preset(experiment: str | Path) -> bool:
    return str(experiment) in experiment_file.presets()


def _taken_up(found: Plan, where: Path, given: Mapping[str, str]) -> Plan:
    """A stored plan, if all that was handed over in Python is there again."""
    tree = found.base.model_dump()
    for key, argument in OWN.items():
        if plans.at(tree, key) == GIVEN and key not in given:
            raise RunFolderError(
                f"{where} was started from Python with its own {argument}: go on from Python and give {argument} again"
            )
    return found


def _attempt(
    variant: Experiment, path: Path, pulse: Callable[[Pulse], None], common: Mapping[str, Any]
) -> Exception | None:
    try:
        run_or_resume(variant, path, pulse, **common)
    except Exception as error:  # whatever it is, the others are worth having
        return error
    return None


def _check(plan: Plan, where: Path, common: Mapping[str, Any], note: Callable[[str], None]) -> list[str]:
    """Find what is wrong with any of the runs before the first one starts; the names of those that are finished."""
    if (where / "run.json").is_file():
        raise RunFolderError(f"{where} is a run, not a sweep: choose another --out")
    check_engine(common.get("engine", "auto"), 0, common.get("cluster"))
    torch_device(common.get("device", "auto"), common.get("engine", "auto"))
    trackers.check(common.get("track", ()))
    finished = []
    for name in plan.runs:
        path = where / name
        if not (path / "run.json").is_file():
            RunFolder.check_free(path)
            continue
        folder = RunFolder.open(path)
        if folder.experiment() != absolute(plan.experiment(name)):
            raise RunFolderError(f"{path} holds a run with other settings: choose another --out")
        if folder.summary() is not None:
            finished.append(name)
    plans.joined(plan, where)
    # Data and models are tried once for each combination of settings: n and the seed change nothing about them.
    missing = [name for name in plan.runs if name not in finished]
    given = given_arrays(*(common.get(key) for key in ("train", "test", "public")))
    for _, names in itertools.groupby(missing, key=lambda name: plan.varied(name)):
        variant = absolute(plan.experiment(next(names)))
        check_moment(variant)
        prepare_named(variant, common.get("data"), common.get("model"), given, note)
    return finished
