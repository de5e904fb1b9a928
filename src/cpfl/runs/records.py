"""Append-only lines of JSON that other programs can read while a run trains."""

import json
import os
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from cpfl.errors import DamagedError
from cpfl.runs.files import explained

_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def append(path: Path, *records: Mapping[str, Any]) -> list[int]:
    """Add lines; the file's size after each of them."""
    lines = [f"{_ENCODER.encode(record)}\n".encode() for record in records]
    with explained(path), path.open("ab") as file:
        sizes = list(accumulate(map(len, lines), initial=file.tell()))[1:]
        file.write(b"".join(lines))
    return sizes


def repair(path: Path) -> None:
    """Drop a last line that a crash cut short, so that the next one starts on a line of its own."""
    with explained(path):
        if path.is_file():
            os.truncate(path, path.read_bytes().rfind(b"\n") + 1)


def read(path: Path) -> list[dict[str, Any]]:
    """All whole lines; one that is being written, or was cut short by a crash, is left out."""
    return parse(path, path.read_bytes()) if path.is_file() else []


def parse(path: Path, content: bytes) -> list[dict[str, Any]]:
    """The whole lines of a file with this content, or with this part of it."""
    whole = content[: content.rfind(b"\n") + 1]
    try:
        return [json.loads(line) for line in whole.splitlines()]
    except ValueError:
        raise DamagedError(f"{path} is damaged: a line is not JSON") from None


def check(path: Path, size: int, lines: int) -> None:
    """Refuse a file that lacks lines that a checkpoint counts on."""
    head = path.read_bytes()[:size] if path.is_file() else b""
    if len(head) < size or head.count(b"\n") != lines:
        raise DamagedError(f"{path} is damaged: it is shorter than its checkpoint says")


def truncate(path: Path, size: int) -> int:
    """Drop what was appended after a checkpoint, because it is computed again; the number of dropped lines."""
    with explained(path):
        if not path.exists():
            return 0
        with path.open("rb") as file:
            file.seek(size)
            lines = file.read().count(b"\n")
        os.truncate(path, size)
        return lines
