"""Data as users have them by client: dicts, lists, Datasets, frames, functions; what they mean and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.data.forms import (
    BY_COLUMN,
    FEATURES,
    NAMES,
    OWNER,
    PARTS,
    PUBLIC,
    RNG,
    SMALL,
    Longer,
    Rows,
    Stream,
    X,
    Y,
    columns,
    hugging_face,
    pandas,
    read,
    tensors,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cpfl
from cpfl.data.split import split
from cpfl.errors import CpflError, DataError, RunFolderError, SettingError
from cpfl.runs.folder import RunFolder
from cpfl.task.given import client_settings, with_clients
from cpfl.task.loading import given_arrays, load_task


def run(train: Any, out: Path, **more: Any) -> cpfl.Run:
    arguments: dict[str, Any] = {"public": PUBLIC, "model": Linear, "engine": "reference", **more}
    settings = SMALL | arguments.pop("settings", {})
    return cpfl.run(arguments.pop("source", cpfl.Experiment()), train=train, settings=settings, out=out, **arguments)


class Linear(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 3)


BY_CLIENT: dict[str, Callable[[], Any]] = {
    "dict": lambda: PARTS,
    "dict in another order": lambda: dict(reversed(PARTS.items())),
    "list": lambda: list(PARTS.values()),
    "tuple": lambda: tuple(PARTS.values()),
    "tuple of two lists and a tensor": lambda: tuple((x, y.tolist()) for x, y in PARTS.values()),
    "Datasets": lambda: [tensors(*part) for part in PARTS.values()],
    "tuple of Datasets": lambda: tuple(tensors(*part) for part in PARTS.values()),
    "items that are dicts": lambda: {
        name: Rows([{"x": one, "label": int(label)} for one, label in zip(*part, strict=True)])
        for name, part in PARTS.items()
    },
    "function": lambda: lambda client: PARTS[NAMES[client]],
    "Arrow tables": lambda: {name: pa.table(columns(*part)) for name, part in PARTS.items()},
    "frames": lambda: {name: pandas().DataFrame(columns(*part)) for name, part in PARTS.items()},
    "grouped frame": lambda: dict(iter(pandas().DataFrame(columns(X, Y, client=OWNER)).groupby("client"))),
    "Hugging Face datasets": lambda: [hugging_face().Dataset.from_dict(columns(*part)) for part in PARTS.values()],
}


@pytest.mark.parametrize("form", BY_CLIENT)
def test_forms_by_client(form: str) -> None:
    """Every form means the same samples of the same clients."""
    settings = {"clients": 3} if form == "function" else {}
    train = read(BY_CLIENT[form](), **settings).train
    assert train is not None
    assert train.y is not None
    np.testing.assert_array_equal(train.x, X)
    np.testing.assert_array_equal(train.y, Y)
    assert (
        np.unique(train.columns["client"], return_inverse=True)[1].tolist()
        == np.repeat([0, 1, 2], [30, 12, 21]).tolist()
    )


class Streamed:
    """A table that Arrow can read, as those of polars are."""

    def __init__(self, held: dict[str, Any]) -> None:
        self.columns, self._table = list(held), pa.table(held)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


ONE_SET: dict[str, Callable[[], Any]] = {
    "Dataset": lambda: tensors(X, Y),
    "Arrow table": lambda: pa.table(columns(X, Y, who=OWNER)),
    "frame": lambda: pandas().DataFrame(columns(X, Y, who=OWNER)),
    "Arrow stream": lambda: Streamed(columns(X, Y, who=OWNER)),
    "frame of inputs, labels and ids": lambda: (
        (table := pandas().DataFrame(columns(X, Y, who=OWNER)))[FEATURES],
        table["label"],
        {"who": table["who"]},
    ),
    "frame and its label": lambda: (pandas().DataFrame(columns(X, Y, who=OWNER)).rename(columns={"label": "k"}), "k"),
    "frame of categories": lambda: pandas().DataFrame(columns(X, Y, who=OWNER)).astype({"who": "category"}),
    "Hugging Face dataset": lambda: hugging_face().Dataset.from_dict(columns(X, Y, who=OWNER)),
}


@pytest.mark.parametrize("form", ONE_SET)
def test_forms_of_one_set(form: str) -> None:
    settings = {} if form == "Dataset" else {"data__split": "column", "data__column": "who"}
    train = read(ONE_SET[form](), **settings).train
    assert train is not None
    assert train.y is not None
    np.testing.assert_array_equal(train.x, X)
    np.testing.assert_array_equal(train.y, Y)
    if settings:
        assert train.columns["who"].tolist() == OWNER.tolist()


def test_a_run_by_client(tmp_path: Path) -> None:
    """Who has what is as given; the folder says it in settings; the same data continue and distill the run."""
    done = run(PARTS, tmp_path / "run", test=PARTS["bob"])
    assert (done.experiment.clients, done.experiment.data.split, done.experiment.data.column) == (3, "column", "client")
    given = given_arrays(PARTS, PARTS["bob"], PUBLIC, done.experiment)
    assert given.train is not None
    for name, client in zip(NAMES, split(done.experiment, given.train), strict=True):
        mine = np.sort(np.concatenate([client.training, client.validation]))
        np.testing.assert_array_equal(given.train.x[mine], PARTS[name][0])
    again = run(PARTS, tmp_path / "again", test=PARTS["bob"], source=done.experiment)
    assert again.rounds[0]["validation"] == done.rounds[0]["validation"]
    reordered = dict(reversed(PARTS.items()))
    (tmp_path / "run" / "summary.json").unlink()
    settings = {"train": reordered, "test": PARTS["bob"], "public": PUBLIC, "model": Linear}
    assert cpfl.resume(tmp_path / "run", **settings).summary["student_accuracy"] == done.summary["student_accuracy"]
    assert cpfl.distill(tmp_path / "run", weights="uniform", **settings)["clients"] == 3
    changed = {**PARTS, "bob": (PARTS["bob"][0] + 1, PARTS["bob"][1])}
    with pytest.raises(RunFolderError, match="the train data are not those"):
        cpfl.distill(tmp_path / "run", **{**settings, "train": changed})
    moved = {"ann": PARTS["bob"], "bob": PARTS["ann"], "eve": PARTS["eve"]}
    with pytest.raises(RunFolderError, match="are not those"):
        cpfl.distill(tmp_path / "run", **{**settings, "train": moved})
    with pytest.raises(CpflError, match="clients = 3 is more than the 2 values"):
        cpfl.distill(tmp_path / "run", **{**settings, "train": {name: PARTS[name] for name in NAMES[:2]}})
    assert RunFolder.open(tmp_path / "run").about()["cohorts"] == RunFolder.open(tmp_path / "again").about()["cohorts"]


def test_clients_of_a_column(tmp_path: Path) -> None:
    """As many as the column has values, also more than the default; unless the user says how many."""
    who = np.arange(len(X)) % 50
    experiment = cpfl.Experiment(data={"split": "column", "column": "who"})
    assert run((X, Y, {"who": who}), tmp_path / "a", source=experiment).experiment.clients == 50
    table = pa.table(columns(X, Y, who=who))
    assert run(table, tmp_path / "b", source=experiment, settings={"cohorts": 45}).experiment.clients == 50
    assert run(table, tmp_path / "c", source=experiment, settings={"clients": 7}).experiment.clients == 7
    with pytest.raises(SettingError, match="cohorts = 51 is more than clients = 50"):
        run(table, tmp_path / "d", source=experiment, settings={"cohorts": 51})
    with pytest.raises(DataError, match="train: there is no column 'whose'; the columns are"):
        run(table, tmp_path / "d", settings={"data.split": "column", "data.column": "whose"})
    assert not (tmp_path / "d").exists()


def test_no_client_is_emptied_by_the_test_set(tmp_path: Path) -> None:
    """Where a tenth is held out for testing, a client with one sample keeps it."""
    many = {f"c{number:02}": (X[number : number + 1], Y[number : number + 1]) for number in range(40)}
    done = run({**many, "d": (X[40:], Y[40:])}, tmp_path / "run")
    about = RunFolder.open(done.path).about()
    assert done.experiment.clients == 41
    assert about["samples"]["train"] + about["samples"]["test"] == len(X)
    assert 1 <= about["samples"]["test"] <= 6


def test_a_sweep_by_client(tmp_path: Path) -> None:
    more = {"public": PUBLIC, "model": Linear, "engine": "reference", "seeds": [1]}
    settings = {key: value for key, value in SMALL.items() if key != "cohorts"}
    runs = cpfl.sweep(cpfl.Experiment(), train=PARTS, cohorts=[1, 3], settings=settings, out=tmp_path / "sweep", **more)
    assert [one.experiment.clients for one in runs] == [3, 3]
    table, by_column = pa.table(columns(X, Y, who=OWNER)), settings | BY_COLUMN
    runs = cpfl.sweep(cpfl.Experiment(), train=table, cohorts=[3], settings=by_column, out=tmp_path / "other", **more)
    assert [one.experiment.clients for one in runs] == [3]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"clients": 5}, "clients = 5 is given, and train has 3 clients: leave clients out"),
        ({"data.alpha": 1.0}, "data.alpha has no effect here: train says which client has what"),
        ({"data.split": "iid"}, "data.split has no effect here"),
        ({"cohorts": 4}, "cohorts = 4 is more than clients = 3"),
    ],
)
def test_settings_that_clients_contradict(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=words):
        run(PARTS, tmp_path / "run", settings=settings)
    file = tmp_path / "own.toml"
    file.write_text("".join(f"{key} = {value!r}\n" for key, value in settings.items()))
    with pytest.raises(SettingError, match=words):
        cpfl.run(file, train=PARTS, public=PUBLIC, model=Linear, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_preset_makes_room_for_clients(tmp_path: Path) -> None:
    """What a preset says of its own data is no contradiction."""
    assert run(PARTS, tmp_path / "run", source="digits", settings={"federation.lr": 0.1}).experiment.clients == 3


def test_a_function_needs_the_number_of_clients(tmp_path: Path) -> None:
    called = list[int]()

    def train(client: int) -> Any:
        called.append(client)
        return PARTS[NAMES[client]]

    with pytest.raises(SettingError, match="clients is needed, the number of clients"):
        run(train, tmp_path / "run")
    assert run(train, tmp_path / "run", settings={"clients": 3}).experiment.clients == 3
    assert called == [0, 1, 2]
    with pytest.raises(DataError, match=r"train: the function fails for client 3: IndexError: tuple index"):
        run(train, tmp_path / "other", settings={"clients": 4})


NARROW, NAMED = (np.zeros((3, 2), "float32"), [0, 1, 2]), (np.zeros((3, 4), "float32"), ["a", "b", "c"])
REFUSED: dict[str, tuple[Any, str]] = {
    "empty dict": ({}, "train: it is an empty dict"),
    "empty list": ([], "train: it is an empty list"),
    "arrays by name": ({"x": X, "y": Y}, "client 'x': a ndarray is given: a tuple"),
    "client without samples": ({**PARTS, "bob": (X[:0], Y[:0])}, "client 'bob': it has no samples"),
    "client of empty lists": ({**PARTS, "bob": ([], [])}, "client 'bob': it has no samples"),
    "client of an empty Dataset": ({**PARTS, "bob": Rows([])}, "client 'bob': it has no samples"),
    "other shape": (
        {**PARTS, "bob": NARROW},
        r"the inputs of client 'bob' are float32 \(2,\), those of client 'ann' are float32 \(4,\)",
    ),
    "other type": ([(X, Y), (X.astype(float), Y)], r"the inputs of client 1 are float64 \(4,\), those of client 0"),
    "other labels": (
        {**PARTS, "bob": NAMED},
        r"the labels of client 'bob' are names, those of client 'ann' are in",
    ),
    "other columns": ([(X, Y, {"a": Y}), (X, Y)], "the columns of client 1 are none, those of client 0 are a"),
    "other inputs": ([({"a": X}, Y), ({"b": X}, Y)], r"the inputs of client 1 are b float32 \(4,\), those of client 0"),
    "fewer labels": ({**PARTS, "bob": (X, Y[:5])}, "client 'bob': labels has 5 entries for 63 samples"),
    "no number": ({**PARTS, "bob": (X * np.nan, Y)}, "client 'bob': the inputs contain values that are not finite"),
    "key": ({None: (X, Y)}, "a client's key is None: texts and integers"),
    "truth": ({True: (X, Y)}, "a client's key is True"),
    "no text": ({"\ud800": (X, Y)}, "characters that are no text"),
    "twice": ({1: (X, Y), "1": (X, Y)}, "two clients' keys are the same text"),
    "loader": (DataLoader(tensors(X, Y)), r"a DataLoader is given: give its dataset \(loader.dataset\)"),
    "loaders": ([DataLoader(tensors(X, Y))] * 2, "client 0: a DataLoader is given"),
    "generator": ((part for part in PARTS.values()), "a generator is given, which delivers its samples once"),
    "stream": (Stream(), "a dataset that streams is given"),
    "array": (X, "a ndarray is given: a tuple"),
    "items of three": (Rows([(X[0], 1, 2)]), "its items are a tuple of 3: pairs"),
    "items of inputs": (Rows([torch.ones(2)]), "its items are a Tensor: pairs"),
    "items of several names": (
        Rows([{"x": 1.0, "y": 0}, {"x": 1.0}]),
        "its item 1 is a dict of x, its first one a dict",
    ),
    "items of several shapes": (
        Rows([(X[0], 1), (X[0, :2], 1)]),
        r"row 1 of the column 'item' has shape \(2,\), row 0",
    ),
    "unreadable items": ([tensors(X, Y), Longer([])], "client 1: its item 0 cannot be read: IndexError"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_data_that_are_refused(case: str, tmp_path: Path) -> None:
    train, words = REFUSED[case]
    with pytest.raises(CpflError, match=words) as reported:
        run(train, tmp_path / "run", settings={"cohorts": 1})
    assert "\n" not in str(reported.value)
    assert not (tmp_path / "run").exists()


def test_a_tuple_of_inputs_is_no_tuple_of_clients() -> None:
    """Two inputs by position, and labels in a tuple, stay one set."""
    two = read(((X[:2], X[2:4]), (0, 1))).train
    assert two is not None
    assert [one.name for one in two.fields] == ["0", "1"]
    assert len(two) == 2


def test_public_sets() -> None:
    """Datasets with labels or without, several of them, and tables beside arrays."""
    pairs, alone = tensors(X, Y), Rows(list(X))
    for public in (
        pairs,
        alone,
        TensorDataset(torch.as_tensor(X)),
        [tensors(X[:9], Y[:9]), Rows(list(X[9:]))],
        pa.table(columns(X, Y)),
    ):
        found = read(PARTS, None, public).public
        assert found is not None
        assert found.y is None
        np.testing.assert_array_equal(found.x, X)
    with pytest.raises(DataError, match="public: its sets have different inputs"):
        read(PARTS, None, [alone, Rows(list(X[:, :2]))])
    with pytest.raises(DataError, match="public: a DataLoader is given"):
        read(PARTS, None, DataLoader(pairs))


def test_test_sets_of_clients_are_pooled() -> None:
    test = read(PARTS, {"zoe": PARTS["eve"], "ann": PARTS["ann"]}).test
    assert test is not None
    np.testing.assert_array_equal(test.x, np.concatenate([PARTS["ann"][0], PARTS["eve"][0]]))


def test_many_clients() -> None:
    """Ten thousand clients become a task; their samples are put together once."""
    x, y = RNG.normal(size=(20_000, 3)).astype("float32"), RNG.integers(0, 2, 20_000)
    train = {number: (x[2 * number : 2 * number + 2], y[2 * number : 2 * number + 2]) for number in range(10_000)}
    own = client_settings(train, cpfl.Experiment(), {})
    experiment = cpfl.settings.experiment_file.with_settings(
        cpfl.Experiment(), {"data.train": "(given)", "data.public": "(given)", **own}
    )
    given = given_arrays(train, (x[:10], y[:10]), x[:10], experiment)
    task = load_task(with_clients(experiment, given), None, lambda: nn.Linear(3, 2), given, lambda text: None)
    assert len(task.data.clients) == 10_000
    np.testing.assert_array_equal(np.sort(task.data.clients[9_999].training), [19_998, 19_999])
