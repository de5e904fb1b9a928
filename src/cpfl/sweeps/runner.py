"""Run a sweep: check all runs first, then make those that are missing. A run that fails does not end the others."""

import contextlib
import inspect
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cpfl import api, trackers
from cpfl.data.given import Given
from cpfl.engines.create import ONE_PROCESS, check_engine, torch_device
from cpfl.engines.ray import resolve_cluster
from cpfl.engines.workers.pool import cores
from cpfl.errors import RunFolderError, SettingError, SweepError
from cpfl.inference.run import Run
from cpfl.runs.folder import RunFolder
from cpfl.runs.reload import check_snapshots
from cpfl.settings import GIVEN, Experiment, experiment_file
from cpfl.settings.keywords import by_dotted_key
from cpfl.sweeps.callback import SweepCallback
from cpfl.sweeps.grid import SweepGrid, default_folder, value_of
from cpfl.sweeps.local import run_here
from cpfl.sweeps.log import SweepLog
from cpfl.sweeps.one_run import End, Work
from cpfl.sweeps.processes import run_in_processes
from cpfl.sweeps.view import following
from cpfl.task.given import UNKNOWN, client_settings, with_clients
from cpfl.task.loading import MayDownload, absolute, check_public, given_arrays, load_task
from cpfl.user_files import expanded

RUN = [name for name, one in inspect.signature(api.run).parameters.items() if one.kind is one.KEYWORD_ONLY]
ALONE = "cohorts = 1: nobody is there to meet; runs with n = 1 leave out the settings of [meetings]"
SECTIONS = ("data", "model")  # arguments of it that are sections of settings, too
MakeRuns = Callable[[Work, Mapping[str, Any], SweepCallback, End], None]
PYTHON_ARGUMENTS = {"model.name": "model", "data.train": "train", "data.public": "public"}


def sweep(
    experiment: str | os.PathLike[str] | Experiment,
    *,
    cohorts: int | Sequence[int] | None = None,
    seeds: int | Sequence[int] | None = None,
    over: Mapping[str, Sequence[Any]] | None = None,
    out: str | Path | None = None,
    jobs: int = 1,
    settings: Mapping[str, Any] | None = None,
    on_run: Callable[[Run], None] = lambda run: None,
    callback: SweepCallback | None = None,
    verbose: bool | None = None,
    **common: Any,
) -> list[Run]:
    """Run every combination of n, seeds and the values of `over`, such as {"data.alpha": [0.1, 1]}.

    Parameters
    ----------
    experiment
        A preset, a TOML file or an Experiment; or the folder of a sweep, to resume it.
    out
        The folder of all runs. Finished runs in it are kept, interrupted ones are resumed.
    jobs
        Processes, each of which makes several runs side by side, in lanes or with its share of the cores.
    verbose
        Whether to show progress; None: in a terminal and in a notebook, unless there is a callback.
    common
        Arguments of `cpfl.run`, for all runs; its settings as keywords, too.

    Returns
    -------
    The finished runs. If some fail, the others are finished first; then a SweepError holds both.
    """
    cohorts, seeds = ([one] if isinstance(one, int) else one for one in (cohorts, seeds))
    named = (key for key in [*common] if key not in RUN or (key in SECTIONS and isinstance(common[key], Mapping)))
    keywords = {key: common.pop(key) for key in named}
    settings = by_dotted_key(settings or {}, keywords, RUN)
    with following(verbose, callback) as follower:
        return _sweep(experiment, cohorts, seeds, over or {}, out, jobs, settings, on_run, follower, common)


def _sweep(
    experiment: str | os.PathLike[str] | Experiment,
    cohorts: Sequence[int] | None,
    seeds: Sequence[int] | None,
    over: Mapping[str, Sequence[Any]],
    out: str | Path | None,
    jobs: int,
    settings: Mapping[str, Any],
    on_run: Callable[[Run], None],
    callback: SweepCallback,
    common: dict[str, Any],
) -> list[Run]:
    if jobs < 1:
        raise SettingError(f"jobs = {jobs} is not allowed: 1 or more")
    given = {key: GIVEN for key, argument in PYTHON_ARGUMENTS.items() if common.get(argument) is not None}
    if not isinstance(experiment, str | Experiment):
        experiment = Path(experiment)
    is_name = isinstance(experiment, Experiment) or str(experiment) in experiment_file.presets()
    source = Path() if is_name else expanded(Path(str(experiment)), "the folder")
    stored = None if is_name else SweepGrid.read(source)
    if stored is not None:
        if cohorts is not None or seeds is not None or over or settings or out is not None:
            raise SettingError(f"{experiment} is a sweep: resuming it takes no other settings")
        folder, grid = source, stored
        for key, argument in PYTHON_ARGUMENTS.items():
            if value_of(grid.base.model_dump(), key) == GIVEN and key not in given:
                raise RunFolderError(f"{folder} was started from Python with {argument} = …: resume it with that, too")
        common = {"engine": grid.engine, "data": grid.data} | {k: v for k, v in common.items() if v not in ("", None)}
    else:
        own = client_settings(common.get("train"), experiment, settings)
        several = (
            {"cohorts": max(cohorts)} if own and cohorts else {}
        )  # the base alone may have too many for the clients
        changes = {**(settings or {}), **several, **given, **own}
        varied = {"cohorts": cohorts, "seed": seeds} | {**over}
        values = {key: some for key, some in varied.items() if some is not None and not isinstance(some, str)}
        base = absolute(experiment_file.varied_base(experiment, changes, values))
        if base.clients == UNKNOWN:
            base = with_clients(base, _given(base, common))
        check_public(base, experiment, {*(settings or ()), *(over or ())})
        for key in sorted({*(settings or ())} & {*(over or ())}):
            callback.on_message(f"{key} is varied: its values in over count, not the single one")
        folder = expanded(Path(out), "out") if out is not None else default_folder(base)
        grid = SweepGrid.from_values(base, cohorts, seeds, over or {}, settings)
        all_of_it = [grid.experiment(name) for name in grid.runs]
        if any(one.cohorts == 1 for one in all_of_it) and any(one.meets or one.merges for one in all_of_it):
            callback.on_message(ALONE)
    if common.get("data") is not None:
        common["data"] = str(expanded(Path(common["data"]), "data").absolute())  # runs may start in another folder
    grid = replace(grid, engine=common.get("engine", "auto"), data=common.get("data"))
    if grid.engine == "ray" and jobs > 1:
        raise SettingError(f"jobs = {jobs} is for runs on this machine: with engine = 'ray', set workers")
    common["cluster"] = resolve_cluster(common.get("cluster"), common.get("device", "auto"))
    finished = _check(grid, folder, common, callback.on_message, common.pop("download", False))
    failed: dict[Path, Exception] = {}
    log = SweepLog(folder, callback)

    def end(path: Path, error: Exception | None) -> None:
        if error is None:
            log.on_run(Run(path))
            on_run(Run(path))
        else:
            failed[path] = error
            log.on_failure(path, error)

    with machines(grid.engine, folder, jobs, common) as (device, make_runs), contextlib.ExitStack() as stack:
        grid = grid.resolved(folder, device)
        grid.merged(folder).write(folder)
        stack.enter_context(log).on_start(grid, finished)
        for name in finished:
            end(folder / name, None)
        work = {folder / name: grid.experiment(name) for name in grid.runs if name not in finished}
        make_runs(work, common, log, end)
    runs = [Run(folder / name, common.get("model")) for name in grid.runs if folder / name not in failed]
    if failed:
        raise SweepError(len(grid.runs), runs, failed)
    return runs


@contextlib.contextmanager
def machines(engine: str, folder: Path, jobs: int, common: Mapping[str, Any]) -> Iterator[tuple[str, MakeRuns]]:
    """The kind of device that runs into this folder train on, and what makes them: here, in processes, on a cluster."""
    on_device = torch_device(common["cluster"].device, engine)
    on_gpu = engine == "auto" and on_device.type != "cpu"
    # Runs at the same time share the cores.
    share = {} if common.get("workers") or engine in ONE_PROCESS or on_gpu else {"workers": max(1, cores() // jobs)}
    with contextlib.ExitStack() as stack:
        if engine == "ray":
            from cpfl.engines.ray.cluster import connection  # Ray is optional
            from cpfl.sweeps.on_ray import ClusterScheduler

            stack.enter_context(connection(common["cluster"]))
            workers = common.get("workers", 0)
            scheduler = ClusterScheduler(common["cluster"], folder, common.get("data"), workers)
            yield scheduler.device, scheduler.run
            return

        def make(work: Work, common: Mapping[str, Any], callback: SweepCallback, end: End) -> None:
            if jobs > 1 and len(work) > 1:
                run_in_processes(work, min(jobs, len(work)), {**common, **share}, callback, end)
            else:
                run_here(work, {**common, **share}, callback, end)

        yield on_device.type, make


def _check(
    grid: SweepGrid, folder: Path, common: Mapping[str, Any], notify: Callable[[str], None], download: MayDownload
) -> list[str]:
    """Find mistakes in any of the runs before the first one starts; the names of the finished runs."""
    if (folder / "run.json").is_file():
        raise RunFolderError(f"{folder} is a run, not a sweep: choose another folder")
    check_engine(common.get("engine", "auto"), common.get("workers", 0), common["cluster"])
    torch_device(common.get("device", "auto"), common.get("engine", "auto"))
    trackers.check(common.get("track", ()))
    finished = []
    for name in grid.runs:
        path = folder / name
        if not (path / "run.json").is_file():
            RunFolder.check_free(path)
            continue
        run = RunFolder.open(path).verify()
        if (begun := run.experiment()) != grid.experiment(name).with_precision_of(begun):
            raise RunFolderError(f"{path} holds a run with other settings: choose another folder")
        if run.summary() is not None:
            finished.append(name)
    grid.merged(folder)
    # Data and models are tried once for each combination of other settings: n and the seed do not change them.
    missing = [name for name in grid.runs if name not in finished]
    given = _given(grid.base, common, notify)
    for _, names in itertools.groupby(missing, key=grid.varied):
        variant = grid.experiment(next(names))
        check_snapshots(variant)
        if client_settings(common.get("train"), variant) and variant.clients != grid.base.clients:
            given = _given(variant, common)  # a function is called for each client
        load_task(variant, common.get("data"), common.get("model"), given, notify, download=download)
    return finished


def _given(
    experiment: Experiment, common: Mapping[str, Any], notify: Callable[[str], None] = lambda text: None
) -> Given:
    train, test, public = (common.get(key) for key in ("train", "test", "public"))
    return given_arrays(train, test, public, experiment, notify)
