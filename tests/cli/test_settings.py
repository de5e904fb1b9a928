"""cpfl settings: every setting of an experiment, explained."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pydantic import BaseModel
from tests.pages import find

from cpfl.settings import Experiment, describe

if TYPE_CHECKING:  # there are several conftest modules: no import of it is sure to be this one
    from conftest import Command


def keys() -> list[str]:
    found = []
    for name, field in Experiment.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            found += [f"{name}.{key}" for key in section.model_fields]
        else:
            found.append(name)
    return found


def test_all_settings_are_listed(cpfl_command: Command) -> None:
    out = cpfl_command("settings").good().out
    listed = [line.split()[1] for line in out.splitlines() if line.startswith("│")]
    assert sorted(key for key in listed if key in keys()) == sorted(keys())
    assert out.splitlines()[0].strip() == "experiment"
    assert "(McMahan et al. 2017)" in out  # a full stop that ends no sentence
    for info in describe.all_settings():
        assert info.doc.split()[0].rstrip(".") in out


@pytest.mark.parametrize("key", ["cohorts", "federation.server", "stopping.min_gain"])
def test_one_setting(cpfl_command: Command, key: str) -> None:
    (info,) = describe.find(key)
    out = cpfl_command("settings", key).good().out
    assert out.splitlines()[0] == key
    for word in (info.type, info.allowed, info.effect, info.doc):
        assert word in out
    assert "always" in out if not info.effect else f"with {info.effect}" in out


def test_a_section(cpfl_command: Command) -> None:
    out = cpfl_command("settings", "stopping").good().out
    assert [line for line in out.splitlines() if line.startswith("stopping.")] == [
        key for key in keys() if key.startswith("stopping.")
    ]


def test_the_schema(cpfl_command: Command) -> None:
    schema = cpfl_command("settings", "--json").good().json
    assert set(schema["properties"]) == set(Experiment.model_fields)


def test_an_unknown_setting(cpfl_command: Command) -> None:
    for words in (("federation.sever",), ("federation.sever", "--json")):
        answer = cpfl_command("settings", *words)
        assert answer.code == 2
        assert answer.err.count("\n") == 1
        assert "did you mean federation.server" in answer.err


def test_the_page_of_the_docs_is_current(cpfl_command: Command) -> None:
    assert find("settings.md").read_text() == cpfl_command("settings", "--markdown").good().out
