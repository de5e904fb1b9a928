"""Files that are either whole or absent: atomic writes, and tensors with a checksum inside."""

import contextlib
import errno
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from cpfl.errors import DamagedError, RunFolderError

ENTRY = "cpfl"  # the metadata of our safetensors files: checksum and numbers
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn a failed write into one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            reason = f"the disk is full ({error.strerror}): free some space, then cpfl resume"
        else:
            reason = error.strerror or str(error)
        raise RunFolderError(f"cannot write {path}: {reason}") from None


def write_atomic(path: Path, content: bytes | Iterable[bytes], lasting: bool = True) -> None:
    """Replace a file at once: a reader or a crash sees the old content or the new, never a part.

    Not `lasting`: a power cut may bring the old one back until `sync` of its folder.
    """
    temporary = path.with_name(f".{path.name}.part")
    with explained(path):
        try:
            with temporary.open("wb") as file:
                file.writelines([content] if isinstance(content, bytes) else content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except Exception:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    if lasting:
        sync(path.parent)


def sync(path: Path) -> None:
    """Make the content of a file, or the names in a folder, survive a power cut."""
    with explained(path):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_json(path: Path, tree: Mapping[str, Any]) -> None:
    """A JSON file, whole or absent; written in pieces, since the cohorts of millions of clients are long."""
    pieces = json.JSONEncoder(indent=2, allow_nan=False, default=list).iterencode(tree)
    write_atomic(path, map(str.encode, itertools.chain(pieces, "\n")))


def read_json(path: Path) -> dict[str, Any]:
    """A small JSON file; a missing or damaged one is refused in a sentence."""
    try:
        tree = json.loads(path.read_bytes())
    except OSError as error:
        raise RunFolderError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise RunFolderError(f"{path} is damaged: it is not JSON") from None
    if not isinstance(tree, dict):
        raise RunFolderError(f"{path} is damaged: it is not a JSON object")
    return tree


def on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors where another thread may use them without touching a device; not copied if they are there."""
    return {name: value.detach().cpu() for name, value in tensors.items()}


def save_tensors(path: Path, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any], lasting: bool = True) -> None:
    """Tensors and numbers as one safetensors file that carries its own checksum."""
    # Copies: tied parameters share memory, which safetensors refuses.
    plain = {name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}
    text = json.dumps(numbers, sort_keys=True, allow_nan=False)
    # One entry: safetensors keeps several in no fixed order, and equal runs must be equal files.
    content = safetensors.torch.save(plain, {ENTRY: f"{_digest(plain, text)} {text}"})
    write_atomic(path, content, lasting)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What save_tensors wrote; anything cut short or changed is refused."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
    except FileNotFoundError:
        raise RunFolderError(f"{path} is missing") from None
    except OSError as error:  # an error of the disk, not of the file: nothing may be deleted because of it
        raise RunFolderError(f"cannot read {path}: {error}") from None
    except Exception as error:  # safetensors has no common error for damaged files
        raise DamagedError(f"{path} is damaged: {error}") from None
    digest, _, text = metadata.get(ENTRY, "").partition(" ")
    if _digest(tensors, text) != digest:
        raise DamagedError(f"{path} is damaged: its checksum does not match")
    numbers: dict[str, Any] = json.loads(text)
    return tensors, numbers


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(repr((name, str(value.dtype), tuple(value.shape))).encode())
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()
