"""Downloads of known sets: to a temporary file, checked, then renamed, so that a file with its name is always whole."""

import contextlib
import hashlib
import http.client
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from cpfl.data.catalogue import CATALOGUE, Entry, RemoteFile
from cpfl.errors import DataError

CHUNK = 1 << 20
TIMEOUT = 60.0  # seconds without a byte

Progress = Callable[[int, int], None]  # bytes done, bytes in all


def fetch(name: str, root: Path, mirror: str | None = None, progress: Progress | None = None) -> Path:
    """Download a known set into `<root>/<name>/`; `mirror` replaces the published base address.

    Files that are already there and whole are not downloaded again.
    """
    entry = _downloadable(name, root)
    if mirror is not None and not mirror.startswith(("http://", "https://")):
        raise DataError(f"the mirror '{mirror}' is not an address: it must begin with http:// or https://")
    folder = root / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder} cannot be made: {error.strerror}") from error
    before = 0  # bytes of the files before this one

    def report(done: int) -> None:
        if progress is not None:
            progress(min(before + done, entry.size), entry.size)

    try:
        for file in entry.files:
            target = folder / file.name
            if not (target.is_file() and _checksum(target, file) == file.checksum):
                address = file.url if mirror is None else f"{mirror.rstrip('/')}/{file.name}"
                _download(file, address, target, report)
            before += file.size
            report(0)
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()  # only if it is empty, because nothing was downloaded
    return folder


def _downloadable(name: str, root: Path) -> Entry:
    entry = CATALOGUE.get(name)
    if entry is not None and entry.downloadable:
        return entry
    if entry is None:
        known = ", ".join(sorted(known.name for known in CATALOGUE.values() if known.downloadable))
        raise DataError(f"'{name}' is not a set that can be downloaded: those are {known}")
    if entry.source == "embedded":
        raise DataError(f"'{name}' is built in: there is nothing to download")
    raise DataError(f"'{name}' has no published file: put it at {root / name}, expected there: {entry.expects}")


def _download(file: RemoteFile, address: str, target: Path, report: Callable[[int], None]) -> None:
    by_hand = f"download it by hand and put it at {target}"
    partial: Path | None = None
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".partial-", delete=False) as out:
            partial = Path(out.name)
            for chunk in _chunks(address, by_hand):
                out.write(chunk)
                report(out.tell())
        found = _checksum(partial, file)
        if found != file.checksum:
            raise DataError(
                f"{address} has the wrong checksum: expected {file.checksum}, found {found} in "
                f"{partial.stat().st_size:,} bytes (published: {file.size:,}); it was removed, {by_hand}"
            )
        partial.chmod(0o644)  # temporary files are private, data sets are not
        partial.replace(target)
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error.strerror}") from error
    finally:
        if partial is not None:
            partial.unlink(missing_ok=True)


def _chunks(address: str, by_hand: str) -> Iterator[bytes]:
    done = 0
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT) as response:
            while chunk := response.read(CHUNK):
                done += len(chunk)
                yield chunk
    except (OSError, http.client.HTTPException, ValueError) as error:
        if done:
            raise DataError(
                f"{address} broke off after {done:,} bytes ({_reason(error)}): try again, or {by_hand}"
            ) from error
        raise DataError(f"{address} cannot be reached ({_reason(error)}): {by_hand}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code}"
    return str(getattr(error, "reason", error)) or type(error).__name__


def _checksum(path: Path, file: RemoteFile) -> str:
    """The checksum of a file on disk, in the kind that its publisher gives."""
    kind = file.checksum.split(":")[0]
    with path.open("rb") as stream:
        return f"{kind}:{hashlib.file_digest(stream, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()}"
