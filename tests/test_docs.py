"""Every command and every piece of Python in README and docs runs as it is printed there; trainings are shortened."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.pages import PAGES, ROOT, blocks, commands, files, find
from tests.processes import PYTHON, Program

# Notes of blocks that are not run here, and the file that runs them instead.
ELSEWHERE = {
    "run by .ci/run": ROOT / ".ci" / "run",
    "run in tests/cli/test_data.py with a folder of its own": ROOT / "tests/cli/test_data.py",
    "run in tests/federation/test_optimizers.py": ROOT / "tests/federation/test_optimizers.py",
    "run in tests/test_user_files.py": ROOT / "tests/test_user_files.py",
    "needs real CIFAR-10; run in tests/test_real_data.py where it is there": ROOT / "tests/test_real_data.py",
    "run in tests/cluster/test_equal.py where Ray is installed": ROOT / "tests/cluster/test_equal.py",
    "run in tests/data/test_frames.py where pandas is installed": ROOT / "tests/data/test_frames.py",
    "run in tests/docs/test_own_data_notebook.py where pandas is installed": ROOT
    / "tests/docs/test_own_data_notebook.py",
    "run in tests/deploy/test_commands.py": ROOT / "tests/deploy/test_commands.py",
    "as in deploy.md, whose commands tests/deploy/test_commands.py runs": find("deploy.md"),
    "as in choose-n.md, which has fleet.toml": find("choose-n.md"),
    "run in tests/tune/test_commands.py": ROOT / "tests/tune/test_commands.py",
}

GENERATED = {"commands.md", "python.md"}  # pages that make docs adds

# More settings for commands that train; the rounds last longer than an hour, the latest moment that a page asks for.
SHORTER = {"run": ("max_rounds=100", "distillation.epochs=2"), "sweep": ("max_rounds=20", "distillation.epochs=2")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page(page: Path, tmp_path: Path) -> None:
    """Block after block, in one folder, as a reader would; each command is a process of its own."""
    shown = files(page)
    for name, text in shown.items():
        (tmp_path / name).write_text(text)
    found = list(blocks(page))
    if page.with_suffix(".ipynb").is_file():  # also a notebook: its blocks are one program
        program = "\n".join(block["text"] for block in found if block["kind"] == "python")
        ended(Program([program], tmp_path, os.environ, PYTHON), page.name)
        found = [block for block in found if block["kind"] != "python"]
    for block in found:
        if block["note"]:
            assert block["note"] in ELSEWHERE, f"{page.name}: an unknown reason not to run a block: {block['note']}"
        elif block["kind"] == "sh":
            for words in commands(block["text"]):
                shorter = [one for one in SHORTER.get(words[0], ()) if one.split(".")[0] not in without(words)]
                more = [word for setting in shorter for word in ("--set", setting)]
                ended(Program([*words, *more], tmp_path, os.environ), f"{page.name}: cpfl {shlex.join(words)}")
        elif block["kind"] == "python" and block["text"] not in shown.values():
            out = ended(Program([block["text"]], tmp_path, os.environ, PYTHON), f"{page.name}:\n{block['text']}")
            accuracy = re.match(r"\d+\.\d+", out)
            assert accuracy is None or float(accuracy[0]) > 75, f"{page.name}: it learns nothing: {out}"


def without(words: list[str]) -> set[str]:
    """Sections that have no effect in a command: what is merged is not distilled."""
    return {"distillation"} if "meetings.final=merge" in words else set()


def ended(process: Program, what: str) -> str:
    """The output of a process that must succeed."""
    code = process.wait()
    out, err = process.communicate()
    assert code == 0, f"{what}\n{out[-2000:]}{err[-2000:]}"
    return out


def test_a_shell_runs_a_block(tmp_path: Path) -> None:
    """The console script, as installed: a block of commands that train nothing."""
    (text,) = (
        block["text"]
        for block in blocks(find("custom-data-and-model.md"))
        if block["kind"] == "sh" and not block["note"]
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(["bash", "-euc", text], cwd=tmp_path, env=os.environ | {"PATH": path}, check=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_file_in_a_note_runs_the_commands(page: Path) -> None:
    """The file takes the commands from the page, or has each of them in one line: all its words in their order. Only
    settings may differ, so that a test can be shorter."""
    for block in blocks(page):
        text = ELSEWHERE[block["note"]].read_text() if block["note"] else ""
        if block["note"] and f'"{page.name}"' not in text:
            for line in block["text"].splitlines():
                command = re.sub(r" --set \S+", "", line).removeprefix("cpfl ").split()
                whole = ".*".join(rf"(?<![\w-]){re.escape(word)}(?![\w-])" for word in command)
                assert re.search(whole, text), f"{page.name}: {line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_placeholder_is_left(page: Path) -> None:
    """A word in capitals alone on a line is a placeholder."""
    assert not re.findall(r"^[A-Z_]{5,}$", page.read_text(), re.M)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links(page: Path) -> None:
    """Every file that a page links to exists."""
    for target in re.findall(r"\]\((?!https?://)([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists() or Path(target).name in GENERATED, f"{page.name} links to {target}"


def test_readme_is_read_at_once() -> None:
    """What needs more room is in docs/."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
