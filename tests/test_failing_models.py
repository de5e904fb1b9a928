"""Models of a user that fail late, or end the program: one sentence, before a folder exists where that can be seen."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

import cpfl
from cpfl.errors import CpflError, DataError, ModelError

FEW = {"clients": 6, "cohorts": 2, "max_rounds": 1, "data.train_limit": 200, "data.public_limit": 60}
FEW |= {"distillation.epochs": 1}


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x.flatten(1))
        return found


class FailsInTraining(Plain):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            raise ValueError("not like this")
        return super().forward(x)


class EndsInTraining(Plain):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            sys.exit("enough")
        return super().forward(x)


class Ends(Plain):
    def forward(self, x: Tensor) -> Tensor:
        sys.exit(3)


class SaysNothingAtFirst(Plain):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("\n \n  of another shape\nthan mine")


class SaysNothing(Plain):
    def forward(self, x: Tensor) -> Tensor:
        class NamelessError(Exception):
            def __str__(self) -> str:
                raise ValueError("no text")

        raise NamelessError


class EndsAtOnce(Plain):
    def __init__(self) -> None:
        sys.exit()


class Small(Plain):
    """Takes no batch of more than a few samples: the checks try two."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and len(x) > 5:
            self.fail()
        return super().forward(x)

    def fail(self) -> None:
        raise RuntimeError("too many for me")


class Smaller(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if len(x) < 5 else super().forward(x[..., :7])


class SmallAndEnds(Small):
    def fail(self) -> None:
        sys.exit(7)


SEEN = {
    FailsInTraining: "fails in training, as after model.train.*not like this",
    EndsInTraining: "fails in training, as after model.train.*it calls sys.exit.'enough'.",
    Ends: "it calls sys.exit.3.",
    Smaller: r"cannot take a batch of \d+: mat1 and mat2",
    SaysNothingAtFirst: ": of another shape",
    SaysNothing: ": NamelessError",
    EndsAtOnce: "cannot be built: it calls sys.exit..",
}


def run(out: Path, **more: Any) -> cpfl.Run:
    return cpfl.run("digits", settings=FEW, out=out, device="cpu", **more)


@pytest.mark.parametrize("model", SEEN, ids=lambda model: model.__name__)
def test_what_is_seen_before_anything_is_written(model: type[nn.Module], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=SEEN[model]):
        run(tmp_path / "run", model=model)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("engine", ["reference", "workers"])
@pytest.mark.parametrize(("model", "words"), [(Small, "too many for me"), (SmallAndEnds, "it calls sys.exit.7.")])
def test_what_is_seen_in_training_only(model: type[nn.Module], words: str, engine: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"cannot take a batch of \d+ \(client \d+\): {words}"):
        run(tmp_path / "run", model=model, engine=engine, workers=2 * (engine == "workers"))


def test_a_label_beyond_all_integers() -> None:
    labels = np.zeros(200, np.uint64)
    labels[7] = 2**64 - 1
    with pytest.raises(DataError, match=f"an integer of the labels is {2**64 - 1}"):
        cpfl.run("digits", train=(np.zeros((200, 64), np.float32), labels), public=np.zeros((60, 64), np.float32))


def test_a_run_of_a_class_that_ends_the_program(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import sys\nsys.exit(4)\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        for key in ("model.name", "federation.selection", "federation.client"):
            with pytest.raises(CpflError, match=r"cannot be loaded: it calls sys\.exit\(4\)"):
                cpfl.run("digits", settings=FEW | {key: "mine:Any"}, out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


class Words(nn.Module):
    """Knows twenty words; where they are limited, it fails on large numbers in floats."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.words(x.long()).mean(1)
        return found


RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 3, 96)
NUMBERS = RNG.integers(0, 20, (96, 7))
ENGINES = ("reference", "workers", "lanes")
TOGETHER = {"cohorts": 2, "clients": 4, "max_rounds": 2, "data.split": "iid", "distillation.epochs": 1}


def strange(numbers: np.ndarray[Any, Any], first: int = 40) -> np.ndarray[Any, Any]:
    """The last rows have a word beyond those that are known."""
    numbers = numbers.copy()
    numbers[first:, 2] = 33
    return numbers


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("where", ["training", "test", "public"])
def test_a_word_that_no_embedding_has(where: str, engine: str, tmp_path: Path) -> None:
    sets = {name: strange(NUMBERS) if name == where else NUMBERS for name in ("training", "test", "public")}
    for several in (False, True):  # inputs of the model
        train, test, public = (({"x": values} if several else values) for values in sets.values())
        with pytest.raises(ModelError, match=f"largest integers of the {where} set: index out of range"):
            cpfl.run(
                cpfl.Experiment(), settings=TOGETHER, model=Words, train=(train, LABELS), test=(test, LABELS),
                public=public, out=tmp_path / "run", engine=engine, device="cpu",
            )  # fmt: skip
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("where", ["training", "test", "public"])
def test_samples_that_a_model_fails_on_late(where: str, engine: str, tmp_path: Path) -> None:
    """Floats are not looked at beforehand: the estimate before a run, training or the distillation meets them."""
    plain = NUMBERS.astype("float32")
    train, test, public = (strange(plain, 70) if name == where else plain for name in ("training", "test", "public"))
    with pytest.raises(CpflError, match=r"cannot take a batch of \d+.*: index out of range"):
        cpfl.run(
            cpfl.Experiment(), settings={**TOGETHER, "data.validation": 0.0}, model=Words, train=(train, LABELS),
            test=(test, LABELS), public=public, out=tmp_path / "run", engine=engine, device="cpu",
        )  # fmt: skip
