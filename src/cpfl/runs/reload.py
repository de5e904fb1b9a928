"""Between a run folder and its task: what run.json says of a task, and the same task again for resuming."""

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from cpfl.data.given import Given
from cpfl.errors import ModelError, RunFolderError, SettingError, quoted
from cpfl.models import State
from cpfl.models.start import FRESH
from cpfl.presets.published import published
from cpfl.privacy import label_counts
from cpfl.runs import files
from cpfl.runs.folder import RunFolder
from cpfl.settings import GIVEN, Experiment, experiment_file
from cpfl.task.loading import Notify, class_names, load_task
from cpfl.task.population import assignment_rule
from cpfl.task.task import Task, UserModel
from cpfl.user_files import expanded


def describe(task: Task, data: str | Path | None, engine: str) -> dict[str, Any]:
    """What run.json says beside versions; `engine` is the name of the one that trains."""
    sets = {"train": task.data.train, "test": task.data.test, "public": task.data.public}
    return {
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "engine": engine,
        "data_folder": None if data is None else str(expanded(Path(data), "data").absolute()),
        "start": {path: files.tensors_checksum(state) for path, state in _starts(task).items()},
        "shape": list(task.data.train.shape),
        "inputs": task.data.transform.kind,
        "fields": [{"name": f.name, "dtype": f.dtype, "shape": list(f.shape)} for f in task.data.train.fields],
        "objective": task.experiment.model.objective,
        "metric": task.data.objective.metric,
        "answer": list(task.data.answer.shape),
        "classes": task.data.classes,
        "labels_of_a_sample": math.prod(task.data.label_shape),
        "class_names": class_names(task, data),
        "model_bytes": task.model_bytes,
        "cohort_model_bytes": {str(cohort): own.model_bytes for cohort, own in task.cohort_models.items()},
        "samples": {name: len(samples) for name, samples in sets.items()},
        "fingerprint": task.fingerprint(),
        "cohorts": task.cohorts,
        "assignment_reveals": assignment_rule(task.experiment.assignment).reveals,
        "label_counts": label_counts.to_rows(task.label_counts),
        "published": published(task.experiment),  # a report reads folders only
    }


def save_initial_models(folder: RunFolder, task: Task) -> None:
    """The models that cohorts start from, unless they are there."""
    for name, state in _starts(task).items():
        if not folder.model(name).is_file():
            folder.save(folder.model(name), state, {"round": 0, "clock": 0.0})


def _starts(task: Task) -> dict[str, State]:
    """The models that cohorts start from, by the names of their files."""
    return {"start": task.start, **{f"start-{cohort:04d}": own.start for cohort, own in task.cohort_models.items()}}


def reload_task(
    folder: RunFolder,
    data: str | Path | None,
    model: UserModel | None,
    given: Given,
    notify: Notify,
    student: str | None = None,
    other_public: bool = False,  # the public set may differ from the run's
) -> Task:
    """The task of a run folder, which must be the one that the run started with."""
    experiment, about = folder.experiment(), folder.about()
    for key, name, value in (
        ("model", experiment.model.name, model),
        ("train", experiment.data.train, given.train),
        ("public", experiment.data.public, given.public),
    ):
        if name == GIVEN and value is None:
            raise RunFolderError(
                f"{folder.path} was started from Python with its own {key}: continue from Python and give {key} again"
            )
    if student is not None:
        experiment = experiment_file.with_settings(experiment, {"distillation.student": student}, False)
    task = load_task(experiment, data or about["data_folder"], model, given, notify, about["cohorts"])
    task = restored(task, folder)
    found = task.fingerprint()
    for name, digest in about["fingerprint"].items():
        if digest != found[name] and not (other_public and name == "public"):
            raise RunFolderError(f"the {name} data are not those that {folder.path} started with: checksums differ")
    return task


def restored(task: Task, folder: RunFolder) -> Task:
    """The task with the initial models that a run started with, and the label counts that its clients reported."""
    about, chosen = folder.about(), task.experiment.model.start
    if chosen != FRESH and about["start"].get("start") != files.tensors_checksum(task.start):
        raise RunFolderError(
            f"the weights of model.start = {quoted(chosen)} are not those that {folder.path} started with: "
            "checksums differ"
        )
    start = _stored(folder, folder.model("start"), task.start)
    others = {n: _stored(folder, folder.own_start(n), one.start) for n, one in task.cohort_models.items()}
    rows = about["label_counts"]
    counts = label_counts.from_rows(rows, task.data.classes) if rows else task.label_counts
    return replace(task.starting_from(start, others), label_counts=counts)


def _stored(folder: RunFolder, path: Path, start: State) -> State:
    """The initial model that was saved: a user's model need not start from the same weights twice."""
    if not path.is_file():
        changed = folder.about()["start"].get(path.stem) != files.tensors_checksum(start)
        if changed and any((folder.path / "rounds").glob("*.jsonl")):
            raise ModelError(f"{path} is missing, and the given model has other weights: restore it")
        return start
    stored, _ = folder.load(path)
    if {k: v.shape for k, v in stored.items()} != {k: v.shape for k, v in start.items()}:
        raise ModelError(f"the model is not the one that {folder.path} started with: their parameters differ")
    return {name: stored[name] for name in start}  # in the model's order


def check_snapshots(experiment: Experiment) -> None:
    """Refuse a run that could never be distilled, before it trains."""
    wanted = experiment.distillation
    if (wanted.at or wanted.quorum < 1) and wanted.unfinished == "latest" and not experiment.snapshots:
        key = f"at = {wanted.at!r}" if wanted.at else f"quorum = {wanted.quorum}"
        raise SettingError(f"distillation.{key} needs snapshots of unfinished cohorts: set snapshots=5h or '50 rounds'")
