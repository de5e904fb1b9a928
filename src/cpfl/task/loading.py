"""From what a user names to a task: data sets found or downloaded, arrays checked, everything built once."""

import os
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from cpfl.cohorts.base import Cohorts
from cpfl.data import sources
from cpfl.data.catalogue import CATALOGUE, fetch
from cpfl.data.given import Given, as_samples, named_labels
from cpfl.data.sources import search_roots
from cpfl.data.tables import Roles
from cpfl.errors import CpflError, DataError, SettingError
from cpfl.federation import local_training, optimizers
from cpfl.models.start import AS_GIVEN, FRESH
from cpfl.privacy import label_counts
from cpfl.settings import GIVEN, Experiment, effects, experiment_file
from cpfl.task.given import labelled, reader_of, unlabelled
from cpfl.task.task import Task, UserModel, build_task
from cpfl.user_files import expanded

Notify = Callable[[str], None]
MayDownload = bool | Callable[[str], bool]
"""Whether data sets may be downloaded; a function is asked, with a question."""


def load_task(
    experiment: Experiment,
    data: str | Path | None,
    model: UserModel | None,
    given: Given,
    notify: Notify,
    cohorts: Cohorts | None = None,  # of a run that is resumed
    download: MayDownload = False,
) -> Task:
    """The task of an experiment; data sets that are missing are downloaded if they may be."""
    folder = None if data is None else expanded(Path(data), "data")
    if folder is not None and not folder.is_dir():
        raise SettingError(f"data = {str(folder)!r} is not a folder")
    optimizers.check(experiment.federation)
    _download_missing(experiment, folder, given, notify, download)
    task = build_task(experiment, search_roots(folder), given, model, cohorts)
    local_training.check_steps(experiment.federation, int(task.data.clients.training_sizes.max()))
    for cohort in range(len(task.cohorts)):  # what a session refuses is refused before anything is written
        task.session(cohort)
    hidden = [cohort for cohort, row in enumerate(label_counts.to_rows(task.label_counts)) if row is None]
    largest, wanted = max(map(len, task.cohorts)), experiment.federation.participants
    if wanted > largest:  # no mistake in a sweep over n
        notify(f"federation.participants = {wanted}: no cohort has so many clients, all of at most {largest} take part")
    if hidden:
        notify(
            f"cohorts {hidden} have fewer than privacy.min_clients = {experiment.privacy.min_clients} clients: "
            "they report no label counts and get uniform weights"
        )
    return task


def _download_missing(
    experiment: Experiment, data: Path | None, given: Given, notify: Notify, download: MayDownload
) -> None:
    roots, target = search_roots(data), sources.download_root(data)
    named = [(experiment.data.train, given.train), (experiment.data.public, given.public)]
    sets = {name for name, own in named if own is None and name in CATALOGUE and name != "fedscale"}
    known = [sources.describe(name, roots) for name in sorted(sets | ({"fedscale"} & {experiment.devices.trace}))]
    missing = [entry for entry in known if entry.format == "missing"]
    if not missing or not all(entry.downloadable for entry in missing):  # the one that is not is named when it is read
        return
    sizes = ", ".join(f"{entry.name} ({entry.megabytes})" for entry in missing)
    are = "is" if len(missing) == 1 else "are"
    if not (download(f"{sizes} {are} not on this machine. Download to {target}?") if callable(download) else download):
        commands = ", ".join(f"cpfl data get {entry.name}" for entry in missing)
        raise DataError(f"{sizes} {are} not on this machine: {commands}; or allow it here (--download, download=True)")
    for entry in missing:
        notify(f"{entry.name}: downloading {entry.megabytes} to {target / entry.name}")
        fetch(entry.name, target, progress=_in_tenths(entry.name, notify))


def _in_tenths(name: str, notify: Notify) -> Callable[[int, int], None]:
    reported = 0

    def progress(done: int, total: int) -> None:
        nonlocal reported
        if total and 10 * done // total > reported:
            reported = 10 * done // total
            notify(f"{name}: {10 * reported} %")

    return progress


def given_arrays(
    train: object,
    test: object,
    public: object,
    experiment: Experiment | None = None,
    notify: Notify = lambda text: None,
) -> Given:
    """A user's data, in any form, as samples."""
    experiment = experiment or Experiment()
    reader = reader_of(experiment, notify)
    pairs = [labelled(data, name, reader, experiment.clients) for data, name in ((train, "train"), (test, "test"))]
    if train is not None and experiment.data.label and not reader.has_columns:
        raise SettingError(f"data.label = {experiment.data.label!r} names a column of a table; train has none")
    public = unlabelled(public, reader)
    if isinstance(public, tuple) and not any(pair and isinstance(pair[0], tuple | dict) for pair in pairs):
        raise CpflError("public takes inputs alone, one array or tensor, not a tuple")
    labels, names = named_labels(*(pair[1] if pair else None for pair in pairs))
    samples = [as_samples(pair[0], y, *pair[2:]) if pair else None for pair, y in zip(pairs, labels, strict=True)]
    return Given(samples[0], samples[1], None if public is None else as_samples(public), names or reader.class_names)


def check_public(experiment: Experiment, source: object, named: Collection[str]) -> None:
    """Refuse training data of the user's own beside a public set that nobody chose, and splits of a public set that is
    given; `named` are settings on top."""
    own, public = experiment.data.train == GIVEN, experiment.data.public
    preset = not isinstance(source, Experiment) and str(source) in experiment_file.presets()
    chosen = {*named, *(() if preset else effects.given(experiment))}
    if own and public != GIVEN and "data.public" not in chosen:
        raise SettingError(
            f"public is missing: cohort models are distilled on unlabelled inputs like those of train: give public=…, "
            f"or name a set in data.public (unless named it is {public!r}, which was made for the built-in digits)"
        )
    if public == GIVEN and experiment.data.public_splits and "data.public_splits" in chosen:
        raise SettingError("data.public_splits has no effect here: public is given, it names splits of a stored set")


def absolute(experiment: Experiment) -> Experiment:
    """The same experiment with paths that lead to the same files from any folder."""

    def resolved(value: str) -> str:
        # Not Path.is_file: that raises an error for a name that is too long.
        is_path = os.path.isfile(value) or (sources.is_path(value) and os.path.exists(value))
        return str(expanded(Path(value), "a path").absolute()) if is_path else value

    def section(name: str, *keys: str) -> dict[str, object]:
        own = getattr(experiment, name)
        return {name: own.model_copy(update={key: resolved(getattr(own, key)) for key in keys})}

    args = experiment.assignment.rule_args
    if isinstance(args.get("file"), str):
        args = {**args, "file": resolved(args["file"])}
    assignment = experiment.assignment.model_copy(update={"rule_args": args})
    paths = section("data", "train", "public") | section("devices", "trace", "availability")
    if experiment.model.start not in (FRESH, AS_GIVEN):
        paths |= section("model", "start")
    return experiment.model_copy(update={**paths, "assignment": assignment})


def class_names(task: Task, data: str | Path | None) -> list[str] | None:
    """The names of the classes, where the training set has one for each."""
    if task.data.class_names:
        return list(task.data.class_names)
    with suppress(DataError):  # arrays given in Python have no files that could name them
        named, roots = task.experiment.data, search_roots(None if data is None else Path(data))
        names = sources.class_names(named.train, roots, Roles(named.label))
        return names if len(names) >= task.data.classes else None
    return None
