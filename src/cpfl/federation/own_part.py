"""Parts of the user's own, by `module:Class`."""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import TypeVar

from cpfl.errors import SettingError
from cpfl.models import first_line

Base = TypeVar("Base")


@lru_cache
def own_part(key: str, name: str, base: type[Base]) -> type[Base]:
    """The class that a setting names."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a user's module can fail in any way
        raise SettingError(f"{key} = {name!r} cannot be loaded: {first_line(error)}") from None
    # A run folder or a TOML file may come from somebody else: it may name a part, not just anything to call.
    if not (isinstance(found, type) and issubclass(found, base) and found is not base):
        raise SettingError(f"{key} = {name!r} is no subclass of cpfl.{base.__name__}")
    return found
