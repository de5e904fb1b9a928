"""Selection parts by name: ours, or the user's `module:Class`."""

from __future__ import annotations

import difflib

from cpfl.errors import SettingError
from cpfl.federation.building import built
from cpfl.federation.oort import Oort
from cpfl.federation.own_part import own_part
from cpfl.federation.power_of_choice import PowerOfChoice
from cpfl.federation.refl import LeastAvailable
from cpfl.federation.selection import All, Cohort, Random, Selection

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
    if not all(name.partition(":")):
        near = difflib.get_close_matches(name, BUILT_IN, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise SettingError(f"{KEY} = {name!r} is unknown; {hint}Known: {', '.join(BUILT_IN)}, or module:Class")
    return own_part(KEY, name, Selection)


def selection(cohort: Cohort) -> Selection:
    """The cohort's selection part."""
    settings = cohort.federation
    return built(KEY, settings.selection, part_class(settings.selection), settings.selection_args, cohort)
