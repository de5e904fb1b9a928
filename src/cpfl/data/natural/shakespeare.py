"""Shakespeare's speaking roles, as in LEAF: 80 characters of a role's text, and the one that follows.

A role's text is its speeches in order. The ROLES longest roles are used, so that each has enough to train on. In the
order of their names every fifth is left out as public; the others are clients. A client's role trains on the first
four fifths of its text and is tested on the rest, which shares no character with them. Windows are as many for every
role, at even distances: LEAF takes one at every character, a hundred times as many.
"""

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpfl.data.limit import check_size
from cpfl.data.samples import Samples
from cpfl.errors import DataError, first_line

# LEAF's characters; any other is a space.
CHARACTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
CONTEXT = 80  # characters that a model sees
ROLES = 50
PUBLIC_EVERY = 5  # the last of every five
TRAINED = 0.8  # of a role's text
WINDOWS = {"train": 200, "test": 50, "public": 200}  # of a role
FILES = ("by_role.json.gz", "all_data.json", "all_data/all_data.json", "data/all_data/all_data.json")
GROWTH = 4  # bytes in memory for one in a file of text
CHUNK = 1 << 20

_NUMBER = np.full(256, CHARACTERS.index(" "), np.uint8)
_NUMBER[np.frombuffer(CHARACTERS.encode(), np.uint8)] = np.arange(len(CHARACTERS))


def found(folder: Path) -> bool:
    """Whether a folder holds speeches by role or LEAF's all_data.json."""
    return _file(folder) is not None


def read(folder: Path, split: str) -> Samples | None:
    """Windows of one split: numbers of 80 characters, the number of the next one, and the role."""
    if split not in WINDOWS:
        return None
    file = _file(folder)
    assert file is not None, "found() saw it"
    texts = _longest(_texts(file))
    if len(texts) < PUBLIC_EVERY:
        raise DataError(f"{file} has {len(texts)} roles with enough text: {PUBLIC_EVERY} or more are needed")
    roles = [role for at, role in enumerate(texts) if (at % PUBLIC_EVERY == PUBLIC_EVERY - 1) == (split == "public")]
    every = [_windows(_part(texts[role], split), WINDOWS[split]) for role in roles]
    windows = np.concatenate(every)
    whose = np.repeat(np.array(roles), [len(some) for some in every])
    return Samples(windows[:, :-1].copy(), windows[:, -1].astype(np.int64), {"role": whose})


def numbered(text: str) -> NDArray[np.uint8]:
    """A text as numbers of its characters."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return _NUMBER[np.where(codes < len(_NUMBER), codes, ord(" "))]


def _longest(texts: dict[str, str]) -> dict[str, str]:
    """The longest texts, in the order of their roles' names."""
    enough = [role for role, text in texts.items() if (1 - TRAINED) * len(text) > CONTEXT + 1]
    chosen = sorted(enough, key=lambda role: (-len(texts[role]), role))[:ROLES]
    return {role: texts[role] for role in sorted(chosen)}


def _part(text: str, split: str) -> str:
    """What of a role's text belongs to a split."""
    border = int(TRAINED * len(text))
    return {"train": text[:border], "test": text[border:], "public": text}[split]


def _windows(text: str, count: int) -> NDArray[np.uint8]:
    """At most so many stretches of CONTEXT characters and one more, at even distances, no two of them equal."""
    every = np.lib.stride_tricks.sliding_window_view(numbered(text), CONTEXT + 1)
    starts = np.unique(np.linspace(0, len(every) - 1, count).astype(np.int64))
    return np.unique(every[starts], axis=0)


def _file(folder: Path) -> Path | None:
    return next((folder / name for name in FILES if (folder / name).is_file()), None)


def _texts(file: Path) -> dict[str, str]:
    """Every role's text."""
    held = _json(file)
    if not isinstance(held, dict) or not {"users", "user_data"} <= held.keys() or not isinstance(held["users"], list):
        raise DataError(f"{file} is not LEAF's: an object with users, num_samples and user_data is expected")
    texts = dict[str, str]()
    for user in held["users"]:
        try:
            data = held["user_data"][user]
            said = data["raw"] if "raw" in data else ["".join(data["y"])]  # LEAF asks for every character of a text
            texts[str(user)] = said if isinstance(said, str) else "\n".join(said)
        except (KeyError, TypeError) as error:
            raise DataError(f"user {str(user)[:80]!r} in {file} has no texts raw, or x and y: {error}") from error
    return texts


def _json(file: Path) -> Any:
    content = bytearray()
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            while chunk := stream.read(CHUNK):
                content += chunk
                check_size(file, GROWTH * len(content))
        return json.loads(content.decode("utf-8"))
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise DataError(f"{file} is truncated or not JSON: {first_line(error)}") from error
