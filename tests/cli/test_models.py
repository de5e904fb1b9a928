"""cpfl export, predict, doctor: the global model in a user's hands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

from cpfl.data import embedded
from cpfl.inference.global_model import load_global

if TYPE_CHECKING:  # there are several conftest modules: no import of it is sure to be this one
    from conftest import Command

QUICK = ("--set", "max_rounds=5", "--set", "distillation.epochs=2")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The preset's test images as PNG files, named by place and label."""
    folder = tmp_path_factory.mktemp("photos")
    test = embedded.read("digits-grainy", "test")
    for i, (image, label) in enumerate(zip(test.x, test.y, strict=True)):
        Image.fromarray(image[0]).save(folder / f"{i:04d}-{label}.png")
    return folder


def torch_logits(run: Path, x: torch.Tensor) -> torch.Tensor:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model.load_state_dict(load_file(run / "models" / "global.safetensors"))
    with torch.no_grad():
        return model.eval()(x)


def test_onnx_answers_as_torch_does(cpfl_command: Command, finished: Path, tmp_path: Path) -> None:
    answer = cpfl_command("export", finished, "--out", "model").good()
    assert set(answer.out.split()) == {f"model/model.{kind}" for kind in ("json", "onnx", "safetensors")}
    session = onnxruntime.InferenceSession(tmp_path / "model" / "model.onnx")
    (entry,) = session.get_inputs()
    for count in (1, 2, 300):  # any batch, also of one
        x = embedded.digits("test").x[:count].astype(np.float32) / 255
        (logits,) = session.run(None, {entry.name: x})
        np.testing.assert_allclose(logits, torch_logits(finished, torch.from_numpy(x)), atol=1e-5)
    facts = json.loads((tmp_path / "model" / "model.json").read_text())
    assert (facts["shape"], facts["classes"]) == ([1, 8, 8], 10)


def test_onnx_normalises_by_itself(cpfl_command: Command, tmp_path: Path) -> None:
    words = ("--set", "data.mean=[0.3]", "--set", "data.std=[0.4]", "--set", "precision=float64", "--out", "run")
    cpfl_command("run", "digits", *QUICK, *words).good()
    cpfl_command("export", "run").good()
    x = embedded.digits("test").x.astype(np.float32) / 255
    session = onnxruntime.InferenceSession(tmp_path / "run" / "export" / "model.onnx")
    (logits,) = session.run(None, {"x": x})
    state = {
        name: value.float() for name, value in load_file(tmp_path / "run" / "models" / "global.safetensors").items()
    }
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model.load_state_dict(state)
    with torch.no_grad():
        expected = model(torch.from_numpy((x - 0.3) / 0.4))
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    right = 100 * (logits.argmax(axis=1) == embedded.digits("test").y).mean()
    assert right == pytest.approx(summary["student_accuracy"], abs=0.3)


def test_onnx_of_a_convolutional_student(cpfl_command: Command, tmp_path: Path) -> None:
    cpfl_command(
        "run", "digits", *QUICK, "--set", "cohorts=2", "--set", "model.name=femnist-cnn", "--out", "run"
    ).good()
    cpfl_command("export", "run", "--json").good()
    module, _ = load_global(tmp_path / "run")
    x = embedded.digits("test").x[:17].astype(np.float32) / 255
    (logits,) = onnxruntime.InferenceSession(tmp_path / "run" / "export" / "model.onnx").run(None, {"x": x})
    with torch.no_grad():
        np.testing.assert_allclose(logits, module(torch.from_numpy(x)), atol=1e-5)


def test_export_lists_what_it_wrote(cpfl_command: Command, finished: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "diary.txt").write_text("mine")
    written = cpfl_command("export", finished, "--out", "model", "--no-onnx", "--json").good().json
    assert written == ["model/model.json", "model/model.safetensors"]
    assert (tmp_path / "model" / "diary.txt").read_text() == "mine"


def test_predict_agrees_with_the_summary(cpfl_command: Command, finished: Path, photos: Path) -> None:
    rows = cpfl_command("predict", finished, photos, "--json").good().json
    assert len(rows) == 359
    assert all(0 < row["probability"] <= 1 for row in rows)
    right = [str(row["class"]) == Path(row["image"]).stem.split("-")[1] for row in rows]
    summary = json.loads((finished / "summary.json").read_text())
    assert 100 * np.mean(right) == pytest.approx(summary["student_accuracy"], abs=1e-9)


def test_predict_of_another_distillation(cpfl_command: Command, finished: Path, photos: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    words = ("--student", "femnist-cnn", "--set", "distillation.epochs=1", "--name", "cnn", "--json")
    summary = cpfl_command("distill", "run", *words).good().json
    rows = cpfl_command("predict", "run", photos, "--distillation", "cnn", "--json").good().json
    right = [str(row["class"]) == Path(row["image"]).stem.split("-")[1] for row in rows]
    assert 100 * np.mean(right) == pytest.approx(summary["student_accuracy"], abs=0.3)


def test_predict_for_a_person(cpfl_command: Command, finished: Path, photos: Path, tmp_path: Path) -> None:
    image = sorted(photos.iterdir())[0]
    (row,) = cpfl_command("predict", finished, image, "--json").good().json
    (tmp_path / "a.png").write_bytes(image.read_bytes())
    out = cpfl_command("predict", finished, "a.png").good().out
    assert "a.png" in out
    assert f"{100 * row['probability']:.1f} %" in out


def test_predict_fits_other_images(cpfl_command: Command, finished: Path, photos: Path, tmp_path: Path) -> None:
    """Colour, and four times as large: the same picture gives the same answer."""
    folder = tmp_path / "large"
    folder.mkdir()
    chosen = sorted(photos.iterdir())[:20]
    for file in chosen:
        with Image.open(file) as image:
            image.convert("RGB").resize((32, 32), Image.Resampling.NEAREST).save(folder / file.name)
    plain = cpfl_command("predict", finished, photos, "--json").good().json[:20]
    large = cpfl_command("predict", finished, folder, "--json").good().json
    for a, b in zip(plain, large, strict=True):
        assert (a["class"], a["probability"]) == (b["class"], pytest.approx(b["probability"], abs=1e-6))


def test_doctor(cpfl_command: Command) -> None:
    answer = cpfl_command("doctor").good()
    for word in ("python", "torch", "numpy", "GPU", "data folders", "digits", "ONNX"):
        assert word in answer.out
    checks = cpfl_command("doctor", "--json").good().json
    assert all(check["fine"] is not False for check in checks)
    assert any(check["what"] == "data found" and "digits, letters" in check["found"] for check in checks)


def test_doctor_finds_data(cpfl_command: Command, tmp_path: Path) -> None:
    place = tmp_path / "data" / "fedscale"
    place.mkdir(parents=True)
    (place / "client_device_capacity.csv").write_text("computation,communication\n50,6000\n")
    checks = {c["what"]: c["found"] for c in cpfl_command("doctor", "--data", "data", "--json").good().json}
    assert "fedscale" in checks["data found"]
    assert "fedscale" not in checks["data to fetch"]
