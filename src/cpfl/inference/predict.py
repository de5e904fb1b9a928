"""Classify images with a run's global model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from cpfl.data.decoded import UNREADABLE, open_image
from cpfl.errors import DataError
from cpfl.inference.export import load_global

SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"}
BATCH = 256


def predict(path: Path, images: Path, distillation: str = "") -> Iterator[dict[str, Any]]:
    """Class and probability of every image, in order of name."""
    module, about = load_global(path, distillation=distillation)
    shape, names = about["shape"], about.get("class_names")
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise DataError(f"{path} was trained on samples of shape {tuple(shape)}: predict takes a folder of images")
    if not images.exists():
        raise DataError(f"there is no file or folder {images}")
    found = [images] if images.is_file() else sorted(f for f in images.rglob("*") if f.suffix.lower() in SUFFIXES)
    if not found:
        raise DataError(f"{images} holds no images ({', '.join(sorted(SUFFIXES))})")
    for start in range(0, len(found), BATCH):
        part = found[start : start + BATCH]
        x = torch.from_numpy(np.stack([read(image, shape) for image in part])).float() / 255
        with torch.no_grad():
            probabilities = torch.softmax(module(x), dim=1)
        for image, row in zip(part, probabilities, strict=True):
            best = int(row.argmax())
            name = names[best] if names else str(best)
            yield {"image": str(image), "class": best, "name": name, "probability": float(row[best])}


def read(path: Path, shape: list[int]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """An image with the model's channels and size, channels first."""
    channels, height, width = shape
    try:
        with open_image(path) as image:
            fitted = image.convert("L" if channels == 1 else "RGB")
            if fitted.size != (width, height):
                smaller = width <= fitted.width and height <= fitted.height
                # BOX averages pixels: an image that was only enlarged becomes what it was.
                how = Image.Resampling.BOX if smaller else Image.Resampling.BILINEAR
                fitted = fitted.resize((width, height), how)
            pixels = np.asarray(fitted)
    except UNREADABLE as error:
        raise DataError(f"{path} cannot be read as an image: {error}") from None
    return pixels[None] if channels == 1 else np.moveaxis(pixels, 2, 0)
