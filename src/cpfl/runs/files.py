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
from pydantic import BaseModel, ValidationError
from torch import Tensor

from cpfl.errors import DamagedError, MissingError, RunFolderError, first_line

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
    except (ValueError, RecursionError):  # also integers of thousands of digits, and lists in lists without end
        raise DamagedError(f"{path} is damaged: it is not JSON") from None
    if not isinstance(tree, dict):
        raise DamagedError(f"{path} is damaged: it is not a JSON object")
    return tree


def check_shape(path: Path, shape: type[BaseModel], tree: object) -> None:
    """Refuse a tree that lacks something, or holds it in another type or range."""
    try:
        shape.model_validate(tree)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key, said = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
        reason = f"it lacks {key}" if first["type"] == "missing" else f"{key}: {said}" if key else said
        raise DamagedError(f"{path} is damaged: {reason}") from None


def checksum(tree: Mapping[str, Any]) -> str:
    """Of the content, whatever the order of its keys, without its own entry "checksum"."""
    content = {key: value for key, value in tree.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=list).encode()).hexdigest()


def on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors where another thread may use them without touching a device; not copied if they are there."""
    return {name: value.detach().cpu() for name, value in tensors.items()}


def save_tensors(path: Path, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any], lasting: bool = True) -> str:
    """Tensors and numbers as one safetensors file that carries its own name and checksum; the checksum."""
    # Copies: tied parameters share memory, which safetensors refuses.
    plain = {name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}
    text = json.dumps({**numbers, "file": path.name}, sort_keys=True, allow_nan=False)
    digest = _digest(plain, text)
    # One entry: safetensors keeps several in no fixed order, and equal runs must be equal files.
    write_atomic(path, safetensors.torch.save(plain, {ENTRY: f"{digest} {text}"}), lasting)
    return digest


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A file of save_tensors; one that cannot be read or is damaged is one sentence."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            yield file
    except RunFolderError:
        raise
    except FileNotFoundError:
        raise MissingError(f"{path} is missing") from None
    except OSError as error:  # an error of the disk, not of the file: nothing may be deleted because of it
        raise RunFolderError(f"cannot read {path}: {error}") from None
    except Exception as error:  # safetensors has no common error for damaged files
        raise DamagedError(f"{path} is damaged: {first_line(error)}") from None


def load_tensors(path: Path, checksum: str = "") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What save_tensors wrote; anything cut short or changed is refused, and a file that was written as another one.

    `checksum`: the one that another file says it has.
    """
    with _opened(path) as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
    digest, _, text = metadata.get(ENTRY, "").partition(" ")
    if _digest(tensors, text) != digest:
        raise DamagedError(f"{path} is damaged: its checksum does not match")
    numbers = _named(path, text)
    if checksum and checksum != digest:
        raise DamagedError(f"{path} is damaged: it is the model of another distillation")
    return tensors, numbers


def read_numbers(path: Path) -> dict[str, Any]:
    """The numbers alone, without reading tensors: their checksum is not checked, but the file's name is."""
    with _opened(path) as file:
        return _named(path, (file.metadata() or {}).get(ENTRY, "").partition(" ")[2])


def _named(path: Path, text: str) -> dict[str, Any]:
    """The numbers of a file that was written under this name."""
    numbers: dict[str, Any] = json.loads(text)
    if (written := numbers.pop("file", "")) != path.name:
        raise DamagedError(f"{path} is damaged: it was written as {written}")
    return numbers


def tensors_checksum(tensors: Mapping[str, Tensor]) -> str:
    """Of a model that is not in a file."""
    return _digest({name: value.detach().cpu() for name, value in tensors.items()}, "")


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(repr((name, str(value.dtype), tuple(value.shape))).encode())
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()
