"""Settings that were given and have no effect under the others: refused in one sentence instead of ignored."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from cpfl.errors import SettingError
from cpfl.settings.distillation import RECIPES
from cpfl.settings.experiment import Experiment, fields
from cpfl.settings.types import Section, When


def check(experiments: Collection[Experiment], keys: Iterable[str], replaced: Collection[str] = ()) -> None:
    """Refuse the first of these dotted keys that has no effect in any of the experiments.

    A key whose effect was lost by what was `replaced` on top of it is not the user's mistake.
    """
    for key in keys:
        needs = [unmet(experiment, key) for experiment in experiments]
        if needs and all(needs) and (key in replaced or not any(word in replaced for word in needs[0].split())):
            raise SettingError(f"{key} has no effect here: it needs {needs[0]}")


def given(experiment: Experiment) -> list[str]:
    """Dotted keys of all settings that were given, by a file or in Python, and not by a default or a recipe."""
    keys = []
    for name in experiment.model_fields_set:
        section = getattr(experiment, name)
        if not isinstance(section, Section):
            keys.append(name)
            continue
        recipe = RECIPES.get(experiment.distillation.recipe, {}) if name == "distillation" else {}
        inner = sorted(section.model_fields_set)
        keys += [f"{name}.{key}" for key in inner if key not in recipe or getattr(section, key) != recipe[key]]
    return keys


def flat(experiment: Experiment) -> dict[str, Any]:
    """Every setting by its dotted key."""
    found: dict[str, Any] = {}
    for name, value in experiment.model_dump(mode="json").items():
        found |= {f"{name}.{key}": inner for key, inner in value.items()} if isinstance(value, dict) else {name: value}
    return found


def leaves(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """All values of nested tables by dotted key, an empty table as a value."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= leaves(value, f"{above}{key}.") if isinstance(value, dict) and value else {f"{above}{key}": value}
    return found


def conditions(key: str) -> Iterator[str]:
    """The conditions under which a setting has an effect, their keys written out."""
    section, *leaf = key.split(".")[:2]
    field = fields().get(".".join([section, *leaf]))
    for metadata in field.metadata if field else ():
        if isinstance(metadata, When):
            for condition in metadata.conditions:
                own = f"{section}." if leaf else ""
                parts = (part if "." in part.split(" ")[0] else own + part for part in condition.split(" or "))
                yield " or ".join(part.removeprefix(".") for part in parts)


def unmet(experiment: Experiment, key: str) -> str:
    """The first condition of a setting that does not hold; empty: it has an effect."""
    return next((condition for condition in conditions(key) if not experiment.holds(condition)), "")
