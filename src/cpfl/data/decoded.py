"""Decoded images kept as .npy in the user's cache folder, so that a set is decoded once and memory-mapped ever after.

Nothing here may break a run: a cache that is missing, damaged, read-only or on a full disk is as good as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import platformdirs

from cpfl.data.samples import Array

# Part of every key: raise it when the decoder's output changes, and old entries are left alone.
DECODER = "1"


def cache_folder() -> Path:
    """$CPFL_CACHE, or the user's cache folder of this system."""
    chosen = os.environ.get("CPFL_CACHE")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("cpfl"))


def cached(files: Sequence[Path], decode: Callable[[], Array]) -> Array:
    """What `decode` makes of these files: from the cache where it is there and whole, decoded and kept otherwise."""
    folder = cache_folder() / "decoded"
    key = _key(files)
    images, checksum = folder / f"{key}.npy", folder / f"{key}.sha256"
    found = _recall(images, checksum)
    if found is not None:
        return found
    decoded = decode()
    with contextlib.suppress(OSError):
        _keep(decoded, images, checksum)
    return decoded


def _key(files: Sequence[Path]) -> str:
    """A checksum of names, sizes and contents: a set that changed in any way is decoded anew."""
    digest = hashlib.sha256(DECODER.encode())
    for file in files:
        with file.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").hexdigest()
        digest.update(f"\n{file.name} {file.stat().st_size} {content}".encode())
    return digest.hexdigest()


def _recall(images: Path, checksum: Path) -> Array | None:
    try:
        with images.open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != checksum.read_text().strip():
                return None
        # Copy on write: callers get an array like any other, and the file stays as it is.
        return np.asarray(np.load(images, mmap_mode="c", allow_pickle=False))
    except (OSError, ValueError):
        return None


def _keep(decoded: Array, images: Path, checksum: Path) -> None:
    """Both files appear whole or not at all. A crash between the two leaves images without a checksum: no entry."""
    images.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=images.parent, prefix="partial-")
    partial = Path(name)
    try:
        with os.fdopen(handle, "wb") as out:
            np.save(out, decoded, allow_pickle=False)
        with partial.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        partial.replace(images)
        partial.write_text(digest)
        partial.replace(checksum)
    finally:
        partial.unlink(missing_ok=True)
