"""One experiment over many n and seeds: a run for each, in one folder, several at a time if wanted."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cpfl import api, experiment_file
from cpfl.api import Run
from cpfl.data.federated import Given
from cpfl.errors import RunFolderError, SettingError
from cpfl.experiment import GIVEN, Experiment
from cpfl.opening import absolute, obtain
from cpfl.runs.folder import RunFolder

POLL_SECONDS = 0.5


def sweep(
    experiment: str | Path | Experiment,
    *,
    cohorts: Sequence[int],
    seeds: Sequence[int] | None = None,
    out: str | Path | None = None,
    jobs: int = 1,
    settings: Mapping[str, Any] | None = None,
    on_run: Callable[[Run], None] = lambda run: None,
    on_wait: Callable[[], None] = lambda: None,
    **common: Any,
) -> list[Run]:
    """Run every n with every seed; what the folder already holds is not done again.

    `jobs` processes work side by side. `common` goes to `cpfl.run` as it is.
    """
    base = experiment if isinstance(experiment, Experiment) else experiment_file.load(experiment)
    base = experiment_file.with_settings(base, settings or {})
    where = Path(out) if out is not None else default_folder(base)
    if not cohorts:
        raise SettingError("a sweep needs at least one number of cohorts")
    planned = {where / name(variant): variant for variant in variants(base, cohorts, seeds or [base.seed])}
    if jobs == 1:
        for path, variant in planned.items():
            on_run(run_or_resume(variant, path, **common))
    else:
        context = multiprocessing.get_context("spawn")  # torch does not survive a fork
        given = Given(*(common.get(key) for key in ("train", "test", "public")))
        data = common.get("data")
        obtain(base, None if data is None else Path(data), given, lambda text: None)  # once, not in every process
        with concurrent.futures.ProcessPoolExecutor(jobs, context) as pool:
            open_runs = {pool.submit(run_or_resume, variant, path, **common) for path, variant in planned.items()}
            try:
                while open_runs:
                    ended, open_runs = concurrent.futures.wait(open_runs, POLL_SECONDS, "FIRST_COMPLETED")
                    for future in ended:
                        on_run(future.result())
                    on_wait()
            except BaseException:  # do not begin what waits, nor finish what runs: it can be resumed
                pool.shutdown(wait=False, cancel_futures=True)
                for process in multiprocessing.active_children():
                    process.terminate()
                raise
    return [Run(path) for path in planned]


def default_folder(base: Experiment) -> Path:
    """A new folder in runs/ that sorts by time."""
    return api.RUNS / f"{time.strftime('%Y%m%d-%H%M%S')}-{base.name}-sweep"


def variants(base: Experiment, cohorts: Iterable[int], seeds: Iterable[int]) -> list[Experiment]:
    """Every combination, checked before the first one runs."""
    return [experiment_file.with_settings(base, {"cohorts": n, "seed": seed}) for seed in seeds for n in cohorts]


def name(experiment: Experiment) -> str:
    """The folder of one run in a sweep."""
    return f"n{experiment.cohorts:03d}-seed{experiment.seed}"


def run_or_resume(experiment: Experiment, path: Path, **common: Any) -> Run:
    """The finished run at this path, made by whatever is still missing of it."""
    if not (path / "run.json").is_file():
        return api.run(experiment, out=path, **common)
    given = {"model.name": "model", "data.train": "train", "data.public": "public"}
    replaced = {key: GIVEN for key, argument in given.items() if common.get(argument) is not None}
    if RunFolder.open(path).experiment() != absolute(experiment_file.with_settings(experiment, replaced)):
        raise RunFolderError(f"{path} holds a run with other settings: choose another --out")
    return api.resume(path, **common)
