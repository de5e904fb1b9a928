"""The same from Python as from the command line: run, resume, distill, load_run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from cpfl import experiment_file, method
from cpfl.data import sources
from cpfl.data.catalogue import CATALOGUE
from cpfl.data.federated import Given, as_samples
from cpfl.data.fetch import fetch
from cpfl.data.samples import Samples
from cpfl.data.sources import search_roots
from cpfl.distillation.weights import cohort_counts
from cpfl.engines import choice
from cpfl.errors import CpflError, ModelError, RunFolderError, SettingError
from cpfl.estimate import estimate
from cpfl.experiment import GIVEN, Experiment
from cpfl.models import State
from cpfl.problem import OwnModel, Problem, prepare
from cpfl.runs import files, records
from cpfl.runs.folder import RunFolder, load_state

RUNS = Path("runs")
KINDS = ("cpu", "cuda", "mps", "xpu")


class Silent:
    """A watcher that says nothing."""

    def on_start(self, sessions: object) -> None: ...
    def on_round(self, session: object, closed: object) -> None: ...
    def on_epoch(self, record: object) -> None: ...
    def on_note(self, text: str) -> None: ...


@dataclass(frozen=True)
class Run:
    """A run folder, opened for reading."""

    path: Path

    @property
    def experiment(self) -> Experiment:
        """Every setting of the run."""
        return RunFolder.open(self.path).experiment()

    @property
    def summary(self) -> dict[str, Any]:
        """The outcome; empty while the run is unfinished."""
        return RunFolder.open(self.path).summary() or {}

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """All records, cohort by cohort."""
        folder = RunFolder.open(self.path)
        return [line for cohort in range(len(folder.about()["plan"])) for line in records.read(folder.rounds(cohort))]

    @property
    def model(self) -> State:
        """The global model's state, for `load_state_dict`."""
        return load_state(RunFolder.open(self.path).model("global"))


def run(
    experiment: str | Path | Experiment,
    *,
    model: OwnModel | None = None,
    train: object = None,
    test: object = None,
    public: object = None,
    out: str | Path | None = None,
    data: str | Path | None = None,
    engine: str = "auto",
    device: str = "auto",
    watcher: method.Watcher | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Run:
    """Run one experiment: a preset, a TOML file or an Experiment, with your own model and arrays if you like.

    `train` and `test` are (inputs, labels) or (inputs, labels, {column: values}); `public` is inputs alone.
    """
    chosen = experiment if isinstance(experiment, Experiment) else experiment_file.load(experiment)
    replaced = dict(settings or {}) | {
        key: GIVEN
        for key, value in (("model.name", model), ("data.train", train), ("data.public", public))
        if value is not None
    }
    chosen = experiment_file.with_settings(chosen, replaced)
    place = torch_device(device)
    _known_engine(engine)
    path = Path(out) if out is not None else RUNS / new_name(chosen)
    RunFolder.check_free(path)
    chosen = absolute(chosen)
    _check_moment(chosen)
    looking = watcher or Silent()
    problem = _prepare(chosen, data, model, _given(train, test, public), looking)
    looking.on_note(estimate(problem, place).sentence(chosen))
    folder = RunFolder.create(path, chosen, describe(problem, data))
    return _go(problem, folder, engine, place, looking, "started")


def resume(
    path: str | Path,
    *,
    model: OwnModel | None = None,
    train: object = None,
    test: object = None,
    public: object = None,
    data: str | Path | None = None,
    engine: str = "",
    device: str = "auto",
    watcher: method.Watcher | None = None,
) -> Run:
    """Go on with a run that was killed; it ends as it would have. Own model and arrays must be given again."""
    folder = RunFolder.open(Path(path))
    if folder.summary() is not None:
        return Run(folder.path)
    place = torch_device(device)
    engine = engine or folder.engine() or "auto"  # the one it began with: another one differs by rounding
    _known_engine(engine)
    looking = watcher or Silent()
    problem = _reopen(folder, data, model, _given(train, test, public), looking)
    return _go(problem, folder, engine, place, looking, "resumed")


def distill(
    path: str | Path,
    *,
    name: str = "",
    model: OwnModel | None = None,
    train: object = None,
    test: object = None,
    public: object = None,
    data: str | Path | None = None,
    device: str = "auto",
    watcher: method.Watcher | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Distil a run again, finished or still running, without training: at="10h", quorum=0.75, weights="uniform" …"""
    folder = RunFolder.open(Path(path))
    own = {f"distillation.{key}": value for key, value in settings.items()}
    if public is not None:
        own["data.public"] = GIVEN
    changed = experiment_file.with_settings(folder.experiment(), own).distillation
    if name and (name.startswith(".") or not all(c.isalnum() or c in "-._" for c in name)):
        raise SettingError(f"--name {name!r} is not allowed: letters, digits, '-', '_' and '.', not beginning with '.'")
    label = name or "-".join(f"{key}-{value}" for key, value in settings.items()) or "again"
    label = "".join(c if c.isalnum() or c in "-._" else "_" for c in label)
    looking, own_public = watcher or Silent(), public is not None
    problem = _reopen(folder, data, model, _given(train, test, public), looking, changed.student, own_public)
    into = folder.path / "distillations" / label
    began = time.perf_counter()
    place = torch_device(device)
    outcome = method.distil_cohorts(problem, folder, changed, into, place, looking)
    summary = {
        **outcome,
        "distillation": changed.model_dump(),
        "wall_seconds": round(time.perf_counter() - began, 3),
        "device": place.type,
    }
    files.write_json(into / "summary.json", summary)
    return {**summary, "path": str(into)}


def load_run(path: str | Path) -> Run:
    """Open a run folder for reading."""
    return Run(RunFolder.open(Path(path)).path)


def describe(problem: Problem, data: str | Path | None) -> dict[str, Any]:
    """What run.json says beside versions."""
    return {
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "data_folder": None if data is None else str(Path(data).absolute()),
        "shape": list(problem.data.train.shape),
        "classes": problem.data.classes,
        "class_names": _class_names(problem, data),
        "model_bytes": problem.model_bytes,
        "samples": {
            "train": len(problem.data.train),
            "test": len(problem.data.test),
            "public": len(problem.data.public),
        },
        "fingerprint": problem.fingerprint(),
        "plan": problem.plan,
        "label_counts": cohort_counts(problem.data.counts, problem.plan).tolist(),
    }


def _class_names(problem: Problem, data: str | Path | None) -> list[str] | None:
    roots = search_roots(None if data is None else Path(data))
    names = sources.class_names(problem.experiment.data.train, roots)
    return names if names is not None and len(names) >= problem.data.classes else None


def torch_device(name: str) -> torch.device:
    """The device to compute on; auto takes a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.split(":")[0] not in KINDS:
        raise SettingError(f"--device {name} is unknown; known: auto, {', '.join(KINDS)}, or one with a number, cuda:1")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SettingError(f"--device {name} cannot be used: {str(error).splitlines()[0]}") from None
    return device


def new_name(experiment: Experiment) -> str:
    """A folder name that sorts by time and is not taken."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{experiment.name}-n{experiment.cohorts}-seed{experiment.seed}"
    taken = sum(1 for _ in RUNS.glob(f"{name}*"))
    return f"{name}-{taken + 1}" if taken else name


def _go(
    problem: Problem, folder: RunFolder, engine: str, device: torch.device, watcher: method.Watcher, event: str
) -> Run:
    folder.lock()
    try:
        if not folder.model("start").is_file():
            files.save_tensors(folder.model("start"), problem.start, {"round": 0, "clock": 0.0})
        worker = choice.engine(engine, problem, device, watcher.on_note)
        folder.log(event, engine=worker.name, device=str(device))
        method.cpfl(problem, folder, worker, device, watcher)
        folder.log("finished")
    finally:
        folder.unlock()
    return Run(folder.path)


def _reopen(
    folder: RunFolder,
    data: str | Path | None,
    model: OwnModel | None,
    given: Given,
    watcher: method.Watcher,
    student: str | None = None,
    own_public: bool = False,
) -> Problem:
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
    problem = _prepare(experiment, data or about["data_folder"], model, given, watcher)
    if folder.model("start").is_file():
        stored = load_state(folder.model("start"))
        if {k: v.shape for k, v in stored.items()} != {k: v.shape for k, v in problem.start.items()}:
            raise ModelError(f"the model is not the one that {folder.path} began with: their parameters differ")
        problem = replace(problem, start=stored)  # a model of one's own need not start the same twice
    found = problem.fingerprint()
    for name, digest in about["fingerprint"].items():
        if digest != found[name] and not (own_public and name == "public"):
            raise RunFolderError(f"the {name} data are not those that {folder.path} began with: checksums differ")
    return problem


def _prepare(
    experiment: Experiment, data: str | Path | None, model: OwnModel | None, given: Given, watcher: method.Watcher
) -> Problem:
    folder = None if data is None else Path(data)
    if folder is not None and not folder.is_dir():
        raise SettingError(f"--data {folder} is not a folder")
    roots = search_roots(folder)
    obtain(experiment, folder, given, watcher.on_note)
    return prepare(experiment, roots, given, model)


def obtain(experiment: Experiment, data: Path | None, given: Given, note: Callable[[str], None]) -> None:
    """Download the known sets that the experiment needs and that are not here yet."""
    roots, target = search_roots(data), sources.download_root(data)
    named = [(experiment.data.train, given.train), (experiment.data.public, given.public)]
    sets = {name for name, own in named if own is None and name in CATALOGUE and name != "fedscale"}
    for name in sorted(sets | ({"fedscale"} & {experiment.devices.trace})):
        about = sources.describe(name, roots)
        if about.format == "missing" and about.downloadable:
            note(f"{name} is not here yet: downloading {about.size / 1e6:,.0f} MB to {target / name}")
            fetch(name, target, progress=_tenths(name, note))


def _tenths(name: str, note: Callable[[str], None]) -> Callable[[int, int], None]:
    told = 0

    def progress(done: int, total: int) -> None:
        nonlocal told
        if total and 10 * done // total > told:
            told = 10 * done // total
            note(f"{name}: {10 * told} %")

    return progress


def _given(train: object, test: object, public: object) -> Given:
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
    }
    paths = {
        key: value
        for key, value in keys.items()
        if Path(value).is_file() or (sources.is_path(value) and Path(value).exists())
    }
    return experiment_file.with_settings(
        experiment, {k: str(Path(v).expanduser().absolute()) for k, v in paths.items()}
    )


def _check_moment(experiment: Experiment) -> None:
    """A run that could never be distilled is refused before it trains."""
    wanted = experiment.distillation
    if (wanted.at or wanted.quorum < 1) and wanted.unfinished == "latest" and not experiment.snapshots:
        key = f"at = {wanted.at!r}" if wanted.at else f"quorum = {wanted.quorum}"
        raise SettingError(f"distillation.{key} needs snapshots of unfinished cohorts: set snapshots=5h or '50 rounds'")


def _known_engine(name: str) -> None:
    if name not in choice.NAMES:
        raise SettingError(f"--engine {name} is unknown; known: {', '.join(choice.NAMES)}")
