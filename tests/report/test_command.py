"""cpfl report: what it writes, and what it says about bad input."""

from __future__ import annotations

import json
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image
from small_runs import reseal
from tests.processes import Program

import cpfl

if TYPE_CHECKING:  # there are several conftest modules: no import of it is sure to be this one
    from conftest import Command

EVIL = "<script>alert(1)<"  # a name in a folder cannot hold the slash


class Page(HTMLParser):
    """What a browser would make of the page: its elements, its text outside scripts, what it would fetch."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.fetched: list[str] = []
        self._inside = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._inside = tag
        self.fetched += [value for key, value in attrs if key in ("src", "srcset", "data", "poster") and value]
        self.fetched += [value for key, value in attrs if tag == "link" and key == "href" and value]

    def handle_data(self, data: str) -> None:
        if self._inside not in ("script", "style"):
            self.text += data

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""


def test_the_page_and_every_figure(cpfl_command: Command, runs: Path) -> None:
    answer = cpfl_command("report", "runs").good()
    page = Page(runs / "report.html")
    assert page.fetched == ["data:,"]  # an empty icon, and nothing else
    assert (runs / "report.html").stat().st_size < 5e6
    drawn = re.findall(r'<div class="picture" data-figure="([^"]+)"', (runs / "report.html").read_text())
    assert len(drawn) == 12
    files = {file.name for file in (runs / "figures").iterdir()}
    assert files == {f"{name}.{suffix}" for name in drawn for suffix in ("svg", "pdf", "png")}
    for name in drawn:
        with Image.open(runs / "figures" / f"{name}.png") as picture:
            assert picture.width > 800
            assert len(picture.convert("RGB").getcolors(1 << 24) or ()) > 10  # not an empty page
        assert (runs / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert (runs / "figures" / f"{name}.svg").read_text().count("<path") > 3
    headline, evidence, following = answer.out.splitlines()[:3]
    assert " n = " in headline
    assert "test images, one is" in evidence
    assert following.startswith("next: cpfl sweep ")
    assert page.text.index(headline) < page.text.index(evidence) < page.text.index("The trade-off")


def test_from_python_and_as_json(cpfl_command: Command, runs: Path, tmp_path: Path) -> None:
    written = cpfl.report(runs, out=tmp_path / "other", max_drop=100)
    answer = cpfl_command("report", "runs", "--max-drop", "100", "--json").good().json
    assert written.page == tmp_path / "other" / "report.html"
    assert all(path.is_file() for path in written.figures)
    assert not (tmp_path / "runs" / "n1-seed90" / "report.html").exists()
    advice = written.content["advice"][0]
    assert answer["advice"][0]["candidates"] == advice["candidates"]
    assert answer["advice"][0]["headline"] == advice["headline"]
    assert advice["n"] == written.content["groups"][0]["n"]
    assert [Path(path).name for path in answer["figures"]] == [path.name for path in written.figures]


def test_only_run_folders_are_read(cpfl_command: Command, runs: Path) -> None:
    """Neither data nor models: a report needs only the records."""
    for name in ("models", "checkpoints", "snapshots"):
        for folder in runs.glob(f"*/{name}"):
            shutil.rmtree(folder)
    for path in runs.glob("*/experiment.toml"):
        path.write_text(path.read_text().replace('train = "digits-grainy"', 'train = "nowhere"'))
        reseal(path.parent)
    cpfl_command("report", "runs").good()


def test_a_single_run_and_several_folders(cpfl_command: Command, runs: Path, tmp_path: Path) -> None:
    one = cpfl_command("report", "runs/n2-seed90", "--out", "one").good()
    assert "Only n = 2 has been run" in one.out
    words = ("runs/n1-seed90", "runs/n2-seed90", "runs/n2-seed90", "--out", "two", "--json")
    assert cpfl_command("report", *words).good().json["advice"][0]["n"] in (1, 2)
    assert "2 runs" in Page(tmp_path / "two" / "report.html").text


def test_an_unfinished_run_is_shown_as_such(cpfl_command: Command, runs: Path, unfinished: Path) -> None:
    shutil.copytree(unfinished, runs / "open")
    (runs / "n4-seed91" / "summary.json").unlink()
    cpfl_command("report", "runs").good()
    page = Page(runs / "report.html")
    assert "2 runs are unfinished" in page.text
    assert "unfinished: 4 of 4 cohorts stopped" in page.text
    assert re.search(r"unfinished: \d of 4 cohorts stopped.*unfinished: \d of 4", page.text, re.S)


def test_only_unfinished_runs(cpfl_command: Command, unfinished: Path, tmp_path: Path) -> None:
    shutil.copytree(unfinished, tmp_path / "runs" / "open")
    answer = cpfl_command("report", "runs").good()
    assert "No run is finished yet" in answer.out
    assert 'data-figure="validation-loss"' in (tmp_path / "runs" / "report.html").read_text()


def test_a_damaged_run_is_named(cpfl_command: Command, runs: Path) -> None:
    (runs / "n2-seed90" / "run.json").write_text("{")
    answer = cpfl_command("report", "runs").good()
    assert "runs/n2-seed90" in answer.err
    page = Page(runs / "report.html")
    assert "1 folder is damaged" in page.text
    assert "runs/n2-seed90" in page.text
    assert "5 runs" in page.text


def test_every_kind_of_damage_is_named(cpfl_command: Command, runs: Path) -> None:
    """One run is left to report on."""
    names = ("n1-seed91", "n2-seed90", "n2-seed91", "n4-seed90", "n4-seed91")
    for name, damage in zip(names, ("", "{", '{"schema": 99}', '{"schema": 1}', "[]"), strict=True):
        (runs / name / "run.json").write_text(damage)
    answer = cpfl_command("report", "runs").good()
    page = Page(runs / "report.html")
    assert "5 folders are damaged" in page.text
    for name in names:
        assert f"runs/{name}" in answer.err
        assert f"runs/{name}" in page.text
    assert "Only n = 1 has been run" in answer.out


def test_nothing_but_damage(cpfl_command: Command, tmp_path: Path) -> None:
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "run.json").write_text("{")
    cpfl_command("report", "runs").good()
    assert "None of these runs can be read" in Page(tmp_path / "runs" / "report.html").text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("empty",), "there are no runs in empty"),
        (("missing",), "there is no folder missing"),
        (("runs", "--max-drop", "-1"), "max_drop = -1 is not allowed: points of accuracy, 0 to 100"),
        (("runs", "--max-drop", "nan"), "max_drop = nan is not allowed"),
        (("runs", "--out", "file"), "cannot write file"),
    ],
)
def test_a_mistake_is_one_sentence(
    cpfl_command: Command, runs: Path, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    before = sorted(tmp_path.rglob("*"))
    answer = cpfl_command("report", *words)
    assert answer.code == 2
    assert len(answer.err.splitlines()) == 1
    assert said in answer.err
    assert sorted(tmp_path.rglob("*")) == before


def test_names_cannot_act(cpfl_command: Command, runs: Path, tmp_path: Path) -> None:
    """Neither a folder's name, nor an experiment's, nor what a damaged file holds becomes an element."""
    folder = tmp_path / EVIL
    runs.rename(folder)
    path = folder / "n1-seed90" / "experiment.toml"
    path.write_text(path.read_text().replace('name = "digits"', 'name = "<script>alert(2)</script>"'))
    path = folder / "n2-seed90" / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hours": "</script><script>alert(3)</script>"}))
    path = folder / "n4-seed90" / "run.json"
    carried = {"source": "<img src=x onerror=alert(4)>", "by_n": [], "at": [], "remarks": ["<b>bold</b>"]}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"published": carried}))
    for name in ("n1-seed90", "n4-seed90"):
        reseal(folder / name)
    plain = cpfl_command("report", "other", cwd=_copy_of(folder, tmp_path / "plain")).good()
    assert plain.code == 0
    cpfl_command("report", EVIL).good()
    page = Page(folder / "report.html")
    usual = Page(tmp_path / "plain" / "other" / "report.html")
    assert page.tags == usual.tags  # as many elements as without such names
    assert "img" not in page.tags
    assert "b" not in page.tags
    assert f"{EVIL}/n2-seed91" in page.text
    assert "alert(2)" in page.text


def _copy_of(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to / "other")
    return to


def test_a_name_that_is_no_text(cpfl_command: Command, runs: Path) -> None:
    os.rename(os.fsencode(runs / "n1-seed90"), os.fsencode(runs) + b"/n1-\xff")
    cpfl_command("report", "runs").good()
    assert "runs/n1-�" in Page(runs / "report.html").text


def test_figures_that_are_drawn_no_more_are_removed(cpfl_command: Command, runs: Path, tmp_path: Path) -> None:
    """Those of the previous report, by name; other files stay."""
    other = Path(shutil.copytree(runs / "n2-seed90", runs / "other"))
    path = other / "experiment.toml"
    path.write_text(path.read_text().replace("batch_size = 20", "batch_size = 21", 1))
    reseal(other)
    cpfl_command("report", "runs").good()
    before = {file.name for file in (runs / "figures").iterdir()}
    assert any(name.startswith("all-hours-against-n") for name in before)
    (runs / "figures" / "all-mine.svg").write_text("mine")
    (tmp_path / "outside.svg").write_text("mine")
    page = runs / "report.html"
    page.write_text(page.read_text() + '<div class="picture" data-figure="../../outside"></div>')
    shutil.rmtree(other)
    answer = cpfl_command("report", "runs", "--json").good().json
    after = {file.name for file in (runs / "figures").iterdir()}
    assert after == {Path(path).name for path in answer["figures"]} | {"all-mine.svg"}
    assert not after & before
    assert (tmp_path / "outside.svg").is_file()


def test_a_full_disk_is_one_sentence(runs: Path) -> None:
    """No figure is left behind."""
    process = Program(("report", "runs"), runs.parent, os.environ, "tests.report.small_disk:cpfl")
    code = process.wait()
    _, err = process.communicate()
    assert code == 2, err
    assert len(err.splitlines()) == 1
    assert "cannot write runs/figures" in err
    assert not (runs / "report.html").exists()
    assert list((runs / "figures").iterdir()) == []
