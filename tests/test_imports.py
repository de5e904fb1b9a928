"""What is imported, and when: help must not wait for torch, and `import cpfl` imports names on first use."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import cpfl
import cpfl.cli

HEAVY = {"torch", "numpy", "pyarrow", "vl_convert", "scipy", "sklearn", "pydantic", "safetensors", "PIL", "ray", "flwr"}
MODULES = 450  # typer and rich are about 350; torch alone is more than a thousand
COMMANDS = [*cpfl.cli.COMMANDS, *(f"data {name}" for name in ("list", "get", "check", "import")), "deploy local"]
# Imports happen in a process of their own; what it had imported at its end is the last line.
CALL = """
import json, sys
sys.argv = ["cpfl", *sys.argv[1:]]
from cpfl.cli import main
try:
    main()
except SystemExit as ended:
    print(json.dumps([ended.code or 0, sorted(sys.modules)]))
"""


def imported(code: str, *words: str) -> list[str]:
    """All modules in a fresh process after this code, which prints them as JSON."""
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def heavy(modules: list[str]) -> set[str]:
    return HEAVY & set(modules)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--help",), 0),
        (("--version",), 0),
        (("run", "--enigne", "lanes"), 2),
        (("rum", "digits"), 2),
        *(((*command.split(), "--help"), 0) for command in COMMANDS),
    ],
)
def test_help_and_mistakes_import_nothing_heavy(words: tuple[str, ...], code: int) -> None:
    ended, modules = imported(CALL, *words)
    assert ended == code
    assert heavy(modules) == set()  # type: ignore[arg-type]
    assert len(modules) < MODULES


def test_settings_need_no_torch() -> None:
    code = "import json, sys, cpfl; {}; print(json.dumps(sorted(sys.modules)))"
    assert heavy(imported(code.format("pass"))) == set()
    assert len(imported(code.format("pass"))) < 100
    for line in ("cpfl.CpflError", "cpfl.Experiment(cohorts=2)", "cpfl.load_experiment('digits')"):
        assert heavy(imported(code.format(line))) <= {"pydantic"}
    assert "torch" in imported(code.format("cpfl.run"))


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
    assert sorted(cpfl.__all__) == sorted(checked)
    assert len(set(cpfl.__all__)) == len(cpfl.__all__)
    assert set(cpfl.__all__) <= set(dir(cpfl))
    for name, (module, own) in checked.items():
        assert module is not None
        assert getattr(cpfl, name) is getattr(sys.modules[module], own)


def test_functions_and_packages_of_one_name() -> None:
    """cpfl.sweep is the function, whichever is imported first."""
    code = "import json, cpfl; {}; print(json.dumps([callable(getattr(cpfl, n)) for n in {}]))"
    names = ("sweep", "report", "redistill")
    for first in ("import cpfl.sweep.grid, cpfl.report.advice, cpfl.sweep.redistill", "cpfl.sweep, cpfl.report"):
        assert imported(code.format(first, names)) == [True] * 3  # type: ignore[comparison-overlap]
    with pytest.raises(AttributeError, match="no attribute 'sweeep'"):
        cpfl.sweeep  # noqa: B018


def test_a_default_that_the_help_states_without_importing_it() -> None:
    defaults = cpfl.cli.COMMANDS["report"].__defaults__
    assert defaults is not None
    *_, last = inspect.signature(cpfl.report).parameters.values()
    assert last.default in defaults
