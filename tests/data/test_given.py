"""What users hand over in Python: inputs of every kind, labels as they come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from tests.zoo import IMAGES, PUBLIC, TABLE, TEST, TOKENS, TRAIN, ZOO, Y, rows
from torch import nn

import cpfl
from cpfl.data.federated import transforms
from cpfl.data.given import as_samples
from cpfl.errors import DataError, SettingError
from cpfl.inference.global_model import load_global
from cpfl.task.loading import given_arrays

X = np.arange(24.0).reshape(4, 6)
SMALL: dict[str, Any] = {"clients": 4, "cohorts": 2, "max_rounds": 1, "distillation.epochs": 1, "federation.lr": 0.1}


def inputs(x: object, **data: Any) -> Any:
    """What a model gets."""
    samples = as_samples(x)
    transform, _ = transforms(cpfl.Experiment(data=data), samples)
    return transform(torch.as_tensor(samples.x))


@pytest.mark.parametrize(
    ("x", "data", "expected"),
    [
        (np.full((2, 1, 2, 2), 51, np.uint8), {}, torch.full((2, 1, 2, 2), 0.2)),
        (np.full((2, 3), 51, np.uint8), {}, torch.full((2, 3), 51)),
        (np.full((2, 3), 51, np.uint8), {"inputs": "pixels"}, torch.full((2, 3), 0.2)),
        (np.full((2, 1, 2, 2), 51, np.uint8), {"inputs": "integers"}, torch.full((2, 1, 2, 2), 51)),
        (np.full((2, 3), 7, np.int16), {}, torch.full((2, 3), 7)),
        (np.full((2, 3), 7, np.uint32), {"inputs": "numbers"}, torch.full((2, 3), 7.0)),
        (np.full((2, 3), 0.5), {}, torch.full((2, 3), 0.5)),
        (torch.full((2, 3), 0.5, dtype=torch.bfloat16), {}, torch.full((2, 3), 0.5)),
        (np.ones((2, 3), bool), {}, torch.ones(2, 3, dtype=torch.int64)),
    ],
)
def test_inputs(x: object, data: dict[str, Any], expected: torch.Tensor) -> None:
    found = inputs(x, **data)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected)


def test_several_inputs() -> None:
    given = {"ids": np.array([[1, 2, 3]]), "mask": np.array([[True, False, True]]), "x": np.array([0.5])}
    found = inputs(given)
    assert {name: (value.dtype, value.tolist()) for name, value in found.items()} == {
        "ids": (torch.int64, [[1, 2, 3]]),
        "mask": (torch.bool, [[True, False, True]]),
        "x": (torch.float32, [0.5]),
    }
    first, second = inputs((given["ids"], given["x"]))
    assert (first.tolist(), second.tolist()) == ([[1, 2, 3]], [0.5])


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (X + 1j, "complex"),
        (np.array([["a"]]), "numbers are needed"),
        ({"a": X, "b": X[:2]}, "different numbers of samples: a 4, b 2"),
        ({}, "several inputs"),
        ({"a": [["text"]]}, "the input 'a'"),
        (np.full((2, 2), 2**63, np.uint64), f"an integer of the inputs is {2**63}: at most"),
    ],
)
def test_inputs_that_are_refused(x: object, words: str) -> None:
    with pytest.raises(DataError, match=words):
        as_samples(x)


@pytest.mark.parametrize("how", [{"inputs": "pixels"}, {"inputs": "integers"}])
def test_floats_are_no_pixels_and_no_integers(how: dict[str, str]) -> None:
    with pytest.raises(SettingError, match=f"data.inputs = '{how['inputs']}'"):
        inputs(X, **how)


@pytest.mark.parametrize(
    "labels",
    [
        np.array([0, 1, 1, 0]),
        np.array([[0], [1], [1], [0]], np.uint8),
        np.array([False, True, True, False]),
        np.array(["cat", "dog", "dog", "cat"]),
        np.array(["cat", "dog", "dog", "cat"], object),
        ["cat", "dog", "dog", "cat"],
        torch.tensor([0, 1, 1, 0]),
    ],
)
def test_labels(labels: Any) -> None:
    given = given_arrays((X, labels), (X[:2], labels[:2]), X)
    assert given.train is not None
    assert given.test is not None
    assert given.train.y is not None
    assert given.test.y is not None
    assert (given.train.y.tolist(), given.test.y.tolist()) == ([0, 1, 1, 0], [0, 1])
    assert given.class_names == (("cat", "dog") if "cat" in list(labels) else ())


@pytest.mark.parametrize(
    ("test", "words"),
    [(["cat", "cow"], "the label 'cow' is not among"), ([0, 1], "both must be of one kind")],
)
def test_labels_that_do_not_fit(test: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        given_arrays((X, ["cat", "dog", "dog", "cat"]), (X[:2], test), X)


def small(name: str, tmp_path: Path, y: NDArray[Any] | None = None, **more: Any) -> cpfl.Run:
    """A short run of a model of the zoo."""
    arrays, labels = ZOO[name].arrays, Y if y is None else y
    given = {"public": rows(arrays, PUBLIC), "model": ZOO[name].build, "settings": SMALL, **more}
    train, test = ((rows(arrays, part), labels[part]) for part in (TRAIN, TEST))
    return cpfl.run(cpfl.Experiment(), train=train, test=test, out=tmp_path / "run", **given)


def test_a_forgotten_public_set_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="public is missing"):
        small("linear", tmp_path, public=None)
    assert not list(tmp_path.iterdir())


def test_names_of_classes_are_kept(tmp_path: Path) -> None:
    run = small("linear", tmp_path, np.array(["ant", "bee", "cow"])[Y])
    assert load_global(run.path, nn.Linear(12, 3))[1]["class_names"] == ["ant", "bee", "cow"]


@pytest.mark.parametrize("name", ["embedding", "dict in and out", "two arrays, tuple out"])
def test_exports_take_what_the_model_takes(name: str, tmp_path: Path) -> None:
    run = small(name, tmp_path)
    module, _ = load_global(run.path, ZOO[name].build)
    x = rows(ZOO[name].arrays, slice(0, 5))
    some = inputs(x)
    plain = ZOO[name].build()
    plain.load_state_dict(run.model)
    plain.eval()
    answer = plain(**some) if isinstance(some, dict) else plain(*some) if isinstance(some, tuple) else plain(some)
    logits = answer["logits"] if isinstance(answer, dict) else answer[0] if isinstance(answer, tuple) else answer
    torch.testing.assert_close(module(some), logits)
    files = cpfl.export(run.path, tmp_path / "model", model=ZOO[name].build, onnx=False)
    assert {path.name for path in files} == {"model.json", "model.safetensors"}
    assert load_file(tmp_path / "model" / "model.safetensors").keys() == run.model.keys()


def run_with(train: Any, public: Any, out: Path, model: Any, **settings: Any) -> cpfl.Run:
    return cpfl.run(
        cpfl.Experiment(), settings=SMALL | settings, model=model, train=(train, Y[TRAIN]), public=public, out=out,
        device="cpu", engine="reference",
    )  # fmt: skip


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(12, 3), nn.Embedding(11, 3)

    def forward(self, table: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return self.one(table) + self.two(n)  # type: ignore[no-any-return]


def test_a_public_set_in_another_order_and_precision(tmp_path: Path) -> None:
    n = TOKENS[:, 0]
    small, other = TABLE.astype("float32"), {"n": n[PUBLIC].astype("uint8"), "table": TABLE[PUBLIC].astype("float32")}
    train = {"table": small[TRAIN], "n": n[TRAIN]}
    one = run_with(train, {"table": small[PUBLIC], "n": n[PUBLIC]}, tmp_path / "one", Both)
    two = run_with(train, other, tmp_path / "two", Both)
    other["table"] = other["table"].astype("float64")
    three = run_with(train, other, tmp_path / "three", Both)
    for run in (two, three):
        assert all(torch.equal(value, run.model[name]) for name, value in one.model.items())


def test_a_public_set_with_inputs_of_another_meaning(tmp_path: Path) -> None:
    train = {"x": TOKENS[TRAIN].astype("uint8")}
    for public in ({"x": TOKENS[PUBLIC] + 300}, {"x": TABLE[PUBLIC]}, {"z": TOKENS[PUBLIC]}):
        with pytest.raises(DataError, match="the public set's inputs are"):
            run_with(train, public, tmp_path / "run", nn.Identity)
    images = {"x": IMAGES[TRAIN]}
    with pytest.raises(DataError, match="the public set's inputs are"):
        run_with(images, {"x": IMAGES[PUBLIC].astype(int)}, tmp_path / "run", nn.Identity)


@pytest.mark.parametrize(("x", "inputs"), [(TOKENS, "auto"), (TOKENS, "integers"), (IMAGES, "integers")])
def test_bytes_beside_other_integers(x: NDArray[Any], inputs: str, tmp_path: Path) -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Embedding(256, 2), nn.Flatten(), nn.Linear(2 * x[0].size, 3))

    public = x[PUBLIC].astype("int64")
    run = run_with(x[TRAIN].astype("uint8"), public, tmp_path / "one", model, **{"data.inputs": inputs})
    same = run_with(x[TRAIN].astype("int64"), public, tmp_path / "two", model, **{"data.inputs": inputs})
    assert all(torch.equal(value, run.model[name]) for name, value in same.model.items())
    with pytest.raises(DataError, match="both must be pixels"):
        run_with(x[TRAIN].astype("uint8"), public, tmp_path / "three", model, **{"data.inputs": "pixels"})


def test_splits_of_a_public_set_that_is_given(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"data\.public_splits has no effect here: public is given"):
        run_with(TABLE[TRAIN], TABLE[PUBLIC], tmp_path, lambda: nn.Linear(12, 3), **{"data.public_splits": ["train"]})
