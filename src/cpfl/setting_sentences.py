"""What is wrong with a setting, in one sentence that names the key, what was given and what is allowed."""

from __future__ import annotations

import difflib

from pydantic import BaseModel, ValidationError


def sentence(error: ValidationError, root: type[BaseModel]) -> str:
    """The first mistake."""
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return unknown(key, root)
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        return f"{key}: {message}" if key else message
    if first["type"] == "model_type":
        message = "a table of settings is needed"
    return f"{key} = {first['input']!r} is not allowed: {message[0].lower()}{message[1:]}"


def unknown(key: str, root: type[BaseModel]) -> str:
    """There is no such key; the nearest that there is."""
    known = _keys(root)
    same_leaf = [k for k in known if k.split(".")[-1] == key.split(".")[-1]]
    near = same_leaf or difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    siblings = [k for k in known if k.rpartition(".")[0] == key.rpartition(".")[0]] or known
    hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(siblings)}"
    return f"there is no setting {key}; {hint}"


def _keys(root: type[BaseModel]) -> list[str]:
    keys = []
    for name, info in root.model_fields.items():
        section = info.annotation
        keys.append(name)
        if isinstance(section, type) and issubclass(section, BaseModel):
            keys += [f"{name}.{key}" for key in section.model_fields]
    return keys
