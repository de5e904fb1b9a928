"""What is wrong with a setting, in one sentence that names the key, the given value and what is allowed."""

from pydantic import BaseModel, ValidationError

from cpfl.registry import did_you_mean


def sentence(error: ValidationError, root: type[BaseModel]) -> str:
    """The first mistake."""
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return unknown_key(key, root)
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        return f"{key}: {message}" if key and not message.startswith(f"{key}.") else message
    if first["type"] == "model_type":
        message = "a table of settings is needed"
    return f"{key} = {first['input']!r} is not allowed: {message[0].lower()}{message[1:]}"


def unknown_key(key: str, root: type[BaseModel]) -> str:
    """There is no such key; the nearest one that exists."""
    known = _keys(root)
    same_leaf = [k for k in known if k.split(".")[-1] == key.split(".")[-1]]
    hint = did_you_mean(key, same_leaf or known, 0.5).strip() or (f"did you mean {same_leaf[0]}?" if same_leaf else "")
    siblings = [k for k in known if k.rpartition(".")[0] == key.rpartition(".")[0]] or known
    return f"there is no setting {key}; {hint or 'known here: ' + ', '.join(siblings)}"


def _keys(root: type[BaseModel]) -> list[str]:
    keys = []
    for name, info in root.model_fields.items():
        section = info.annotation
        keys.append(name)
        if isinstance(section, type) and issubclass(section, BaseModel):
            keys += [f"{name}.{key}" for key in section.model_fields]
    return keys
