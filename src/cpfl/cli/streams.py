"""Standard output and error as they are: any encoding, closed pipes, full disks."""

import codecs
import contextlib
import errno
import io
import os
import sys

# Where the encoding lacks a character of ours.
PLAIN = {"±": "+-", "–": "-", "…": "...", "·": "-", "×": "x", "α": "alpha", "δ": "delta", "ε": "epsilon", "μ": "mu"}
CLOSED = 1  # the exit code where nobody reads the output any more; rich and click take it, too
# What the machine refuses to do with a file that the user named; anything else is a bug of ours.
REFUSED = {
    errno.ENAMETOOLONG,
    errno.EACCES,
    errno.EPERM,
    errno.ELOOP,
    errno.EROFS,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
}
REASONS = {
    errno.ENOSPC: "cannot write the output",
    errno.EIO: "cannot write the output",
    errno.EMFILE: "this process may open no more files; raise the limit (ulimit -n)",
    errno.ENFILE: "this machine has no more open files left",
}


def _in_plain_letters(error: UnicodeError) -> tuple[str, int]:
    """A codec's error handler: other characters for ours, escapes for all others."""
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end]
    texts = (PLAIN.get(char) or char.encode("ascii", "backslashreplace").decode() for char in lacking)
    return "".join(texts), error.end


codecs.register_error("cpfl", _in_plain_letters)


def explain(error: OSError) -> str | None:
    """An error of the machine in one sentence; None: it is none that a user can do something about."""
    if error.filename is not None and error.errno in REFUSED:
        return f"cannot use {os.fsdecode(error.filename)}: {error.strerror}"
    return f"{REASONS[error.errno]}: {error.strerror}" if error.errno in REASONS else None


def prepare() -> None:
    """Let standard output and error take any text, whatever their encoding."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError):  # a file that became a pipe under its name has no position
                stream.reconfigure(errors="cpfl")


def flush() -> None:
    """Write what is still in memory now: at the end of a process an error would be too late for a sentence."""
    if sys.stdout is not None:
        sys.stdout.flush()


def discard() -> None:
    """Send what is still to be written to nobody: the output is closed or full."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            with contextlib.suppress(OSError, io.UnsupportedOperation), open(os.devnull, "wb") as nobody:
                os.dup2(nobody.fileno(), stream.fileno())
