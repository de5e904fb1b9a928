"""Hostile names, files and environments: every command ends in its result or in one sentence, never in a traceback."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_runs import rewrite
from tests.conftest import Answer, Command, call

QUICK = ("--set", "max_rounds=1", "--set", "distillation.epochs=1", "--engine", "reference")
MARKUP = "x[/y]"
ESCAPE = "\x1b[2J"


def sentence(answer: Answer) -> str:
    """The one sentence of a refusal."""
    assert answer.code == 2, answer
    (line,) = answer.err.splitlines()
    assert line.startswith("cpfl: ")
    assert len(line) < 500
    return line


def process(words: list[str], setup: Callable[[], None], encoding: str = "utf-8") -> tuple[int, str]:
    """The exit code and standard error of cpfl in a fork of this process, which has everything imported."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 99
        with contextlib.suppress(BaseException):
            os.dup2(write, 2)
            setup()
            sys.stdout = open(1, "w", encoding=encoding, closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", encoding=encoding, closefd=False, errors="backslashreplace")  # noqa: SIM115
            try:
                answer = raw(words)
            except BaseException as error:
                print(f"Traceback: {error!r}", file=sys.stderr)
                answer = 98
            try:  # as the interpreter does at its end
                sys.stdout.flush()
                code = answer
            except OSError as error:
                print(f"Exception ignored: {error!r}", file=sys.stderr)
            sys.stderr.flush()
        os._exit(code)
    os.close(write)
    with open(read, encoding="utf-8", errors="replace") as pipe:
        err = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), err


def raw(words: list[str]) -> int:
    import cpfl.cli

    sys.argv = ["cpfl", *words]
    try:
        cpfl.cli.main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


def output(target: Path | int) -> Callable[[], None]:
    def setup() -> None:
        os.dup2(target if isinstance(target, int) else os.open(target, os.O_WRONLY | os.O_CREAT), 1)

    return setup


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with hostile names; copy it before changing it."""
    folder = tmp_path_factory.mktemp("named")
    call("run", "digits", *QUICK, "--out", f"runs/{MARKUP}", cwd=folder).good()
    shutil.copytree(folder / "runs" / MARKUP, folder / "runs" / f"[red]{ESCAPE}:smile:")
    return folder


@pytest.fixture
def runs(named: Path, tmp_path: Path) -> Path:
    """Two runs that may be changed, a and b."""
    for name in "ab":
        shutil.copytree(named / "runs" / MARKUP, tmp_path / "runs" / name)
    return tmp_path / "runs"


def test_names_are_never_markup(named: Path) -> None:
    shown = call("list", "runs", cwd=named).good().out
    assert f"runs/{MARKUP}" in shown
    assert "[red]\\x1b[2J:smile:" in shown
    assert "\x1b" not in shown
    assert {Path(row["path"]).name for row in call("list", "runs", "--json", cwd=named).good().json} == {
        "y]",
        f"[red]{ESCAPE}:smile:",
    }
    shown = call("data", "list", "--data", named / "runs" / MARKUP, cwd=named).good().out
    assert "missing" in shown


@pytest.mark.parametrize(
    "words",
    [
        ("list", f"{MARKUP}{ESCAPE}"),
        ("report", f"{MARKUP}{ESCAPE}"),
        ("run", f"{MARKUP}{ESCAPE}"),
        ("run", "digits", "--set", f"{MARKUP}{ESCAPE}=1"),
        ("predict", f"{MARKUP}{ESCAPE}", "."),
        ("data", "get", f"{MARKUP}{ESCAPE}"),
        ("data", "import", "x", f"{MARKUP}{ESCAPE}"),
        ("settings", f"{MARKUP}{ESCAPE}"),
        ("bench", "--preset", f"{MARKUP}{ESCAPE}"),
    ],
)
def test_refusals_show_names_as_they_are(cpfl_command: Command, words: tuple[str, ...]) -> None:
    line = sentence(cpfl_command(*words))
    assert "[/y]" in line
    assert "\x1b" not in line


LONG = "a" * 300


@pytest.mark.parametrize(
    "words",
    [
        ("list", LONG),
        ("report", LONG),
        ("resume", LONG),
        ("distill", LONG),
        ("export", LONG),
        ("predict", LONG, "."),
        ("dashboard", LONG),
        ("run", LONG),
        ("run", "digits", "--out", LONG),
        ("run", "digits", "--data", LONG),
        ("run", "digits", "--set", f"data.train={LONG}"),
        ("run", "digits", "--set", f"devices.trace={LONG}"),
        ("run", "digits", "--set", "data.train=~nobody-at-all/x"),
        ("sweep", "digits", "--cohorts", "1,2", "--out", LONG),
        ("data", "import", LONG, "."),
        ("data", "check", "digits", "--set", f"data.public={LONG}"),
        ("list", "\udcff"),
        ("run", "digits", "--set", f"{LONG * 20}=1"),
    ],
)
def test_names_too_long_or_no_text(cpfl_command: Command, words: tuple[str, ...], tmp_path: Path) -> None:
    sentence(cpfl_command(*words))
    assert not list(tmp_path.iterdir())


COMMANDS = (["list", "runs"], ["list", "runs", "--json"], ["settings"], ["settings", "--markdown"], ["--version"])


@pytest.mark.parametrize("words", COMMANDS)
def test_a_full_output(named: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.chdir(named)
    code, err = process(words, output(Path("/dev/full")))
    assert (code, err) == (2, "cpfl: cannot write the output: No space left on device\n")


@pytest.mark.parametrize("words", COMMANDS)
def test_a_closed_pipe(named: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.chdir(named)
    read, write = os.pipe()
    os.close(read)
    code, err = process(words, output(write))
    os.close(write)
    assert (code, err) == (1, "")


@pytest.mark.parametrize("words", [*COMMANDS, ["data", "list"], ["--help"]])
def test_an_output_in_ascii(named: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.chdir(named)
    code, err = process(words, output(tmp_path / "out"), encoding="ascii")
    assert (code, err) == (0, "")
    text = (tmp_path / "out").read_bytes().decode("ascii")
    assert "\\u" not in text.replace("\\u001b", "")  # a name
    if words[-1] == "--markdown":
        assert "alpha" in text


def test_a_run_whose_output_is_full_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, err = process(["run", "digits", *QUICK, "--out", "run"], output(Path("/dev/full")))
    assert code == 2
    assert err.splitlines() == ["cpfl: cannot write the output: No space left on device"]
    if (tmp_path / "run" / "run.json").is_file():
        call("resume", "run", cwd=tmp_path).good()


def few_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))


def test_few_open_files(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, err = process(["report", "runs"], few_files)
    assert code == 2
    (line,) = err.splitlines()
    assert "ulimit -n" in line
    assert not (runs / "report.html").exists()
    assert not list((runs / "figures").glob("*"))


def test_homes_that_do_not_exist(cpfl_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPFL_DATA", "~nobody-at-all/x")
    for words in (("data", "list"), ("doctor",), ("run", "digits")):
        assert "CPFL_DATA" in sentence(cpfl_command(*words))


def test_a_run_that_cannot_be_read(runs: Path, tmp_path: Path, cpfl_command: Command) -> None:
    """Not by permissions, which do not bind root: one file is a link to itself, one is a folder."""
    (runs / "a" / "run.json").unlink()
    (runs / "a" / "run.json").symlink_to("run.json")
    shutil.copytree(runs / "b", runs / "c")
    (runs / "c" / "rounds" / "cohort-0000.jsonl").chmod(0)
    (runs / "d" / "run.json").mkdir(parents=True)
    rows = {Path(row["path"]).name: row for row in cpfl_command("list", "runs", "--json").good().json}
    assert rows["b"]["state"] == "finished"
    assert rows["a"]["state"].startswith("damaged: cannot read ")
    assert "symbolic links" in rows["a"]["state"]
    assert rows["d"]["state"].startswith("damaged: ")
    assert "b" in cpfl_command("list", "runs").good().out


def test_a_folder_without_permission(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    for folder in [tmp_path, *tmp_path.parents]:
        if folder != Path("/") and folder.stat().st_mode & 0o005 != 0o005:
            if folder.stat().st_uid != os.getuid() or "pytest" not in str(folder):
                pytest.skip(f"others may not enter {folder}")
            folder.chmod(0o755)
    (runs / "a").chmod(0)
    (runs / "b" / "summary.json").chmod(0)
    out = tmp_path / "out"
    out.touch()
    out.chmod(0o666)
    monkeypatch.chdir(tmp_path)

    def nobody() -> None:
        output(out)()
        os.setgid(65534)
        os.setuid(65534)

    code, err = process(["list", "runs", "--json"], nobody)
    assert (code, err) == (0, "")
    states = [row["state"] for row in json.loads(out.read_text())]
    assert len(states) == 2
    assert all("Permission denied" in state for state in states)


@pytest.mark.parametrize(
    "entries",
    [
        {"hours": "x"},
        {"hours": -1},
        {"hours": 10**400},
        {"student_accuracy": 1e308},
        {"student_accuracy": True},
        {"rounds": 1.5},
        {"cohorts": 0},
        {"seed": 2**64},
        {"teachers": []},
        {"by_cohort": [{}]},
        {"by_cohort": [{"cohort": 0, "rounds": "x", "hours": 1.0, "stop": ""}]},
        {"by_cohort": [{"cohort": 99, "rounds": 1, "hours": 1.0, "stop": ""}]},
        {"wasted_cpu_hours": "x"},
        {"wall_seconds": None},
    ],
)
def test_a_summary_of_other_types(runs: Path, cpfl_command: Command, entries: dict[str, Any]) -> None:
    from cpfl.reports.content import content

    rewrite(runs / "a" / "summary.json", **entries)
    tree = content([runs / "a", runs / "b"])
    ((damaged,), (group,)) = tree["damaged"], tree["groups"]
    assert damaged["path"].endswith("runs/a")
    assert "damaged" in damaged["reason"]
    assert [run["path"][-1] for run in group["runs"]] == ["b"]
    if "by_cohort" not in entries or entries["by_cohort"] == [{}]:
        rows = {Path(row["path"]).name: row["state"] for row in cpfl_command("list", "runs", "--json").good().json}
        assert rows["b"] == "finished"
        assert "summary.json" in rows["a"]


@pytest.mark.parametrize(
    "entries",
    [{"clock": "x"}, {"clock": float("nan")}, {"seconds": -1}, {"bytes": 10**400}, {"round": None}, {"slowest": 1e308},
     {"participants": []}, {"moving_average": "x"}, {"moving_average": 1e300}],
)  # fmt: skip
def test_records_of_other_types(runs: Path, cpfl_command: Command, entries: dict[str, Any]) -> None:
    rewrite(runs / "a" / "rounds" / "cohort-0000.jsonl", **entries)
    with (runs / "a" / "rounds" / "cohort-0000.jsonl").open("a") as file:
        file.write("\n")
    rows = {Path(row["path"]).name: row["state"] for row in cpfl_command("list", "runs", "--json").good().json}
    assert rows["b"] == "finished"
    assert rows["a"].startswith("damaged: ")
    assert "cohort-0000.jsonl" in rows["a"]


def test_later_distillations_of_other_types(runs: Path, cpfl_command: Command) -> None:
    for name, entries in {"x": {"rounds": "many"}, "y": {"hours": None}, "z": {}}.items():
        later = runs / "a" / "distillations" / name
        later.mkdir(parents=True)
        shutil.copy(runs / "a" / "summary.json", later / "summary.json")
        rewrite(later / "summary.json", **entries)
    shown = cpfl_command("list", "runs").good().out
    assert shown.count("is damaged: ") == 2
    assert shown.count("distilled again") == 1


def test_resuming_a_finished_run_with_another_summary(runs: Path, cpfl_command: Command) -> None:
    rewrite(runs / "a" / "summary.json", ensemble_accuracy="x")
    answer = cpfl_command("resume", "runs/a")
    assert answer.code == 2
    assert "summary.json is damaged" in answer.err


def test_an_experiment_that_is_a_pipe(runs: Path, cpfl_command: Command) -> None:
    (runs / "a" / "experiment.toml").unlink()
    os.mkfifo(runs / "a" / "experiment.toml")
    rows = {Path(row["path"]).name: row["state"] for row in cpfl_command("list", "runs", "--json").good().json}
    assert rows["b"] == "finished"
    assert "experiment.toml" in rows["a"]


def test_what_a_killed_report_left_goes(tmp_path: Path) -> None:
    from cpfl.reports import style

    left = tmp_path / ".drawing-killed"
    left.mkdir()
    (left / "a.svg").write_text("half")
    style.save_all({}, tmp_path)
    assert not list(tmp_path.iterdir())


def test_images_that_are_pipes_are_left_out(runs: Path, tmp_path: Path, cpfl_command: Command) -> None:
    (tmp_path / "photos" / "folder.png").mkdir(parents=True)
    os.mkfifo(tmp_path / "photos" / "pipe.png")
    assert "holds no images" in sentence(cpfl_command("predict", "runs/a", "photos"))
