"""The global model of a finished run: exported for other programs, or used here to classify images."""

import importlib.util
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from cpfl import models
from cpfl.data.parquet import SUFFIXES, UNREADABLE, open_image, why_unreadable
from cpfl.data.transform import kind_of
from cpfl.errors import CpflError, DataError, ModelError, RunFolderError, first_line
from cpfl.inference.answers import BATCH, described
from cpfl.models.adapter import Inputs, adapted, mapped
from cpfl.objectives.base import Objective, objective
from cpfl.objectives.classes import Classification
from cpfl.runs import files
from cpfl.runs.folder import RunFolder, check_outside
from cpfl.runs.outcome import read_summary
from cpfl.settings import GIVEN, Experiment, Model
from cpfl.task.task import UserModel, user_model_factory
from cpfl.user_files import expanded

PIXELS = "pixel values in 0…1"


class Deployed(nn.Module):
    """The global model with its normalisation: takes pixel values from 0 to 1, and everything else as it is."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, experiment: Experiment, dimensions: int) -> None:
        super().__init__()
        self.model, self.normalizes = model, bool(experiment.data.mean)
        self.objective = objective(experiment.model)
        axes = (-1, *([1] * (dimensions - 1)))
        self.register_buffer("mean", torch.tensor(experiment.data.mean or (0.0,)).view(axes))
        self.register_buffer("std", torch.tensor(experiment.data.std or (1.0,)).view(axes))

    def forward(self, x: Inputs) -> Tensor:
        """Logits of a batch."""
        if self.normalizes and isinstance(x, Tensor):
            x = (x - self.mean) / self.std
        return self.model(x)  # type: ignore[no-any-return]


def example_inputs(about: Mapping[str, Any], count: int) -> Inputs:
    """Zeros in the form of a run's inputs."""
    if not about.get("fields"):
        dtype = torch.int64 if about.get("inputs") == "integers" else torch.float32
        return torch.zeros(count, *about["shape"], dtype=dtype)
    found = {
        one["name"]: torch.zeros(count, *one["shape"], dtype=_dtype(one["dtype"], one["shape"]))
        for one in about["fields"]
    }
    return tuple(found.values()) if about["fields"][0]["name"].isdigit() else found


def _dtype(name: str, shape: Sequence[int]) -> torch.dtype:
    """What a model gets of stored values."""
    if name == "bool":
        return torch.bool
    return torch.int64 if kind_of(np.dtype(name), tuple(shape)) == "integers" else torch.float32


def load_global(path: Path, model: UserModel | None = None, distillation: str = "") -> tuple[Deployed, dict[str, Any]]:
    """A run's global model, ready to use, and run.json. A model given to `cpfl.run` must be given again."""
    folder = RunFolder.open(path).verify()
    experiment, about = folder.experiment(), folder.about()
    source = folder.path / "distillations" / Path(distillation).name if distillation else folder.path
    if not (source / "summary.json").is_file():
        if not distillation:
            raise RunFolderError(f"{source} has no global model: the run is unfinished; cpfl resume it")
        known = ", ".join(sorted(p.parent.name for p in folder.path.glob("distillations/*/summary.json"))) or "none"
        raise RunFolderError(f"{path} has no distillation called {distillation!r}; it has: {known}")
    summary = read_summary(source / "summary.json", folder.identity)
    student = summary["distillation"]["student"] if distillation else experiment.distillation.student
    shape = tuple(about["shape"])
    # A single teacher is the result itself, whatever the student's model.
    alone = str(summary["teachers"][0]) if len(summary["teachers"]) == 1 else ""
    settings = Model(name=student) if student and not alone else experiment.model
    if own := experiment.model.by_cohort.get(alone):
        settings = models.named(experiment.model, own)
    if model is None and settings.name == GIVEN:
        raise ModelError(
            f"{path} was run with a model given in Python: export, load or predict with model=…, "
            "in Python, as cpfl.run was given it"
        )
    if model is None:
        build = models.factory(settings, shape, _answer(about)[-1])
    else:
        build = user_model_factory(model, keeps=True)
    module = adapted(build, example_inputs(about, 2))()
    try:
        module.load_state_dict(folder.global_state(source))
    except RuntimeError as error:
        _, *reasons = str(error).splitlines()  # the first line says only that there are some
        raise ModelError(f"the model does not fit the run's: {' '.join(map(str.strip, reasons))}") from None
    return Deployed(module.float(), experiment, len(shape)).eval(), about


def _answer(about: Mapping[str, Any]) -> list[int]:
    """The shape of an answer to one sample."""
    return about.get("answer") or [about["classes"]]


def export(
    path: str | Path,
    out: str | Path | None = None,
    *,
    model: UserModel | None = None,
    distillation: str = "",
    onnx: bool | None = None,
) -> list[Path]:
    """Write model.safetensors, model.json and model.onnx to a folder, and return their paths.

    `onnx` is whether to write model.onnx; None: if the packages for it are installed.
    """
    module, about = load_global(Path(path), model, distillation)
    own = expanded(Path(path), "the run folder")
    where = expanded(Path(out), "out") if out is not None else own / "export"
    if os.path.realpath(where) != os.path.realpath(own / "export"):
        check_outside(where / "model.json")
    installed = all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript"))
    writes_onnx = installed and onnx is not False
    program = _onnx(module, example_inputs(about, 2)) if writes_onnx else b""  # before anything is written: it may fail
    with files.explained(where):
        where.mkdir(parents=True, exist_ok=True)
    files.save_tensors(where / "model.safetensors", module.model.state_dict(), {"classes": about["classes"]})
    facts = {
        "shape": about["shape"],
        "classes": about["classes"],
        "class_names": about.get("class_names"),
        "mean": module.mean.flatten().tolist(),
        "std": module.std.flatten().tolist(),
        "input": _described(about, module.normalizes),
        "objective": about.get("objective", "classification"),
        "output": _answered(module.objective, about),
        "run": own.name,
    }
    files.write_json(where / "model.json", facts)
    if writes_onnx:
        files.write_atomic(where / "model.onnx", program)
    elif onnx:
        raise CpflError(f"{where} has no model.onnx, which needs two more packages: pip install 'cpfl[onnx]'")
    return [where / f"model.{kind}" for kind in ("json", *(["onnx"] if writes_onnx else []), "safetensors")]


def _answered(own: Objective, about: Mapping[str, Any]) -> str:
    """What model.json says of the output."""
    if not about.get("answer") or type(own) is Classification:
        return "logits (batch, classes)"
    what = f"logits ({own.link.name} makes probabilities of them)" if own.link.has_probabilities else "numbers"
    return f"{what} (batch, {', '.join(map(str, about['answer']))})"


def _described(about: Mapping[str, Any], normalizes: bool) -> str:
    """What model.json says of the inputs."""
    if fields := about.get("fields"):
        kinds = (kind_of(np.dtype(one["dtype"]), tuple(one["shape"])) for one in fields)
        return ", ".join(
            f"{one['name']}: {str(_dtype(one['dtype'], one['shape'])).removeprefix('torch.')} "
            f"({', '.join(['batch', *map(str, one['shape'])])})" + (f" of {PIXELS}" if kind == "pixels" else "")
            for one, kind in zip(fields, kinds, strict=True)
        )
    kind = about.get("inputs", "pixels")
    if kind == "integers":
        return "int64 (batch, …shape)"
    what = PIXELS if kind == "pixels" else "numbers"
    return f"float32 (batch, …shape); {what}" + ("; the ONNX model normalises by itself" if normalizes else "")


def _onnx(module: Deployed, example: Inputs) -> bytes:
    """The model as an ONNX file holds it."""
    batch = torch.export.Dim("batch")
    names = list(example) if isinstance(example, dict) else ["x"] if isinstance(example, Tensor) else None
    sizes = mapped(lambda x: {0: batch}, example)  # type: ignore[arg-type, return-value]
    quiet = logging.getLogger("torch.onnx")
    level = quiet.level
    with warnings.catch_warnings():  # the exporter's deprecations are not the user's
        warnings.simplefilter("ignore")
        quiet.setLevel(logging.ERROR)
        try:
            program = torch.onnx.export(
                module, (example, {}), dynamo=True, verbose=False, dynamic_shapes={"x": sizes},
                input_names=names, output_names=["logits"],
            )  # fmt: skip
        except Exception as error:
            reason = first_line(error.__cause__ or error)  # else torch's advice, in colours
            raise ModelError(f"the model cannot be written as ONNX, set onnx = False: {reason}") from None
        finally:
            quiet.setLevel(level)
    assert program is not None
    found: bytes = program.model_proto.SerializeToString()
    return found


def predict(path: Path, images: Path, distillation: str = "") -> Iterator[dict[str, Any]]:
    """What the model says of every image, in order of name: class and probability, for a classification."""
    module, about = load_global(path, distillation=distillation)
    shape, names = about["shape"], about.get("class_names")
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise DataError(f"{path} was trained on samples of shape {tuple(shape)}: predict takes a folder of images")
    if not os.path.exists(images):
        raise DataError(f"there is no file or folder {images}")
    found = [images] if images.is_file() else sorted(f for f in images.rglob("*") if _is_image(f))
    if not found:
        raise DataError(f"{images} holds no images ({', '.join(SUFFIXES)})")
    for start in range(0, len(found), BATCH):
        part = found[start : start + BATCH]
        x = torch.from_numpy(np.stack([_read(image, shape) for image in part])).float() / 255
        with torch.no_grad():
            rows = described(module.objective, module(x), names)
        for image, row in zip(part, rows, strict=True):
            yield {"image": str(image), **row}


def _is_image(path: Path) -> bool:
    """Whether it is a plain file with an image's name: a pipe would be waited for."""
    return path.suffix.lower() in SUFFIXES and os.path.isfile(path)


def _read(path: Path, shape: list[int]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """An image with the model's channels and size, channels first."""
    channels, height, width = shape
    try:
        with open_image(path) as image:
            fitted = image.convert("L" if channels == 1 else "RGB")
            smaller = width <= fitted.width and height <= fitted.height
            # BOX averages pixels: an image that was only enlarged becomes what it was.
            how = Image.Resampling.BOX if smaller else Image.Resampling.BILINEAR
            pixels = np.asarray(fitted.resize((width, height), how))
    except UNREADABLE as error:
        raise DataError(f"{path} cannot be read as an image: {why_unreadable(error)}") from None
    return pixels[None] if channels == 1 else np.moveaxis(pixels, 2, 0)
