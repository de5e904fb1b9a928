"""Image sets as the hub writes them, made small."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image


def encode(pixels: np.ndarray, format: str = "PNG") -> bytes:
    """(H, W) grey or (H, W, 3) colour as an encoded image."""
    out = io.BytesIO()
    options = {"lossless": True} if format == "WEBP" else {}
    Image.fromarray(pixels).save(out, format, **options)
    return out.getvalue()


def write_shard(file: Path, images: Sequence[bytes | None], column: str = "image", **others: Any) -> None:
    """One parquet file as the hub writes it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = pa.array([{"bytes": image, "path": None} for image in images], type=struct)
    pq.write_table(pa.table({column: rows, **others}), file)
