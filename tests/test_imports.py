"""What is imported, and when: help must not wait for torch, and `import cpfl` imports names on first use."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cpfl
import cpfl.cli

HEAVY = {"torch", "numpy", "pyarrow", "vl_convert", "scipy", "sklearn", "pydantic", "safetensors", "PIL", "ray", "flwr"}
MODULES = 418  # beside the interpreter's own; typer and rich are about 340; torch alone is more than a thousand
COMMANDS = [*cpfl.cli.COMMANDS, *(f"data {name}" for name in ("list", "get", "check", "import")), "deploy local"]
USES = [
    (("--help",), 0),
    (("--version",), 0),
    (("run", "--enigne", "lanes"), 2),
    (("rum", "digits"), 2),
    *(((*command.split(), "--help"), 0) for command in COMMANDS),
]
# One interpreter is forked for every use of the program; each prints what it had imported at its end.
CALL = """
import sys
own = set(sys.modules)  # of the interpreter, and of what measures coverage
import json, os
from cpfl.cli import main
for words in json.loads(sys.argv[1]):
    if os.fork() == 0:
        sys.argv = ["cpfl", *words]
        try:
            main()
        except SystemExit as ended:
            print()
            print(json.dumps([ended.code or 0, sorted(set(sys.modules) - own)]), flush=True)
        os._exit(0)
    os.wait()
"""
# Torch, which takes seconds, is imported once; everything of cpfl after the fork.
BOTH_WAYS = """
import json, os, sys, torch
for first in sys.argv[1:]:
    if os.fork() == 0:
        import cpfl
        exec(first)
        print(json.dumps([callable(getattr(cpfl, name)) for name in ("sweep", "report", "redistill")]), flush=True)
        os._exit(0)
    os.wait()
"""


def printed(code: str, *words: str) -> list[Any]:
    """What this code prints in a fresh process, each line that is a list in JSON."""
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


def heavy(modules: list[str]) -> set[str]:
    return HEAVY & set(modules)


@pytest.fixture(scope="module")
def ends() -> dict[tuple[str, ...], tuple[int, list[str]]]:
    """How every use ended, and with which modules."""
    return dict(zip((words for words, _ in USES), printed(CALL, json.dumps([words for words, _ in USES])), strict=True))


@pytest.mark.parametrize(("words", "code"), USES)
def test_help_and_mistakes_import_nothing_heavy(
    words: tuple[str, ...], code: int, ends: dict[tuple[str, ...], tuple[int, list[str]]]
) -> None:
    ended, modules = ends[words]
    assert ended == code
    assert heavy(modules) == set()
    assert len(modules) < MODULES


def test_settings_need_no_torch() -> None:
    lines = (
        "import cpfl",
        "cpfl.CpflError",
        "cpfl.Experiment(cohorts=2)",
        "cpfl.load_experiment('digits')",
        "cpfl.run",
    )
    told = "print(json.dumps(sorted(set(sys.modules) - own)))"
    begin = "import sys; own = set(sys.modules); import json"
    first, *middle, last = printed("; ".join([begin, *(f"{line}; {told}" for line in lines)]))
    assert heavy(first) == set()
    assert len(first) < 68
    assert len(middle) == 3
    for modules in middle:
        assert heavy(modules) <= {"pydantic"}
    assert "torch" in last


def test_the_public_names_are_the_same_everywhere() -> None:
    tree = ast.parse(Path(cpfl.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    checked = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert {name: module for name, (module, _) in checked.items()} == cpfl._MODULES
    assert sorted(cpfl.__all__) == sorted([*checked, "__version__"])
    assert len(set(cpfl.__all__)) == len(cpfl.__all__)
    assert set(cpfl.__all__) <= set(dir(cpfl))
    for name, (module, own) in checked.items():
        assert module is not None
        assert getattr(cpfl, name) is getattr(sys.modules[module], own)


def test_functions_and_packages_of_one_name() -> None:
    """cpfl.sweep is the function, whichever is imported first."""
    firsts = ("import cpfl.sweeps.grid, cpfl.reports.advice, cpfl.sweeps.redistill", "cpfl.sweep, cpfl.report")
    assert printed(BOTH_WAYS, *firsts) == [[True] * 3] * 2
    with pytest.raises(AttributeError, match="no attribute 'sweeep'"):
        cpfl.sweeep  # noqa: B018


def test_a_default_that_the_help_states_without_importing_it() -> None:
    defaults = cpfl.cli.COMMANDS["report"].__defaults__
    assert defaults is not None
    *_, last = inspect.signature(cpfl.report).parameters.values()
    assert last.default in defaults
