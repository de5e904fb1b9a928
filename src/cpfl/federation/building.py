"""Parts from their classes and the arguments that an experiment gives them."""

from __future__ import annotations

import difflib
import inspect
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from cpfl.errors import CpflError, SettingError
from cpfl.models import first_line

Part = TypeVar("Part")
NEEDED = {float: "a number", int: "a whole number", bool: "true or false", str: "a text"}
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def built(key: str, name: str, kind: type[Part], args: Mapping[str, Any], *given: object) -> Part:
    """The part that `key` names, from what every such part is given and its own arguments, those of `key`_args."""
    try:
        if trouble := _trouble(key, name, kind, args, len(given)):
            raise SettingError(trouble)
        return kind(*given, **args)
    except CpflError:
        raise
    except Exception as error:  # a user's class can fail in any way
        told = f" does not take {key}_args = {dict(args)}" if args else " cannot be made"
        raise SettingError(f"{key} = {name!r}{told}: {first_line(error)}") from None


def _trouble(key: str, name: str, kind: type, args: Mapping[str, Any], given: int) -> str:
    """The first argument that is wrong by the class's signature, in one sentence; empty: none is."""
    parameters = list(inspect.signature(kind).parameters.values())
    first = [one.name for one in parameters if one.kind in POSITIONAL][:given]
    known = {one.name: one for one in parameters if one.kind in NAMED and one.name not in first}
    takes = f"known: {', '.join(known)}" if known else "it takes no arguments"
    if not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters):
        for word in [word for word in args if word not in known]:
            near = difflib.get_close_matches(word, known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            return f"{key} = {name!r} does not take {key}_args.{word}; {hint}{takes}"
    for word, one in known.items():
        if one.default is inspect.Parameter.empty and word not in args:
            return f"{key} = {name!r} needs {key}_args.{word}; {takes}"
    types = _types(kind) if args else {}
    for word, value in args.items():
        if word in types and not _fits(value, types[word]):
            return f"{key}_args.{word} = {value!r} is not allowed: {NEEDED[types[word]]} is needed"
    return ""


def _types(kind: type) -> dict[str, type]:
    """Which arguments are plain numbers, truths or texts, where the class says so."""
    try:
        hints = typing.get_type_hints(kind.__init__)  # type: ignore[misc]
        return {word: hint for word, hint in hints.items() if hint in NEEDED}
    except Exception:  # a user's hints may name what is not there as it runs
        return {}


def _fits(value: object, wanted: type) -> bool:
    """true is no number, and a whole number is a number."""
    if isinstance(value, bool):
        return wanted is bool
    return isinstance(value, (int, float) if wanted is float else wanted)
