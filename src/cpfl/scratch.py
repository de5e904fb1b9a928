"""Temporary folders that outlive no process: what a killed one left goes with the next."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def scratch_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A temporary folder in `parent`, after those of this prefix whose processes have ended are removed.

    A process holds a lock on its folder for as long as it lives.
    """
    with _locked(parent):  # nobody else removes a folder between its making and its lock
        for left in [path for path in parent.iterdir() if path.name.startswith(prefix)]:
            with contextlib.suppress(OSError), _locked(left, wait=False):
                shutil.rmtree(left)
        made = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
        own = contextlib.ExitStack()
        own.enter_context(_locked(made))
    with own:
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a folder; an OSError if another process holds it and we do not wait."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(handle)
