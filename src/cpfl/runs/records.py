"""Append-only lines of JSON that other programs can read while a run trains."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cpfl.errors import ChangedError, DamagedError
from cpfl.runs.files import explained

_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def encode(record: Mapping[str, Any]) -> bytes:
    """One line."""
    return f"{_ENCODER.encode(record)}\n".encode()


def append(path: Path, *records: Mapping[str, Any]) -> None:
    """Add lines."""
    append_lines(path, [encode(record) for record in records])


def append_lines(path: Path, lines: Sequence[bytes]) -> None:
    """Add encoded lines."""
    with explained(path), path.open("ab") as file:
        file.write(b"".join(lines))


class RunningDigest:
    """Size and checksum of a file that grows, without reading it again: what other files say of it."""

    def __init__(self, path: Path, what: str = "records", lines: int | None = None) -> None:
        """`lines`: of the first ones only."""
        content = path.read_bytes() if path.is_file() else b""
        content = b"".join(content.splitlines(keepends=True)[:lines])
        self._what, self._size, self._hash = what, len(content), hashlib.sha256(content)

    @property
    def facts(self) -> dict[str, Any]:
        """What the file is now."""
        return {f"{self._what}_size": self._size, f"{self._what}_checksum": self._hash.hexdigest()}

    def add(self, line: bytes) -> dict[str, Any]:
        """The facts after another line."""
        self._size += len(line)
        self._hash.update(line)
        return self.facts


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
        lines = [json.loads(line) for line in whole.splitlines()]
    except (ValueError, RecursionError):
        raise DamagedError(f"{path} is damaged: a line is not JSON") from None
    if not all(isinstance(line, dict) for line in lines):
        raise DamagedError(f"{path} is damaged: a line is not a JSON object")
    return lines


def seal(path: Path, record: Mapping[str, Any], run: str) -> dict[str, Any]:
    """The record with a checksum of its run, all lines before it and itself, as the next line of a sealed file."""
    before = path.read_bytes() if path.is_file() else b""
    return {**record, "checksum": hashlib.sha256(run.encode() + before + encode(record)).hexdigest()}


def read_sealed(path: Path, run: str) -> list[dict[str, Any]]:
    """The whole lines of a sealed file of this run, without their checksums."""
    content = path.read_bytes() if path.is_file() else b""
    digest, lines = hashlib.sha256(run.encode()), parse(path, content)
    for raw, line in zip(content.splitlines(keepends=True), lines, strict=False):  # the last one may be cut short
        own, start = digest.copy(), raw.rpartition(b',"checksum":')[0]
        own.update(start + b"}\n")
        if raw != start + b',"checksum":"%s"}\n' % own.hexdigest().encode():
            raise ChangedError(path, path.parent)
        del line["checksum"]
        digest.update(raw)
    return lines


def check(run: Path, path: Path, facts: Mapping[str, Any], whole: bool = False, what: str = "records") -> None:
    """Refuse a file of a run that is not what a checkpoint or a teacher says of it (see RunningDigest).

    `whole`: nothing may have been added since.
    """
    size, content = facts.get(f"{what}_size", 0), path.read_bytes() if path.is_file() else b""
    if len(content) < size:  # lines that a disk lost can be made again
        raise DamagedError(f"{path} is damaged: it is shorter than it was")
    head = content if whole else content[:size]
    if hashlib.sha256(head).hexdigest() != facts.get(f"{what}_checksum", hashlib.sha256().hexdigest()):
        raise ChangedError(path, run)


def shared_facts(paths: Mapping[str, Path], phases: int) -> dict[str, Any]:
    """What checkpoints and teachers say of the records that all cohorts share (RunFolder.shared), as far as their
    cohort has acted on them: so it is the same after any kill."""
    digests = [RunningDigest(path, what, phases) for what, path in paths.items()]
    return {key: value for digest in digests for key, value in digest.facts.items()}


def check_shared(run: Path, paths: Mapping[str, Path], facts: Mapping[str, Any]) -> None:
    """Refuse such records that are not what a checkpoint or a teacher says of them."""
    for what, path in paths.items():
        check(run, path, facts, what=what)


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
