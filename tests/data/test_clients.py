"""Data as users have them by client: dicts, lists, Datasets, frames, functions; what they mean and what is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from tests.pages import ROOT, blocks
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import cpfl
from cpfl.data.given import Given
from cpfl.data.split import split
from cpfl.errors import CpflError, DataError, RunFolderError, SettingError
from cpfl.runs.folder import RunFolder
from cpfl.task.given import client_settings, with_clients
from cpfl.task.loading import given_arrays, load_task

RNG = np.random.default_rng(5)
NAMES = ("ann", "bob", "eve")
SIZES = {"ann": 30, "bob": 12, "eve": 21}
PARTS = {name: (RNG.normal(size=(size, 4)).astype("float32"), RNG.integers(0, 3, size)) for name, size in SIZES.items()}
X, Y = (np.concatenate([PARTS[name][place] for name in NAMES]) for place in (0, 1))
OWNER = np.repeat(NAMES, [SIZES[name] for name in NAMES])
PUBLIC = RNG.normal(size=(40, 4)).astype("float32")
FEATURES = [f"f{place}" for place in range(4)]
SMALL: dict[str, Any] = {"cohorts": 2, "max_rounds": 1, "distillation.epochs": 1, "federation.lr": 0.1}
BY_COLUMN = {"data.split": "column", "data.column": "who"}


def pandas() -> Any:
    return pytest.importorskip("pandas", reason="pandas is not installed: the extra dev has it")


def hugging_face() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("datasets", reason="datasets is not installed: the extra dev has it")


class Rows(Dataset[Any]):
    """A Dataset of any items."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> Any:
        return self.items[number]


class Longer(Rows):
    """One that has fewer items than it says."""

    def __len__(self) -> int:
        return 2


class Stream(IterableDataset[Any]):
    """A Dataset whose items have no numbers."""

    def __iter__(self) -> Iterator[Any]:
        return iter([])


def columns(x: Any, y: Any, **more: Any) -> dict[str, Any]:
    return {**{name: x[:, place] for place, name in enumerate(FEATURES)}, "label": y, **more}


def tensors(x: Any, y: Any) -> TensorDataset:
    return TensorDataset(torch.as_tensor(x), torch.as_tensor(y))


def read(train: Any, test: Any = None, public: Any = None, **settings: Any) -> Given:
    chosen = {key.replace("__", "."): value for key, value in settings.items()}
    chosen = {"cohorts": 1, **chosen}
    own = client_settings(train, cpfl.Experiment(), chosen)
    experiment = cpfl.settings.experiment_file.with_settings(cpfl.Experiment(), {**chosen, **own})
    return given_arrays(train, test, public, experiment)


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


ONE_SET: dict[str, Callable[[], Any]] = {
    "Dataset": lambda: tensors(X, Y),
    "Arrow table": lambda: pa.table(columns(X, Y, who=OWNER)),
    "frame": lambda: pandas().DataFrame(columns(X, Y, who=OWNER)),
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


TABLES: dict[str, tuple[dict[str, Any], str]] = {
    "no label": ({"a": [1.0, 2.0], "b": [0, 1]}, "none is called label, labels, target, y, class: name it, as in"),
    "two labels": ({"a": [1.0], "y": [0], "label": [0]}, "'y', 'label' could all be the label"),
    "no inputs": ({"a": ["x", "y"], "y": [0, 1]}, "none but 'y' holds numbers or arrays"),
    "missing number": (
        {"a": [1.0, None, None], "y": [0, 1, 0]},
        r"'a' has no finite value in row 1, counted from 0 \(2 rows",
    ),
    "missing integer": ({"a": [1, 2, None], "y": [0, 1, 0]}, "'a' has no finite value in row 2"),
    "missing label": ({"a": [1, 2, 3], "y": [0, None, 0]}, "'y' has no finite value in row 1"),
    "missing name": ({"a": [1, 2, 3], "y": ["p", "q", None]}, "'y' has no finite value in row 2"),
    "infinite": ({"a": [1.0, np.inf], "y": [0, 1]}, "'a' has no finite value in row 1"),
    "several lengths": (
        {"a": [[1, 2], [3]], "y": [0, 1]},
        r"row 1 of the column 'a' has shape \(1,\), row 0 has \(2,\)",
    ),
    "gap in a list": ({"a": [[1, 2], [3, None]], "y": [0, 1]}, r"row 1 of the column 'a' is \[3, None\]"),
    "missing list": ({"a": [[1, 2], None], "y": [0, 1]}, "row 1 of the column 'a' is None"),
}


@pytest.mark.parametrize("case", TABLES)
def test_tables_that_are_refused(case: str) -> None:
    held, words = TABLES[case]
    with pytest.raises(DataError, match=words):
        read(pa.table(held))


def test_columns_of_a_table() -> None:
    """Numbers are one table; arrays are inputs by name; texts and what is beside arrays are not used, which is said."""
    said = list[str]()
    held = {"age": [50, 60], "name": ["a", "b"], "ok": [True, False], "target": ["ill", "well"]}
    given = given_arrays(pa.table(held), None, None, notify=said.append)
    assert given.train is not None
    assert given.train.x.tolist() == [[50.0, 1.0], [60.0, 0.0]]
    assert given.class_names == ("ill", "well")
    assert said == ["the label is 'target', the inputs are 'age', 'ok'; not used: 'name'"]
    held = {"ids": [[1, 2], [3, 4]], "mask": [[True, False]] * 2, "number": [7, 8], "y": [0, 1]}
    tokens = read(pa.table(held)).train
    assert tokens is not None
    assert [(one.name, one.dtype, one.shape) for one in tokens.fields] == [
        ("ids", "int64", (2,)),
        ("mask", "bool", (2,)),
    ]
    named = read((pa.table(held), "number", ["ids"])).train
    assert named is not None
    assert (named.x.tolist(), named.x.dtype) == ([[1, 2], [3, 4]], np.int64)
    two = read((pa.table(columns(X, Y)), "label", ("f3", "f0"))).train
    assert two is not None
    assert [one.name for one in two.fields] == ["f3", "f0"]


def test_tables_agree_by_name() -> None:
    """Columns in another order, with labels or without, are the same inputs in test and public sets."""
    said = list[str]()
    swapped = dict(reversed(columns(X, Y).items()))
    public = {**{name: swapped[name] for name in swapped if name != "label"}, "more": Y}
    given = given_arrays(pa.table(columns(X, Y)), pa.table(swapped), pa.table(public), notify=said.append)
    assert given.test is not None
    assert given.public is not None
    np.testing.assert_array_equal(given.test.x, X)
    np.testing.assert_array_equal(given.public.x, X)
    given_arrays(pa.table(columns(X, Y)), None, pa.table(swapped), notify=said.append)
    assert said[-1] == "the column 'label' of the public set is not used"
    with pytest.raises(DataError, match="public: there is no column 'f1'"):
        read(pa.table(columns(X, Y)), None, pa.table({"f0": X[:, 0]}))


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


def test_items_with_several_inputs_and_images() -> None:
    image = Image.fromarray(np.arange(24, dtype=np.uint8).reshape(2, 4, 3))
    pictures = read(Rows([(image, 1), (image.convert("L"), 0)])).train
    assert pictures is not None
    assert (pictures.x.dtype, pictures.x.shape) == (np.uint8, (2, 3, 2, 4))
    assert pictures.x[0, :, 0, 1].tolist() == [3, 4, 5]
    two = read(Rows([((X[0], torch.tensor([1, 2])), "a"), ((X[1], torch.tensor([3, 4])), "b")]))
    assert two.train is not None
    assert [one.name for one in two.train.fields] == ["0", "1"]
    assert two.class_names == ("a", "b")
    named = read(Rows([({"ids": [1, 2]}, 0), ({"ids": [3, 4]}, 1)])).train
    assert named is not None
    assert [one.name for one in named.fields] == ["ids"]


def test_frames() -> None:
    """Missing values of every kind of pandas, arrays and images as objects, names of columns twice."""
    frame = pandas().DataFrame
    for a, row in (([1.5, None], 1), (pandas().array([None, 1], dtype="Int64"), 0), ([pandas().NA, 1], 0)):
        with pytest.raises(DataError, match=f"train: the column 'a' has no finite value in row {row}"):
            read(frame({"a": a, "y": [0, 1]}))
    with pytest.raises(DataError, match="there are 2 columns 'a'"):
        read(frame([[1, 2, 0]], columns=["a", "a", "y"]))
    arrays = read(frame({"a": [np.eye(2), np.ones((2, 2))], "y": ["p", "q"]}))
    assert arrays.train is not None
    assert arrays.train.shape == (2, 2)
    pixels = np.zeros((4, 5), np.uint8)
    images = read(frame({"image": [Image.fromarray(pixels)] * 2, "y": [0, 1], "file": ["a.png", "b.png"]})).train
    assert images is not None
    assert (images.x.dtype, images.shape) == (np.uint8, (1, 4, 5))


def test_hugging_face_datasets(tmp_path: Path) -> None:
    """Images, classes with names, arrays, a function that makes rows when they are read; streams and splits."""
    datasets = hugging_face()
    pixels = RNG.integers(0, 255, (6, 4, 5, 3)).astype(np.uint8)
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["no", "yes"])}
    held = {"image": [Image.fromarray(one) for one in pixels], "label": [0, 1] * 3, "who": list("aabbcc")}
    whole = datasets.Dataset.from_dict(held, features=datasets.Features(kinds | {"who": datasets.Value("string")}))
    given = read(whole.select([4, 1]), **{key.replace(".", "__"): value for key, value in BY_COLUMN.items()})
    assert given.train is not None
    assert given.train.y is not None
    np.testing.assert_array_equal(given.train.x, pixels[[4, 1]].transpose(0, 3, 1, 2))
    assert (given.train.y.tolist(), given.train.columns["who"].tolist()) == ([0, 1], ["c", "a"])
    assert given.class_names == ("no", "yes")
    table = datasets.Dataset.from_dict({"a": [[[1.0, 2.0]], [[3.0, 4.0]]], "label": [0, 1]})
    for form in (table, table.with_format("torch"), table.with_format("numpy")):
        arrays = read(form).train
        assert arrays is not None
        assert arrays.x.tolist() == [[[1.0, 2.0]], [[3.0, 4.0]]]
    made = read(table.with_transform(lambda rows: {"a": np.asarray(rows["a"]) + 1, "y": rows["label"]})).train
    assert made is not None
    assert made.x.tolist() == [[[2.0, 3.0]], [[4.0, 5.0]]]
    with pytest.raises(DataError, match="train: it has the splits train, test: give one of them"):
        read(datasets.DatasetDict(train=table, test=table))
    with pytest.raises(DataError, match="train: a dataset that streams is given"):
        read(table.to_iterable_dataset())
    by_split = read(dict(datasets.DatasetDict(north=table, south=table))).train
    assert by_split is not None
    assert by_split.columns["client"].tolist() == ["north", "north", "south", "south"]


def test_the_frame_of_the_docs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example of "custom-data-and-model.md" runs as it is printed, and learns."""
    pandas()
    pages = blocks(ROOT / "docs" / "custom-data-and-model.md")
    (text,) = (block["text"] for block in pages if block["note"] and "test_clients.py" in block["note"])
    monkeypatch.chdir(tmp_path)
    exec(text, {})
    assert float(capsys.readouterr().out.split()[-1]) > 75


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
