"""Exports: models of several inputs, what model.json says of the inputs, and models that cannot be exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from tests.zoo import (
    CLASSES,
    FEATURES,
    IMAGES,
    INPUTS,
    PUBLIC,
    TABLE,
    TOKENS,
    TRAIN,
    Branching,
    Two,
    Y,
    embedding,
    rows,
)
from torch import Tensor, nn

import cpfl

FEW = {"cohorts": 2, "clients": 4, "max_rounds": 1, "data.split": "iid", "distillation.epochs": 1}


class Pictures(nn.Module):
    """A picture and what is known of it, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.kinds = nn.Linear(128, CLASSES), nn.Embedding(11, CLASSES)

    def forward(self, picture: Tensor, kind: Tensor) -> Tensor:
        return self.one(picture.flatten(1)) + self.kinds(kind)  # type: ignore[no-any-return]


def finished(model: Any, x: Any, out: Path) -> Path:
    given: dict[str, Any] = {"train": (rows(x, TRAIN), Y[TRAIN]), "public": rows(x, PUBLIC)}
    return cpfl.run(cpfl.Experiment(), settings=FEW, model=model, out=out, device="cpu", **given).path


def answered(model: nn.Module, path: Path, *args: Any) -> Any:
    model.load_state_dict(cpfl.load_run(path).model)
    with torch.no_grad():
        return model.eval()(*args)


def test_several_inputs_by_name(tmp_path: Path) -> None:
    path = finished(Pictures, {"picture": IMAGES, "kind": TOKENS[:, 0]}, tmp_path / "run")
    about, onnx, _ = cpfl.export(path, model=Pictures)
    picture, kind = IMAGES[:5].astype("float32") / 255, TOKENS[:5, 0]
    (logits,) = onnxruntime.InferenceSession(onnx).run(None, {"picture": picture, "kind": kind})
    expected = answered(Pictures(), path, torch.as_tensor(picture), torch.as_tensor(kind))
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    said = "picture: float32 (batch, 2, 8, 8) of pixel values in 0…1, kind: int64 (batch)"
    assert json.loads(about.read_text())["input"] == said


def test_several_inputs_by_position(tmp_path: Path) -> None:
    path = finished(Two, INPUTS["pair"], tmp_path / "run")
    session = onnxruntime.InferenceSession(cpfl.export(path, model=Two)[1])
    given = [TABLE[:5].astype("float32"), TOKENS[:5]]
    (logits,) = session.run(None, dict(zip((one.name for one in session.get_inputs()), given, strict=True)))
    expected, *_ = answered(Two(), path, *map(torch.as_tensor, given))
    np.testing.assert_allclose(logits, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "x", "said"),
    [
        (lambda: nn.Linear(FEATURES, CLASSES), TABLE, "float32 (batch, …shape); numbers"),
        (embedding, TOKENS, "int64 (batch, …shape)"),
        (
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(128, CLASSES)),
            IMAGES,
            "float32 (batch, …shape); pixel values in 0…1",
        ),
    ],
)
def test_what_is_said_of_inputs(model: Any, x: Any, said: str, tmp_path: Path) -> None:
    path = finished(model, x, tmp_path / "run")
    assert json.loads(cpfl.export(path, model=model, onnx=False)[0].read_text())["input"] == said


def test_a_model_that_is_another_one(tmp_path: Path) -> None:
    path = finished(lambda: nn.Linear(FEATURES, CLASSES), TABLE, tmp_path / "run")
    with pytest.raises(
        cpfl.CpflError, match=r"does not fit the run's: size mismatch for weight: .*\[3, 12\].*\[4, 12\]"
    ):
        cpfl.export(path, model=lambda: nn.Linear(FEATURES, 4))
    assert not (path / "export").exists()


def test_a_model_that_onnx_has_no_words_for(tmp_path: Path) -> None:
    """Its way depends on its inputs."""
    path = finished(lambda: Branching(torch.neg), TABLE, tmp_path / "run")
    with pytest.raises(cpfl.CpflError, match=r"cannot be written as ONNX, set onnx = False: .*data-dependent") as error:
        cpfl.export(path, model=lambda: Branching(torch.neg))
    assert str(error.value).isprintable()
    assert not (path / "export").exists()
    assert cpfl.export(path, model=lambda: Branching(torch.neg), onnx=False)
