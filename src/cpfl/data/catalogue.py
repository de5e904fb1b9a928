"""The sets that are known by name, from catalogue.toml, and their download.

A name that is not there is a folder of the user's own; it is read by what lies in it. Downloads go to a temporary
file, are checked, then renamed: a file with its name is always whole.
"""

import contextlib
import hashlib
import http.client
import os
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Literal

import platformdirs
from pydantic import TypeAdapter

from cpfl.errors import DataError
from cpfl.scratch import scratch_folder
from cpfl.user_files import expanded

CHUNK = 1 << 20
TIMEOUT = 60.0  # seconds without a byte


@dataclass(frozen=True)
class RemoteFile:
    """One published file."""

    url: str
    checksum: str  # "md5:…" or "sha256:…"
    size: int  # bytes

    @property
    def name(self) -> str:
        """Its name in the set's folder."""
        return self.url.rsplit("/", 1)[1]

    def checksum_of(self, path: Path) -> str:
        """The checksum of a file on disk, in the kind that the publisher gives."""
        kind = self.checksum.split(":")[0]
        return f"{kind}:{file_digest(path, kind)}"


@dataclass(frozen=True)
class Entry:
    """One set; catalogue.toml explains the fields of known ones, `sources.describe` adds where it is."""

    name: str
    what: str
    expects: str
    shape: tuple[int, ...] = ()
    classes: int | None = None
    source: Literal["embedded", "files", "trace"] = "files"
    public: tuple[str, ...] = ("train",)
    files: tuple[RemoteFile, ...] = ()
    folder: str = ""
    members: dict[str, tuple[str, ...]] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    path: Path | None = None  # on this machine; None: built in, or not found
    format: str = "missing"  # or "built in", "parquet", "LEAF", "table", "saved", "cifar10", "har", "trace", …

    @property
    def downloadable(self) -> bool:
        """Whether `cpfl data get` can fetch it."""
        return bool(self.files)

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(file.size for file in self.files)

    @property
    def megabytes(self) -> str:
        """The same for a person."""
        return f"{self.size / 1e6:,.{0 if self.size >= 1e6 else 2}f} MB"


_TREE = tomllib.loads(resources.files("cpfl.data").joinpath("catalogue.toml").read_text(encoding="utf-8"))
CATALOGUE = {name: TypeAdapter(Entry).validate_python({"name": name, **fields}) for name, fields in _TREE.items()}
PUBLISHED_SIZES = {file.name: file.size for entry in CATALOGUE.values() for file in entry.files}


def cache_folder() -> Path:
    """$CPFL_CACHE, or the user's cache folder of this system."""
    chosen = os.environ.get("CPFL_CACHE")
    return expanded(Path(chosen), "$CPFL_CACHE") if chosen else Path(platformdirs.user_cache_dir("cpfl"))


def file_digest(path: Path, kind: str = "sha256") -> str:
    """A checksum of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def fetch(
    name: str, root: Path, mirror: str | None = None, progress: Callable[[int, int], None] = lambda done, total: None
) -> Path:
    """Download a known set into `<root>/<name>/`; files that are already there and whole are kept.

    A `mirror` replaces the published base address; `progress` is called with the bytes done and the bytes in all.
    """
    entry, folder = CATALOGUE.get(name), root / name
    if entry is None:
        known = ", ".join(sorted(known.name for known in CATALOGUE.values() if known.downloadable))
        raise DataError(f"'{name}' is not a set that can be downloaded: those are {known}")
    if entry.source == "embedded":
        raise DataError(f"'{name}' is built in: there is nothing to download")
    if not entry.downloadable:
        raise DataError(f"'{name}' has no published file: put it at {folder}, expected there: {entry.expects}")
    if mirror is not None and not mirror.startswith(("http://", "https://")):
        raise DataError(f"the mirror '{mirror}' is not an address: it must begin with http:// or https://")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder} cannot be made: {error.strerror}") from error
    before = 0  # bytes of the files before this one

    def report(done: int) -> None:
        progress(min(before + done, entry.size), entry.size)

    try:
        for file in entry.files:
            target = folder / file.name
            if not (target.is_file() and file.checksum_of(target) == file.checksum):
                address = file.url if mirror is None else f"{mirror.rstrip('/')}/{file.name}"
                _download(file, address, target, report)
            before += file.size
            report(0)
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()  # only if it is empty, because nothing was downloaded
    return folder


def _download(file: RemoteFile, address: str, target: Path, report: Callable[[int], None]) -> None:
    by_hand = f"download it by hand and put it at {target}"
    try:
        with scratch_folder(target.parent, ".partial-") as scratch:
            partial = scratch / file.name
            with partial.open("wb") as out:
                for chunk in _chunks(address, by_hand):
                    out.write(chunk)
                    report(out.tell())
            found = file.checksum_of(partial)
            if found != file.checksum:
                raise DataError(
                    f"{address} has the wrong checksum: expected {file.checksum}, found {found} in "
                    f"{partial.stat().st_size:,} bytes (published: {file.size:,}); it was removed, {by_hand}"
                )
            partial.replace(target)
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error.strerror}") from error


def _chunks(address: str, by_hand: str) -> Iterator[bytes]:
    done = 0
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT) as response:
            while chunk := response.read(CHUNK):
                done += len(chunk)
                yield chunk
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = str(getattr(error, "reason", error)) or type(error).__name__
        if isinstance(error, urllib.error.HTTPError):
            reason = f"HTTP {error.code}"
        if done:
            raise DataError(f"{address} broke off after {done:,} bytes ({reason}): try again, or {by_hand}") from error
        raise DataError(f"{address} cannot be reached ({reason}): {by_hand}") from error
