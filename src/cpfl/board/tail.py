"""A file of JSON lines that grows: every line is read once."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from cpfl.errors import DamagedError


class Tail:
    """Remembers how far a file has been read, and notices when it was replaced or cut."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.heard = 0.0  # when it was last written to
        self.read = 0  # bytes that were
        self.left = 0  # bytes that were not yet
        self._inode = 0

    def news(self, most: int) -> tuple[list[dict[str, Any]], bool]:
        """New whole lines, of about `most` bytes; and whether they begin the file, as at first and after a cut."""
        try:
            found = os.stat(self.path)
            if not stat.S_ISREG(found.st_mode):
                raise DamagedError(f"{self.path} is damaged: it is no plain file")
            if found.st_ino != self._inode or found.st_size < self.read:
                self.read = 0
            self._inode, self.heard, begins = found.st_ino, found.st_mtime, self.read == 0
            text = self._chunk(most) if found.st_size > self.read and most > 0 else b""
        except FileNotFoundError:
            self.read = self._inode = self.left = 0
            return [], True
        except OSError as error:
            raise DamagedError(f"cannot read {self.path}: {error.strerror}") from None
        self.left = max(0, found.st_size - self.read - len(text))
        text = text[: text.rfind(b"\n") + 1]  # the last line may still be on its way
        self.read += len(text)
        try:
            return [json.loads(line) for line in text.splitlines()], begins
        except ValueError:
            raise DamagedError(f"{self.path} is damaged: a line is not JSON") from None

    def rewind(self) -> None:
        """Begin anew."""
        self.read = 0

    def _chunk(self, most: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.read)
            text = file.read(most)
            return text if text.endswith(b"\n") else text + file.readline()
