"""Paths and files that a user names: ~ is the home folder, and nothing is read without an end."""

import errno
import os
import stat
from pathlib import Path

from cpfl.errors import DataError

LONGEST = 1 << 30  # bytes: a csv, json or toml file that is longer was not meant


def expanded(path: Path, what: str) -> Path:
    """A path with ~ replaced by the home folder; `what` names it where there is no such folder."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise DataError(f"{what} = {str(path)!r} cannot be found: {path.parts[0]} has no home folder here") from None


def check_readable(path: Path, longest: int = LONGEST) -> None:
    """Refuse what would be read without an end: a device, or a pipe that nobody writes to; raises OSError, too."""
    found = os.stat(path)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise DataError(f"{str(path)!r} cannot be read: it is no plain file")
    if found.st_size > longest:
        raise DataError(f"{str(path)!r} is not read: it has {found.st_size:,} bytes, and {longest:,} are allowed")
