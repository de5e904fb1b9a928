"""The sets that are known by name, from catalogue.toml.

A name that is not there is a folder of the user's own; it is read by what lies in it.
"""

import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Literal

from pydantic import TypeAdapter


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


@dataclass(frozen=True)
class Entry:
    """One known set; catalogue.toml explains the fields."""

    name: str
    what: str
    expects: str
    shape: tuple[int, ...] = ()
    classes: int | None = None
    source: Literal["embedded", "files", "trace"] = "files"
    public: tuple[str, ...] = ("train",)
    files: tuple[RemoteFile, ...] = ()

    @property
    def downloadable(self) -> bool:
        """Whether `cpfl data get` can fetch it."""
        return bool(self.files)

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(file.size for file in self.files)


_TREE = tomllib.loads(resources.files("cpfl.data").joinpath("catalogue.toml").read_text(encoding="utf-8"))
CATALOGUE = {name: TypeAdapter(Entry).validate_python({"name": name, **fields}) for name, fields in _TREE.items()}
PUBLISHED_SIZES = {file.name: file.size for entry in CATALOGUE.values() for file in entry.files}
