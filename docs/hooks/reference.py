"""Pages of the reference that are made from the program itself: its commands and its Python API."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import click
import typer
from mkdocs.structure.files import File, Files

import cpfl
from cpfl.cli import app

PYTHON = """# Python

`import cpfl` is quick: a name loads its module when it is first used. Names that are not on this page may change.
"""
COMMANDS = """# Commands

`cpfl COMMAND --help` says the same in a terminal. [Exit codes and environment variables](environment.md) have a page of
their own, and so have the [settings](settings.md) that `--set` takes.
"""


def on_files(files: Files, config: Any) -> Files:
    """Called by mkdocs: add the pages."""
    files.append(File.generated(config, "reference/commands.md", content=commands()))
    files.append(File.generated(config, "reference/python.md", content=python()))
    return files


def python() -> str:
    """Every public name: functions first, then errors, then all other classes."""
    kinds: dict[str, list[str]] = {"Functions": [], "Classes": [], "Errors": [], "Other names": []}
    for name in sorted(cpfl.__all__, key=str.lower):
        value = getattr(cpfl, name)
        if not inspect.isclass(value):
            kind = "Functions" if callable(value) else "Other names"
        else:
            kind = "Errors" if issubclass(value, Exception) else "Classes"
        kinds[kind].append(name)
    lines = [PYTHON]
    for kind, names in kinds.items():
        if names:
            lines += [f"## {kind}", "", *(_item(name, kind) for name in names)]
    return "\n".join(lines) + "\n"


def _item(name: str, kind: str) -> str:
    value = getattr(cpfl, name)
    if kind == "Other names":
        return f"### {name}\n\n`{value!r}`\n"
    # Where it is defined: packages have the names of some functions.
    options = f"    options:\n      heading: cpfl.{name}\n      toc_label: {name}\n"
    return f"::: {value.__module__}.{value.__qualname__}\n{options}"


def commands() -> str:
    """Every command with its arguments and options."""
    program = typer.main.get_command(app)
    table = ["| command | what it does |", "|---|---|"]
    sections = []
    for name, command in _walk(program, "cpfl"):
        context = click.Context(command, info_name=name)
        summary, _, example = inspect.cleandoc(command.help or "").partition("Example:")
        text = " ".join(summary.replace("\x08", "").split())
        table.append(f"| [`{name}`](#{name.replace(' ', '-')}) | {_cell(text)} |")
        sections += [f"## {name}", "", text, "", "```console", f"$ {command.get_usage(context).split(': ', 1)[1]}"]
        sections += [*(f"$ {one.strip()}" for one in " ".join(example.split()).split(";") if one.strip()), "```", ""]
        rows = [_row(parameter, context) for parameter in command.get_params(context)]
        if rows := [row for row in rows if row]:
            sections += ["| argument or option | what it is | default |", "|---|---|---|", *rows, ""]
    return "\n".join([COMMANDS, *table, "", *sections]) + "\n"


def _walk(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """The commands that do something, in the order of the help text."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    for key, inner in command.commands.items():
        if not inner.hidden:
            yield from _walk(inner, f"{name} {key}")


def _row(parameter: click.Parameter, context: click.Context) -> str:
    """A line of the table of a command; empty for the option that shows help."""
    if "--help" in parameter.opts or getattr(parameter, "hidden", False):
        return ""
    if isinstance(parameter, click.Option):
        value = "" if parameter.is_flag else f" {parameter.make_metavar(context)}"
        names = ", ".join(f"`{opt}`" for opt in (*parameter.opts, *parameter.secondary_opts))
        head = names if not value else f"{names} `{value.strip()}`"
    else:
        head = f"`{parameter.make_metavar(context)}`"
    default = parameter.default
    if parameter.required:
        shown = "required"
    else:
        shown = "" if default in (None, "", False, ()) or callable(default) else f"`{default}`"
    return f"| {head} | {_cell(getattr(parameter, 'help', None) or '')} | {shown} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("\\[", "[").replace("|", "\\|")  # help texts escape brackets from markup
