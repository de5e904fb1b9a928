"""Run a sweep: check all runs first, then make those that are missing. A run that fails does not end the others."""

import concurrent.futures
import contextlib
import itertools
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from cpfl import api, trackers
from cpfl.api import Run
from cpfl.callbacks import Callback
from cpfl.data.given import Given
from cpfl.engines.create import ONE_PROCESS, check_engine, resolve_engine, torch_device
from cpfl.engines.lanes.shared import RunEngine
from cpfl.engines.ray import resolve_cluster
from cpfl.engines.workers.pool import cores
from cpfl.errors import RunFolderError, SettingError, SweepError
from cpfl.federation.session import ClosedRound, Session
from cpfl.runs.folder import RunFolder
from cpfl.runs.reload import check_snapshots
from cpfl.settings import GIVEN, Experiment, experiment_file
from cpfl.sweep.grid import SweepGrid, default_folder, value_of
from cpfl.sweep.side_by_side import SideBySide, groups
from cpfl.task.given import UNKNOWN, client_settings, with_clients
from cpfl.task.loading import absolute, check_public, given_arrays, load_task
from cpfl.user_files import expanded

PYTHON_ARGUMENTS = {"model.name": "model", "data.train": "train", "data.public": "public"}
KILLED = "a process of the sweep was killed during this run: the same command resumes it"
WAIT_POLICY = "OMP_WAIT_POLICY"  # OpenMP reads it when a process starts
INTERVAL_SECONDS = 0.5  # at least, between two reports of a run
POLL_SECONDS = 0.25  # at most, between two looks at the reports of all runs

Work = Mapping[Path, Experiment]  # the folders of runs that are to be made, and their experiments
End = Callable[[Path, Exception | None], None]


class RunProgress(NamedTuple):
    """The progress of one run of a sweep."""

    name: str
    rounds: int
    stopped: int
    cohorts: int
    epoch: int  # of the distillation; 0: not started


class SweepCallback:
    """What a sweep calls as it proceeds. Override the methods you need."""

    def on_start(self, grid: SweepGrid, finished: Sequence[str]) -> None:
        """The sweep starts or resumes; these of its runs are finished already."""

    def on_progress(self, progress: RunProgress) -> None:
        """A run has progressed; called at most a few times a second."""

    def on_wait(self) -> None:
        """Called regularly while runs are under way."""

    def on_run(self, run: Run) -> None:
        """A run is finished, now or before."""

    def on_failure(self, path: Path, error: Exception) -> None:
        """A run failed; the others continue."""

    def on_message(self, text: str) -> None:
        """A line for the user."""


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
    callback: SweepCallback | None = None,
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
        Runs at the same time, one process each.
    common
        Arguments of `cpfl.run`, for all runs.

    Returns
    -------
    The finished runs. If some fail, the others are finished first; then a SweepError holds both.
    """
    callback = callback or SweepCallback()
    if jobs < 1:
        raise SettingError(f"jobs = {jobs} is not allowed: 1 or more")
    given = {key: GIVEN for key, argument in PYTHON_ARGUMENTS.items() if common.get(argument) is not None}
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
        base = experiment if isinstance(experiment, Experiment) else experiment_file.load(experiment)
        own = client_settings(common.get("train"), experiment, settings)
        several = {"cohorts": cohorts[0]} if own and cohorts else {}  # the base alone may have too many for the clients
        changes = {**(settings or {}), **several, **given, **own}
        base = absolute(experiment_file.with_settings(base, changes, strict=False))
        if base.clients == UNKNOWN:
            base = with_clients(base, _given(base, common))
        check_public(base, experiment, {*(settings or ()), *(over or ())})
        folder = expanded(Path(out), "out") if out is not None else default_folder(base)
        grid = SweepGrid.from_values(base, cohorts, seeds, over or {}, settings)
    if common.get("data") is not None:
        common["data"] = str(expanded(Path(common["data"]), "data").absolute())  # runs may start in another folder
    grid = replace(grid, engine=common.get("engine", "auto"), data=common.get("data"))
    if grid.engine == "ray" and jobs > 1:
        raise SettingError(f"jobs = {jobs} is for runs on this machine: with engine = 'ray', set workers")
    common["cluster"] = resolve_cluster(common.get("cluster"), common.get("device", "auto"))
    finished = _check(grid, folder, common, callback.on_message)
    failed: dict[Path, Exception] = {}

    def end(path: Path, error: Exception | None) -> None:
        if error is None:
            callback.on_run(Run(path))
            on_run(Run(path))
        else:
            failed[path] = error
            callback.on_failure(path, error)

    with contextlib.ExitStack() as stack:
        scheduler = None
        if grid.engine == "ray":
            from cpfl.engines.ray.cluster import connection  # Ray is optional
            from cpfl.sweep.on_ray import ClusterScheduler

            stack.enter_context(connection(common["cluster"]))
            workers = common.get("workers", 0)
            scheduler = ClusterScheduler(common["cluster"], folder, common.get("data"), workers)
        grid.merged(folder).write(folder)
        callback.on_start(grid, finished)
        for name in finished:
            end(folder / name, None)
        on_gpu = torch_device(common.get("device", "auto"), grid.engine).type != "cpu"
        if not common.get("workers") and grid.engine not in ONE_PROCESS and not (grid.engine == "auto" and on_gpu):
            common["workers"] = max(1, cores() // jobs)  # runs at the same time share the cores
        work = {folder / name: grid.experiment(name) for name in grid.runs if name not in finished}
        if scheduler is not None:
            scheduler.run(work, common, callback, end)
        elif jobs > 1 and len(work) > 1:
            run_in_processes(work, min(jobs, len(work)), common, callback, end)
        else:
            run_here(work, common, callback, end)
    runs = [Run(folder / name) for name in grid.runs if folder / name not in failed]
    if failed:
        raise SweepError(len(grid.runs), runs, failed)
    return runs


def _check(grid: SweepGrid, folder: Path, common: Mapping[str, Any], notify: Callable[[str], None]) -> list[str]:
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
        if run.experiment() != grid.experiment(name):
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
        load_task(variant, common.get("data"), common.get("model"), given, notify)
    return finished


def _given(
    experiment: Experiment, common: Mapping[str, Any], notify: Callable[[str], None] = lambda text: None
) -> Given:
    train, test, public = (common.get(key) for key in ("train", "test", "public"))
    return given_arrays(train, test, public, experiment, notify)


class ProgressReporter(Callback):
    """A run's callback that reports its progress to the sweep."""

    def __init__(self, name: str, cohorts: int, report: Callable[[RunProgress], None]) -> None:
        self._progress, self._report, self._reported = RunProgress(name, 0, 0, cohorts, 0), report, 0.0
        report(self._progress)

    def on_start(self, sessions: Sequence[Session]) -> None:
        stopped = sum(bool(session.stopped) for session in sessions)
        self._update(rounds=sum(session.round for session in sessions), stopped=stopped, cohorts=len(sessions))

    def on_round(self, session: Session, closed: ClosedRound) -> None:
        self._update(rounds=self._progress.rounds + 1, stopped=self._progress.stopped + bool(session.stopped))

    def on_epoch(self, record: object) -> None:
        self._update(epoch=self._progress.epoch + 1)

    def _update(self, **numbers: Any) -> None:
        self._progress = self._progress._replace(**numbers)
        now = time.monotonic()
        if now - self._reported >= INTERVAL_SECONDS:
            self._reported = now
            self._report(self._progress)


def run_or_resume(experiment: Experiment, path: Path, report: Callable[[RunProgress], None], **common: Any) -> None:
    """Start the run at this path, or resume it."""
    callback = ProgressReporter(path.name, experiment.cohorts, report)
    if not (path / "run.json").is_file():
        api.run(experiment, out=path, callback=callback, **common)
        return
    if common.get("engine") == "auto":
        common["engine"] = ""  # the one it started with
    api.resume(path, callback=callback, **common)


def run_here(work: Work, common: Mapping[str, Any], callback: SweepCallback, end: End) -> None:
    """All runs in this process: side by side those that can share lanes, the others one after the other."""
    for group in groups(work):
        if len(group) > 1 and (device := lanes_for(group, common, callback.on_message)):
            own = {**common, "workers": 0}

            def run(experiment: Experiment, path: Path, engine: RunEngine) -> None:
                run_or_resume(experiment, path, callback.on_progress, **{**own, "engine": engine})

            SideBySide(group, run, device, callback.on_message, end).work()
            continue
        for path, experiment in group.items():
            error = None
            try:
                run_or_resume(experiment, path, callback.on_progress, **common)
            except Exception as caught:  # whatever it is, the other runs continue
                error = caught
            end(path, error)


def lanes_for(group: Work, common: Mapping[str, Any], notify: Callable[[str], None]) -> torch.device | None:
    """The device on which these runs, with the same common settings, share lanes; None: they do not."""
    name, (first, *_) = common.get("engine", "auto"), group.values()
    begun = [RunFolder.open(path).engine() for path in group if (path / "run.json").is_file()]
    device = torch_device(common["cluster"].device, name)
    if name not in ("auto", "lanes") or first.model.by_cohort or (name == "auto" and device.type != "cuda"):
        return None
    if any(engine != "lanes" for engine in begun):
        return None
    task = load_task(first, common.get("data"), common.get("model"), _given(first, common), lambda text: None)
    return device if resolve_engine(name, task, device, notify) == "lanes" else None


def run_in_processes(work: Work, jobs: int, common: Mapping[str, Any], callback: SweepCallback, end: End) -> None:
    """All runs, `jobs` at the same time. If a process is killed, the runs that had started count as failed."""
    left = dict(work)
    while left:  # in a new pool after a process was killed
        context = multiprocessing.get_context("spawn")  # torch does not survive a fork
        progress_queue: Any = context.Queue()
        started: set[str] = set()
        with contextlib.ExitStack() as stack:
            if WAIT_POLICY not in os.environ:  # threads that spin while they wait would slow the other processes
                os.environ[WAIT_POLICY] = "PASSIVE"
                stack.callback(os.environ.pop, WAIT_POLICY)
            pool = concurrent.futures.ProcessPoolExecutor(jobs, context, _start_process, (progress_queue,))
            stack.enter_context(pool)
            futures = {pool.submit(_run, experiment, path, common): path for path, experiment in left.items()}
            try:
                while futures:
                    ended, _ = concurrent.futures.wait(futures, POLL_SECONDS, "FIRST_COMPLETED")
                    while not progress_queue.empty():
                        progress = progress_queue.get()
                        started.add(progress.name)
                        callback.on_progress(progress)
                    for future in ended:
                        path, error = futures.pop(future), future.exception()
                        if isinstance(error, BrokenProcessPool):
                            if started and path.name not in started:
                                continue
                            error = RunFolderError(f"{path}: {KILLED}")
                        del left[path]
                        end(path, error if isinstance(error, Exception) else None)
                    callback.on_wait()
            except BaseException:  # neither start nor finish other runs: they can be resumed
                pool.shutdown(wait=False, cancel_futures=True)
                for process in multiprocessing.active_children():
                    process.terminate()
                raise


# In the processes.

_report: Callable[[RunProgress], None]


def _start_process(progress_queue: Any) -> None:
    global _report
    _report = progress_queue.put
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one ends the others
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Processes of a killed sweep must not keep its runs locked."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)  # as if killed: the run folder is enough to resume


def _run(experiment: Experiment, path: Path, common: Mapping[str, Any]) -> None:
    run_or_resume(experiment, path, _report, **common)
