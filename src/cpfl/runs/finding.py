"""Find the run folders in a folder."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from cpfl.errors import RunFolderError

DEPTH = 2  # levels below a folder at which its runs are found


def find_runs(root: Path) -> list[Path]:
    """All run folders at or below a folder, at most two levels down."""
    if not os.path.isdir(root):
        raise RunFolderError(f"there is no folder {root}")
    return sorted(_runs(root, DEPTH))


def _runs(folder: Path, depth: int) -> Iterator[Path]:
    """Run folders, and folders that cannot be read: they may be runs."""
    try:
        (folder / "run.json").stat()
        yield folder
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError:
        yield folder
    if depth:
        try:
            below = [name for name in os.listdir(folder) if os.path.isdir(folder / name)]
        except OSError as error:  # it vanished, or it is one that was named already
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            below = []
        for name in below:
            yield from _runs(folder / name, depth - 1)
