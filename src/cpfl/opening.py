"""From what a user names to a problem that can be run: finding, downloading, checking, reopening."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from cpfl import experiment_file
from cpfl.cohorts import CohortPlan
from cpfl.data import sources
from cpfl.data.catalogue import CATALOGUE
from cpfl.data.federated import Given, as_samples
from cpfl.data.fetch import fetch
from cpfl.data.samples import Samples
from cpfl.data.sources import search_roots
from cpfl.engines import choice
from cpfl.engines.ray import Place, place
from cpfl.errors import CpflError, ModelError, RunFolderError, SettingError
from cpfl.experiment import GIVEN, Experiment
from cpfl.federation import parts
from cpfl.models import State
from cpfl.planning import reveals
from cpfl.presets.published import published
from cpfl.privacy import counts
from cpfl.problem import OwnModel, Problem, prepare
from cpfl.runs.folder import RunFolder, load_state

KINDS = ("cpu", "cuda", "mps", "xpu")
Note = Callable[[str], None]


def prepare_named(
    experiment: Experiment,
    data: str | Path | None,
    model: OwnModel | None,
    given: Given,
    note: Note,
    plan: CohortPlan | None = None,
) -> Problem:
    """The problem that an experiment names, its sets downloaded where they are missing."""
    folder = None if data is None else Path(data)
    if folder is not None and not folder.is_dir():
        raise SettingError(f"--data {folder} is not a folder")
    roots = search_roots(folder)
    parts.check(experiment.federation)
    obtain(experiment, folder, given, note)
    problem = prepare(experiment, roots, given, model, plan)
    for cohort in range(len(problem.plan)):  # what a session refuses is told before anything is written
        problem.session(cohort)
    hidden = [cohort for cohort, row in enumerate(counts.told(problem.label_counts)) if row is None]
    if hidden:
        note(
            f"cohorts {hidden} have fewer than privacy.smallest = {experiment.privacy.smallest} clients: "
            "they keep their label counts and get uniform weights"
        )
    return problem


def reopen(
    folder: RunFolder,
    data: str | Path | None,
    model: OwnModel | None,
    given: Given,
    note: Note,
    student: str | None = None,
    own_public: bool = False,
) -> Problem:
    """The problem of a run folder, which must be the one that it began with."""
    experiment = folder.experiment()
    about = folder.about()
    for key, name, value in (
        ("model", experiment.model.name, model),
        ("train", experiment.data.train, given.train),
        ("public", experiment.data.public, given.public),
    ):
        if name == GIVEN and value is None:
            raise RunFolderError(
                f"{folder.path} was started from Python with its own {key}: go on from Python and give {key} again"
            )
    if student is not None:
        experiment = experiment_file.with_settings(experiment, {"distillation.student": student})
    problem = prepare_named(experiment, data or about["data_folder"], model, given, note, about["plan"])
    others = {
        c: replace(own, start=_began(folder, folder.own_start(c), own.start)) for c, own in problem.others.items()
    }
    problem = replace(problem, start=_began(folder, folder.model("start"), problem.start), others=others)
    if about.get("label_counts"):  # what the clients told then, and tell once
        problem = replace(problem, label_counts=counts.read(about["label_counts"], problem.data.classes))
    found = problem.fingerprint()
    for name, digest in about["fingerprint"].items():
        if digest != found[name] and not (own_public and name == "public"):
            raise RunFolderError(f"the {name} data are not those that {folder.path} began with: checksums differ")
    return problem


def _began(folder: RunFolder, path: Path, start: State) -> State:
    """The start that was kept: a model of one's own need not start the same twice."""
    if not path.is_file():
        return start
    stored = load_state(path)
    if {k: v.shape for k, v in stored.items()} != {k: v.shape for k, v in start.items()}:
        raise ModelError(f"the model is not the one that {folder.path} began with: their parameters differ")
    return {name: stored[name] for name in start}  # in the model's order


def obtain(experiment: Experiment, data: Path | None, given: Given, note: Note) -> None:
    """Download the known sets that the experiment needs and that are not here yet."""
    roots, target = search_roots(data), sources.download_root(data)
    named = [(experiment.data.train, given.train), (experiment.data.public, given.public)]
    sets = {name for name, own in named if own is None and name in CATALOGUE and name != "fedscale"}
    for name in sorted(sets | ({"fedscale"} & {experiment.devices.trace})):
        about = sources.describe(name, roots)
        if about.format == "missing" and about.downloadable:
            note(f"{name} is not here yet: downloading {about.size / 1e6:,.0f} MB to {target / name}")
            fetch(name, target, progress=_tenths(name, note))


def _tenths(name: str, note: Note) -> Callable[[int, int], None]:
    told = 0

    def progress(done: int, total: int) -> None:
        nonlocal told
        if total and 10 * done // total > told:
            told = 10 * done // total
            note(f"{name}: {10 * told} %")

    return progress


def given_arrays(train: object, test: object, public: object) -> Given:
    """A user\'s arrays as samples."""
    if isinstance(public, tuple):
        raise CpflError("public takes inputs alone, one array or tensor, not a tuple")
    return Given(_labelled(train, "train"), _labelled(test, "test"), None if public is None else as_samples(public))


def _labelled(pair: object, name: str) -> Samples | None:
    if pair is None:
        return None
    if not isinstance(pair, tuple) or len(pair) not in (2, 3):
        raise CpflError(f"{name} takes a tuple (inputs, labels) or (inputs, labels, columns)")
    return as_samples(*pair)


def absolute(experiment: Experiment) -> Experiment:
    """Paths that still lead to the same files from another folder."""
    keys = {
        "data.train": experiment.data.train,
        "data.public": experiment.data.public,
        "devices.trace": experiment.devices.trace,
        "cohorting.file": experiment.cohorting.file,
        "devices.availability": experiment.devices.availability,
    }
    paths = {
        key: value
        for key, value in keys.items()
        if Path(value).is_file() or (sources.is_path(value) and Path(value).exists())
    }
    return experiment_file.with_settings(
        experiment, {k: str(Path(v).expanduser().absolute()) for k, v in paths.items()}
    )


def check_moment(experiment: Experiment) -> None:
    """A run that could never be distilled is refused before it trains."""
    wanted = experiment.distillation
    if (wanted.at or wanted.quorum < 1) and wanted.unfinished == "latest" and not experiment.snapshots:
        key = f"at = {wanted.at!r}" if wanted.at else f"quorum = {wanted.quorum}"
        raise SettingError(f"distillation.{key} needs snapshots of unfinished cohorts: set snapshots=5h or '50 rounds'")


def check_engine(name: str, workers: int = 0, cluster: Place | None = None) -> None:
    """Whether there is such an engine, with so many workers."""
    if workers < 0:
        raise SettingError(f"workers = {workers} is not allowed: 1 or more, or 0 for one on each core")
    if name not in choice.NAMES:
        raise SettingError(f"--engine {name} is unknown; known: {', '.join(choice.NAMES)}")
    place.check(name, cluster or Place())


def torch_device(name: str, engine: str = "auto") -> torch.device:
    """The device to compute on here; auto takes a GPU if there is one. GPUs that are asked for with the engine ray are
    its workers': a driver without one does its own part on the CPU."""
    if engine == "ray" and name.split(":")[0] == "cuda" and not torch.cuda.is_available():
        name = "cpu"
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.split(":")[0] not in KINDS:
        raise SettingError(f"--device {name} is unknown; known: auto, {', '.join(KINDS)}, or one with a number, cuda:1")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)  # graphs are captured on the current GPU
    except (RuntimeError, AssertionError) as error:
        raise SettingError(f"--device {name} cannot be used: {str(error).splitlines()[0]}") from None
    return device


def describe(problem: Problem, data: str | Path | None) -> dict[str, Any]:
    """What run.json says beside versions."""
    return {
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "data_folder": None if data is None else str(Path(data).absolute()),
        "shape": list(problem.data.train.shape),
        "classes": problem.data.classes,
        "class_names": class_names(problem, data),
        "model_bytes": problem.model_bytes,
        "cohort_model_bytes": {str(cohort): own.model_bytes for cohort, own in problem.others.items()},
        "samples": {
            "train": len(problem.data.train),
            "test": len(problem.data.test),
            "public": len(problem.data.public),
        },
        "fingerprint": problem.fingerprint(),
        "plan": problem.plan,
        "plan_reveals": reveals(problem.experiment.cohorting),
        "label_counts": counts.told(problem.label_counts),
        "published": published(problem.experiment),  # a report reads folders only
    }


def class_names(problem: Problem, data: str | Path | None) -> list[str] | None:
    """What the labels are called, where the training set says so of all."""
    roots = search_roots(None if data is None else Path(data))
    names = sources.class_names(problem.experiment.data.train, roots)
    return names if names is not None and len(names) >= problem.data.classes else None
