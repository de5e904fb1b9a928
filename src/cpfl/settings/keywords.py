"""Settings as arguments of a function: keywords, sections as dicts, and dotted keys in a dict."""

from collections.abc import Iterable, Mapping
from typing import Any

from cpfl.errors import SettingError
from cpfl.registry import did_you_mean
from cpfl.settings.experiment import Experiment, unknown_key
from cpfl.settings.types import Section


def by_dotted_key(
    settings: Mapping[str, Any], keywords: Mapping[str, Any], arguments: Iterable[str] = ()
) -> dict[str, Any]:
    """All of them by dotted key, sections opened: a section given as a dict changes only what is in it.

    `arguments` are those of the function, for a hint where a keyword is neither one of them nor a setting.
    """
    for name in keywords:
        if name not in Experiment.model_fields:
            hint = did_you_mean(name, arguments)
            raise SettingError(f"there is no argument or setting {name}; {hint.strip()}" if hint else unknown_key(name))
        if name in settings:
            raise SettingError(f"{name} is given twice: as a keyword and in settings")
    found: dict[str, Any] = {}
    for key, value in {**settings, **keywords}.items():
        field = Experiment.model_fields.get(key)
        is_section = field is not None and isinstance(field.annotation, type) and issubclass(field.annotation, Section)
        opened = {f"{key}.{leaf}": inner for leaf, inner in value.items()} if is_section and value else {key: value}
        for leaf, inner in opened.items():
            if leaf in found and found[leaf] != inner:
                raise SettingError(f"{leaf} is given twice, as {found[leaf]!r} and as {inner!r}")
            found[leaf] = inner
    return found
