"""Training data that come by client: the sets of all clients in one, with a column that says whose a sample is."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cpfl.data.frames import is_hugging_face
from cpfl.data.given_columns import Part
from cpfl.data.limit import as_text
from cpfl.data.samples import Array
from cpfl.data.sets import SetReader, is_dataset, is_named_table
from cpfl.errors import CpflError, DataError, first_line, quoted
from cpfl.settings.types import is_text

CLIENT = "client"
"""The column of owners."""
WIDEST = 2**63  # integers from here on are no keys

Key = int | str


def is_function(given: object) -> bool:
    """Whether it is a function that returns a client's set."""
    return callable(given) and not is_dataset(given) and not hasattr(given, "column_names")


def by_client(given: Any, clients: int) -> Mapping[Key, Any] | None:
    """Every client's set by its key, in the order of the keys; None where all data are one set.

    A function is called for each of so many `clients`.
    """
    if isinstance(given, Mapping):
        if hasattr(given, "column_names"):
            splits = ", ".join(map(str, given))
            raise DataError(f"it has the splits {splits}: give one of them; if they are clients, give dict(…) of it")
        if not given:
            raise DataError("it is an empty dict: a set for each client is needed")
        return {key: given[own] for key, own in sorted(_keys(given).items())}
    if isinstance(given, list) or (isinstance(given, tuple) and given and all(map(_is_set, given))):
        if not given:
            raise DataError("it is an empty list: a set for each client is needed")
        return dict(enumerate(given))
    if is_function(given):
        return {client: _called(given, client) for client in range(clients)}
    return None


def pooled(sets: Mapping[Key, Any], reader: SetReader) -> Part:
    """The sets of all clients, one after the other, in one set with the column `client`."""
    parts = dict[Key, Part]()
    for key, given in sets.items():
        try:
            parts[key] = reader.read(given)
            if len(parts[key]) == 0:
                raise DataError("it has no samples: leave the client out, or give it one sample or more")
        except DataError as error:
            raise DataError(f"client {quoted(key)}: {error}") from None
    _check_alike(parts)
    keys, (first, *_) = list(parts), parts.values()
    owners = as_text("the clients' keys", list(map(str, keys))) if isinstance(keys[0], str) else np.array(keys)
    ids = {name: np.concatenate([part.ids[name] for part in parts.values()]) for name in first.ids if name != CLIENT}
    y = np.concatenate([part.y for part in parts.values() if part.y is not None])
    x = joined([part.x for part in parts.values()])
    return Part(x, y, {**ids, CLIENT: np.repeat(owners, [len(part) for part in parts.values()])})


def joined(x: Sequence[Array | dict[str, Array]]) -> Array | dict[str, Array]:
    """The inputs of several sets as one; all have the same names, or none."""
    first = x[0]
    if isinstance(first, dict):
        return {name: np.concatenate([one[name] for one in x if isinstance(one, dict)]) for name in first}
    return np.concatenate([one for one in x if not isinstance(one, dict)])


def _check_alike(parts: Mapping[Key, Part]) -> None:
    """Refuse clients whose inputs, labels or columns are of different kinds."""
    first = next(iter(parts))
    kinds = _kinds(parts[first])
    for key, part in parts.items():
        own = _kinds(part)
        for name, kind in own.items():
            if kind != kinds[name]:
                raise DataError(
                    f"the {name} of client {quoted(key)} are {_shown(kind)}, those of client {quoted(first)} are "
                    f"{_shown(kinds[name])}: they must be of one kind"
                )


def _kinds(part: Part) -> dict[str, Any]:
    """What must be the same at all clients."""
    assert part.y is not None
    arrays = part.x if isinstance(part.x, dict) else {"": part.x}
    labels = {"O": "names", "U": "names", "S": "names", "f": "numbers"}.get(part.y.dtype.kind, "integers")
    return {
        "inputs": {name: (values.dtype, values.shape[1:]) for name, values in arrays.items()},
        "labels": {labels: [part.y.shape[1:]] if part.y.ndim > 1 else []},
        "columns": part.ids.keys() - {CLIENT},
    }


def _shown(kind: Any) -> str:
    if not isinstance(kind, dict):
        return ", ".join(sorted(kind)) or "none"
    return ", ".join(" ".join(map(str, (name, *what))).strip() for name, what in kind.items())


def _keys(given: Mapping[Any, Any]) -> dict[Key, Any]:
    """The keys as integers if they all are, else as texts, with the keys that were given."""
    for key in given:
        if isinstance(key, bool) or not isinstance(key, int | str | np.integer):
            raise DataError(f"a client's key is {quoted(key)}: texts and integers are allowed")
        if isinstance(key, str) and not is_text(key):
            raise DataError(f"a client's key is {quoted(key)}: it has characters that are no text")
    if all(not isinstance(key, str) and abs(int(key)) < WIDEST for key in given):
        return {int(key): key for key in given}
    texts: dict[Key, Any] = {str(key): key for key in given}
    if len(texts) < len(given):
        raise DataError("two clients' keys are the same text: an integer and a text that reads like it")
    return texts


def _is_set(entry: Any) -> bool:
    """Whether an entry of a tuple can be nothing but a client's set."""
    if is_dataset(entry) or is_hugging_face(entry) or is_named_table(entry):
        return True
    pair = isinstance(entry, tuple) and len(entry) in (2, 3)
    return pair and (isinstance(entry[1], list) or getattr(entry[1], "ndim", 0) > 0)


def _called(given: Callable[[int], Any], client: int) -> Any:
    try:
        return given(client)
    except Exception as error:  # a user's function can fail in any way
        what = first_line(error) if isinstance(error, CpflError) else f"{type(error).__name__}: {first_line(error)}"
        raise DataError(f"the function fails for client {client}: {what}") from error
