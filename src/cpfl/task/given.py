"""Data given in Python: what they say about the clients becomes settings, and every form of them becomes arrays."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cpfl.data.clients import CLIENT, by_client, is_function, joined, pooled
from cpfl.data.frames import is_table
from cpfl.data.given import Given
from cpfl.data.given_columns import described
from cpfl.data.sets import FORMS, SetReader, is_dataset, is_named_table, refuse_stream
from cpfl.data.split import id_column
from cpfl.errors import DataError, SettingError, first_line
from cpfl.settings import Experiment, experiment_file
from cpfl.settings.types import MOST

UNKNOWN = MOST
"""So many clients: as many as their column has values, once it is read."""
SPLIT = ("data.split", "data.column", "data.alpha", "data.remainder", "data.shards")


def client_settings(
    train: Any, source: str | Path | Experiment, settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What training data say themselves about clients, as settings; `settings` are the user's on top of `source`.

    Settings of the user's that say it otherwise are refused.
    """
    if train is None:
        return {}
    own = experiment_file.given_values(source, settings or {})
    count: Any = own.get("clients") if is_function(train) else _count(train)
    if count is None and is_function(train):
        raise SettingError("train is a function of a client's number: clients is needed, the number of clients")
    if count is None:
        inferred = own.get("data.split") == "column" and "clients" not in own
        return {"clients": UNKNOWN} if inferred else {}
    mine = {"data.split": "column", "data.column": CLIENT, "clients": count}
    preset = not isinstance(source, Experiment) and str(source) in experiment_file.presets()
    chosen = {**(settings or {})} if preset else own  # data replace what a preset says of its own
    for key in SPLIT:
        if key in chosen and chosen[key] != mine.get(key):
            raise SettingError(f"{key} has no effect here: train says which client has what")
    if chosen.get("clients", count) != count:
        raise SettingError(f"clients = {chosen['clients']} is given, and train has {count} clients: leave clients out")
    return mine


def _count(train: Any) -> int | None:
    sets = _named("train", lambda: by_client(train, 0))
    return None if sets is None else len(sets)


def with_clients(experiment: Experiment, given: Given) -> Experiment:
    """The experiment with as many clients as the column that names them has values, where nobody said how many."""
    if experiment.clients != UNKNOWN or given.train is None:
        return experiment
    column = id_column(given.train, experiment.data.column)[: experiment.data.train_limit or None]
    return experiment_file.with_settings(experiment, {"clients": len(np.unique(column))})


def reader_of(experiment: Experiment, notify: Callable[[str], None]) -> SetReader:
    """A reader that takes no id column of the experiment for an input."""
    ids = (experiment.data.column, experiment.assignment.rule_args.get("column"))
    return SetReader([name for name in ids if isinstance(name, str) and name], notify, experiment.data.label)


def labelled(given: Any, name: str, reader: SetReader, clients: int) -> tuple[Any, ...] | None:
    """Any form of a training or test set as (inputs, labels) or (inputs, labels, columns)."""
    if given is None:
        return None

    def read() -> tuple[Any, ...]:
        refuse_stream(given)
        sets = by_client(given, clients)
        if sets is None and isinstance(given, tuple) and len(given) in (2, 3) and not is_named_table(given):
            return given
        if sets is None and not (is_table(given) or is_dataset(given) or is_named_table(given)):
            one_each = "a dict, a list or a function with one of these for each client"
            raise DataError(f"{described(given)} is given: {FORMS}, or {one_each}, is needed")
        part = reader.read(given, "whole" if name == "train" else "part") if sets is None else pooled(sets, reader)
        return part.x, part.y, part.ids

    found: tuple[Any, ...] = _named(name, read)
    return found


def unlabelled(public: Any, reader: SetReader) -> Any:
    """Any form of a public set as inputs alone."""

    def read() -> Any:
        refuse_stream(public)
        listed = public if isinstance(public, list) and public else [public]
        if not all(is_table(one) or is_dataset(one) for one in listed):
            return public
        try:
            return joined([reader.read(one, "public").x for one in listed])
        except (KeyError, ValueError) as error:
            raise DataError(f"its sets have different inputs: {first_line(error)}") from None

    return None if public is None else _named("public", read)


def _named(name: str, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except DataError as error:
        raise DataError(f"{name}: {error}") from error
