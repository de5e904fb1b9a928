"""Pluggable things by name: one that comes with the package, or a user's class as `module:Class`.

Nothing is imported before it is used, so the names can be checked without torch.
"""

import difflib
import importlib
import inspect
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Generic, TypeVar, cast, get_type_hints

from cpfl.errors import FAILURES, CpflError, SettingError, first_line, quoted, shortened

Base = TypeVar("Base")
NEEDED = {float: "a number", int: "a whole number", bool: "true or false", str: "a text"}
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class ArgumentError(ValueError):
    """An argument out of its range; a registry that builds the class puts the key of the setting before it."""


def require(name: str, value: object, allowed: bool, needed: str) -> None:
    """Refuse an argument of a constructor: `require("mu", mu, mu >= 0, "0 or more")`."""
    if not allowed:
        raise ArgumentError(f"{name} = {quoted(value)} is not allowed: {needed}")


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """A question that begins a hint, with a space after it; empty: no known word is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"did you mean {near[0]}? " if near else ""


class Registry(Generic[Base]):
    """What one setting can name.

    Parameters
    ----------
    key
        The setting, such as "federation.server".
    base
        The class that all of them extend, as "module:Class". A user's class must be a subclass: a run folder or a TOML
        file may come from somebody else, so it cannot name just anything to call.
    built_in
        The classes that come with the package as "module:Class", by name.
    """

    def __init__(self, key: str, base: str, built_in: Mapping[str, str]) -> None:
        self.key, self.names, self._args_key = key, tuple(built_in), f"{key}_args"
        self._base, self._built_in = base, dict(built_in)

    def check(self, name: str) -> str:
        """The name; one that is neither known nor a class's is refused."""
        if name not in self._built_in and not all(name.partition(":")):
            known = f"Known: {', '.join(self.names)}, or module:Class"
            raise SettingError(f"{self.key} = {quoted(name)} is unknown; {did_you_mean(name, self.names)}{known}")
        return name

    def find(self, name: str) -> type[Base]:
        """The class of this name."""
        self.check(name)
        base = load(self._base)
        try:
            found = load(self._built_in.get(name, name))
        except FAILURES as error:  # a user's module can fail in any way
            raise SettingError(f"{self.key} = {quoted(name)} cannot be loaded: {first_line(error)}") from None
        if not (isinstance(found, type) and issubclass(found, base)) or (found is base and name not in self.names):
            raise SettingError(f"{self.key} = {quoted(name)} is no subclass of cpfl.{base.__name__}")
        return cast("type[Base]", found)

    def build(self, name: str, args: Mapping[str, Any], *given: object) -> Base:
        """An object of this name, from what every such class is given and its own arguments."""
        kind = self.find(name)
        try:
            if problem := self._argument_problem(name, kind, args, len(given)):
                raise SettingError(problem)
            return kind(*given, **args)
        except CpflError:
            raise
        except ArgumentError as error:
            raise SettingError(f"{self._args_key}.{error}") from None
        except FAILURES as error:  # a user's class can fail in any way
            what = f" does not take {self._args_key} = {quoted(dict(args))}" if args else " cannot be made"
            raise SettingError(f"{self.key} = {quoted(name)}{what}: {first_line(error)}") from None

    def _argument_problem(self, name: str, kind: type, args: Mapping[str, Any], given: int) -> str:
        """The first argument that is wrong by the signature of the class, in one sentence; empty: none is."""
        subject, key = f"{self.key} = {quoted(name)}", self._args_key
        parameters = inspect.signature(kind).parameters.values()
        known = {one.name: one for one in list(parameters)[given:] if one.kind in NAMED}
        takes = f"known: {', '.join(known)}" if known else "it takes no arguments"
        if not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters):
            for word in [word for word in args if word not in known]:
                return f"{subject} does not take {key}.{shortened(word, 80)}; {did_you_mean(word, known)}{takes}"
        for word, one in known.items():
            if one.default is inspect.Parameter.empty and word not in args:
                return f"{subject} needs {key}.{word}; {takes}"
        types = _plain_types(kind) if args else {}
        for word, value in args.items():
            if word in types and not _has_type(value, types[word]):
                return f"{key}.{word} = {quoted(value)} is not allowed: {NEEDED[types[word]]} is needed"
        return ""


@lru_cache
def load(name: str) -> Any:
    """The class or function of a `module:attribute`."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _plain_types(kind: type) -> dict[str, type]:
    """Which arguments are numbers, truth values or texts, where the class says so."""
    try:
        hints = get_type_hints(kind.__init__)  # type: ignore[misc]
        return {word: hint for word, hint in hints.items() if hint in NEEDED}
    except Exception:  # a user's hints may name what is not imported at run time
        return {}


def _has_type(value: object, wanted: type) -> bool:
    """True is no number, and a whole number is a number."""
    if isinstance(value, bool):
        return wanted is bool
    return isinstance(value, (int, float) if wanted is float else wanted)
