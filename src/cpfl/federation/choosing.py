"""Selection parts by name: ours, or the user's `module:Class`."""

from __future__ import annotations

import difflib
import importlib

from cpfl.errors import SettingError
from cpfl.federation.oort import Oort
from cpfl.federation.power_of_choice import PowerOfChoice
from cpfl.federation.refl import LeastAvailable
from cpfl.federation.selection import All, Cohort, Random, Selection
from cpfl.models import first_line

BUILT_IN: dict[str, type[Selection]] = {
    "random": Random,
    "all": All,
    "oort": Oort,
    "refl": LeastAvailable,
    "power-of-choice": PowerOfChoice,
}
KEY = "federation.selection"


def part_class(name: str) -> type[Selection]:
    """The class that federation.selection names."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    module, colon, attribute = name.partition(":")
    if not (colon and module and attribute):
        near = difflib.get_close_matches(name, BUILT_IN, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise SettingError(f"{KEY} = {name!r} is unknown; {hint}Known: {', '.join(BUILT_IN)}, or module:Class")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a user's module can fail in any way
        raise SettingError(f"{KEY} = {name!r} cannot be loaded: {first_line(error)}") from None
    # A run folder or a TOML file may come from somebody else: it may name a selection, not just anything to call.
    if not (isinstance(found, type) and issubclass(found, Selection)):
        raise SettingError(f"{KEY} = {name!r} is no subclass of cpfl.Selection")
    return found


def selection(cohort: Cohort) -> Selection:
    """The cohort's selection part."""
    settings = cohort.federation
    found = part_class(settings.selection)
    try:
        return found(cohort, **settings.selection_args)
    except (TypeError, ValueError) as error:
        told = first_line(error)
        raise SettingError(f"{KEY} = {settings.selection!r} does not take federation.selection_args: {told}") from None
