"""Every model of the zoo is trained alike by all engines, falls back with a note, or is refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.zoo import PUBLIC, TABLE, TEST, TRAIN, ZOO, Lambda, Y, rows
from torch import Tensor

import cpfl

SETTINGS: dict[str, Any] = {
    "cohorts": 2,
    "clients": 4,
    "max_rounds": 2,
    "precision": "float64",
    "data.alpha": 10,
    "federation.lr": 0.05,
    "distillation.batch_size": 10,
    "distillation.epochs": 1,
}


class Notes(cpfl.Callback):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def on_message(self, text: str) -> None:
        self.texts.append(text)


def trained(name: str, engine: str, folder: Path, **settings: Any) -> tuple[cpfl.Run, list[str]]:
    animal, notes = ZOO[name], Notes()
    train, test, public = (rows(animal.arrays, part) for part in (TRAIN, TEST, PUBLIC))
    run = cpfl.run(
        cpfl.Experiment(), settings={**SETTINGS, **settings}, model=animal.build, train=(train, Y[TRAIN]),
        test=(test, Y[TEST]), public=public, out=folder / engine, engine=engine, device="cpu", callback=notes,
    )  # fmt: skip
    return run, notes.texts


@pytest.mark.parametrize("name", [name for name, animal in ZOO.items() if animal.outcome in ("lanes", "fallback")])
def test_engines_train_it_alike(name: str, tmp_path: Path) -> None:
    runs = {engine: trained(name, engine, tmp_path) for engine in ("reference", "workers", "lanes")}
    plain, _ = runs["reference"]
    for engine, (run, notes) in runs.items():
        for ours, theirs in zip(run.rounds, plain.rounds, strict=True):
            for key in ("loss", "validation"):
                assert ours[key] == pytest.approx(theirs[key], rel=0, abs=1e-10), (engine, key)
        assert run.summary["student_accuracy"] == pytest.approx(plain.summary["student_accuracy"])
        fell_back = engine == "lanes" and run.summary["engine"] == "reference"
        assert fell_back == any("cannot train in lanes" in note for note in notes)
        assert fell_back == (engine == "lanes" and ZOO[name].outcome == "fallback")


@pytest.mark.parametrize("name", [name for name, animal in ZOO.items() if animal.outcome not in ("lanes", "fallback")])
def test_it_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    for engine in ("reference", "workers", "lanes"):
        with pytest.raises(cpfl.CpflError, match=ZOO[name].outcome) as error:
            trained(name, engine, tmp_path)
        assert len(str(error.value)) < 500
        assert not list(tmp_path.iterdir())


LARGE = 4.1  # no number of the first samples is


def grown(x: Tensor) -> Tensor:
    return torch.where(x > LARGE, 2 * x, x)


def grow_if(x: Tensor) -> Tensor:
    return x.copy_(grown(x)) if (x > LARGE).any() else x


WRITES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "always": (lambda x: x.sub_(1).div_(2), lambda x: (x - 1) / 2),
    "what the first samples do not show": (lambda x: x.copy_(grown(x)), grown),
    "behind a condition": (grow_if, grown),
}


@pytest.mark.parametrize("case", WRITES)
def test_a_model_that_writes_into_its_inputs_learns_as_one_that_does_not(case: str, tmp_path: Path) -> None:
    """Its inputs are cached for evaluation: they must not change from pass to pass."""
    table = TABLE.astype("float32")  # as models take it: no copy is made for them
    assert table[PUBLIC].max() > LARGE > table[:2].max()
    before, runs = table.copy(), list[cpfl.Run]()
    for change in WRITES[case]:
        settings = {**SETTINGS, "distillation.epochs": 3, "precision": "float32"}
        run = cpfl.run(
            cpfl.Experiment(), settings=settings, model=partial(Lambda, change), train=(table[TRAIN], Y[TRAIN]),
            test=(table[TEST], Y[TEST]), public=table[PUBLIC], out=tmp_path / str(len(runs)), engine="workers",
            device="cpu",
        )  # fmt: skip
        assert np.array_equal(table, before)
        runs.append(run)
    one, other = runs
    for key in ("student_accuracy", "teacher_accuracy_mean", "ensemble_accuracy"):
        assert one.summary[key] == other.summary[key]
    assert [record["validation"] for record in one.rounds] == [record["validation"] for record in other.rounds]
    assert all(torch.equal(value, other.model[name]) for name, value in one.model.items())
