"""A run that another process writes: every line read once, cuts and damage noticed, sums as the report's."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import cpfl
from cpfl.board import following
from cpfl.board.board import Board
from cpfl.board.following import Followed
from cpfl.board.pace import Pace
from cpfl.board.tail import Tail
from cpfl.errors import DamagedError
from cpfl.experiment import Experiment
from cpfl.report.reading import read
from cpfl.report.trail import LONGEST, Trail
from cpfl.runs import records
from cpfl.runs.folder import RunFolder

MOST = 1 << 20


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "runs" / "one"))


def numbers(tail: Tail, most: int = MOST) -> list[int]:
    return [line["i"] for line in tail.news(most)[0]]


def test_every_line_once(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    tail = Tail(path)
    assert tail.news(MOST) == ([], True)
    records.append(path, {"i": 1}, {"i": 2})
    assert numbers(tail) == [1, 2]
    assert numbers(tail) == []
    with path.open("ab") as file:
        file.write(b'{"i":3}\n{"i"')  # the last line is on its way
    assert numbers(tail) == [3]
    assert tail.left == 0
    with path.open("ab") as file:
        file.write(b":4}\n")
    assert tail.news(MOST) == ([{"i": 4}], False)


def test_bytes_that_were_read_are_not_read_again(tmp_path: Path) -> None:
    """What was read may become anything: nobody looks at it again."""
    path = tmp_path / "lines.jsonl"
    tail = Tail(path)
    records.append(path, {"i": 1}, {"i": 2})
    assert numbers(tail) == [1, 2]
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.write(b"x" * (size - 1))
    records.append(path, {"i": 3})
    assert numbers(tail) == [3]


def test_only_so_much_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    records.append(path, *({"i": i} for i in range(1000)))
    tail, found, looks = Tail(path), [], 0
    while not looks or tail.left:
        before, looks = tail.read, looks + 1
        found += numbers(tail, 500)
        assert 500 <= tail.read - before < 520 or not tail.left
    assert found == list(range(1000))
    assert looks == pytest.approx(path.stat().st_size / 510, abs=2)


@pytest.mark.parametrize("how", ["cut", "replaced"])
def test_a_file_that_begins_anew(tmp_path: Path, how: str) -> None:
    path = tmp_path / "lines.jsonl"
    records.append(path, {"i": 1}, {"i": 2})
    tail = Tail(path)
    assert numbers(tail) == [1, 2]
    if how == "cut":
        records.cut(path, 0)
        records.append(path, {"i": 7})
    else:
        records.append(tmp_path / "other", {"i": 7}, {"i": 8}, {"i": 9})
        os.replace(tmp_path / "other", path)
    lines, begins = tail.news(MOST)
    assert begins
    assert lines[0] == {"i": 7}


def test_neither_a_pipe_nor_nonsense_stops_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DamagedError, match="no plain file"):
        Tail(tmp_path / "pipe").news(MOST)
    (tmp_path / "lines").write_text("{\n")
    with pytest.raises(DamagedError, match="not JSON"):
        Tail(tmp_path / "lines").news(MOST)


def line(round: int, loss: float | None = 1.0, **changes: Any) -> dict[str, Any]:
    return {
        "cohort": 0, "round": round, "participants": [3, 4], "loss": 2.0, "validation": loss, "reporting": 2,
        "average": loss, "best": round % 10 == 0, "seconds": 10.0, "clock": 10.0 * round, "slowest": 3 + round % 2,
        "cpu_seconds": 6.0, "bytes": 100, "samples": 50, "stop": "",
    } | changes  # fmt: skip


def test_a_trail_is_bounded_and_even() -> None:
    trail = Trail().extend(line(i, 1 / i) for i in range(1, 20_001))
    hours, losses = zip(*trail.curve, strict=True)
    assert LONGEST / 2 <= len(hours) <= LONGEST + 1
    assert (hours[0], hours[-1]) == (10 / 3600, 200_000 / 3600)
    assert losses[-1] == 1 / 20_000
    gaps = {round((b - a) * 360) for a, b in itertools.pairwise(hours[:-1])}
    assert len(gaps) == 1
    assert (trail.rounds, trail.samples, trail.bytes, trail.best_round) == (20_000, 1_000_000, 2_000_000, 20_000)
    assert trail.busy == pytest.approx(3 * 20_000)
    assert trail.slowest == {3: 100_000.0, 4: 100_000.0}


def test_a_foreign_record_is_damage() -> None:
    for changes in ({"clock": "x"}, {"participants": []}, {"slowest": None}, {"bytes": {}}):
        with pytest.raises(DamagedError, match="not that of a round"):
            Trail().add(line(1, **changes))


def test_followed_is_as_read_at_once(run: Path) -> None:
    """However the records came in, the sums are those of the report."""
    whole = read(run).trails
    kept = {path: path.read_bytes() for path in (run / "rounds").iterdir()}
    for path in kept:
        path.write_bytes(b"")
    followed = Followed(run)
    followed.look()
    for end in range(0, max(map(len, kept.values())) + 300, 300):
        for path, text in kept.items():
            path.write_bytes(text[:end])
        followed.read(MOST)
    assert [vars(trail) for trail in followed.trails] == [vars(trail) for trail in whole]
    assert followed.caught_up


def test_a_resumed_run_that_was_cut_between_two_looks(run: Path) -> None:
    path = run / "rounds" / "cohort-0000.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4]))
    followed = Followed(run)
    followed.look()
    followed.read(MOST)
    assert followed.trails[0].rounds == 4
    longer = json.dumps(json.loads(lines[1]) | {"note": "x" * 2000}).encode() + b"\n"  # grown beyond what was read
    path.write_bytes(lines[0] + longer + b"".join(lines[2:]))
    for _ in range(2):
        followed.read(MOST)
    assert vars(followed.trails[0]) == vars(read(run).trails[0])
    assert not followed.damage


def test_another_run_under_the_same_name(run: Path, unfinished: Path) -> None:
    followed = Followed(run)
    followed.look()
    followed.read(MOST)
    assert followed.finished
    shutil.rmtree(run)
    shutil.copytree(unfinished, run)
    assert followed.look()
    followed.read(MOST)
    assert not followed.finished
    assert [vars(trail) for trail in followed.trails] == [vars(trail) for trail in read(run).trails]


def test_what_has_not_changed_is_not_read(run: Path) -> None:
    followed = Followed(run)
    assert followed.look()
    assert followed.read(MOST) == sum(path.stat().st_size for path in (run / "rounds").iterdir())
    assert not followed.look()
    assert followed.read(MOST) == 0


def test_pace_is_that_of_the_records() -> None:
    pace = Pace(began=1000.0)
    assert pace.samples_per_second is None
    pace.tick(1010.0, 500, 0)
    assert pace.samples_per_second == 50
    for i in range(1, 100):
        pace.tick(1010.0 + i, 500 + 200 * i, 0)  # it became faster
    assert pace.samples_per_second == pytest.approx(200)
    pace.tick(2000.0, 100, 0)  # resumed, cut back
    assert pace.samples_per_second is None


def test_time_left_has_bounds() -> None:
    experiment = Experiment(cohorts=1, clients=2, max_rounds=100, stopping={"patience": 20})
    trail = Trail().extend(line(i) for i in range(1, 36))  # 35 rounds, the best was the 30th
    pace = Pace(began=0.0)
    assert pace.training_left(experiment, [[3, 4]], [trail]) is None
    pace.tick(35.0, trail.samples, 0)  # a round a second
    assert pace.training_left(experiment, [[3, 4]], [trail]) == pytest.approx((15, 65))
    spent = trail.cpu_seconds  # of 35 rounds; as much again is allowed
    limited = Experiment(cohorts=1, clients=2, max_rounds=100, stopping={"rule": "joint", "cpu_hours": spent / 1800})
    assert (pace.training_left(limited, [[3, 4]], [trail]) or (0, 0))[1] == pytest.approx(35)
    assert pace.training_left(limited, [[3, 4]], [trail], {0: spent / 35 * 45})[1] == pytest.approx(10)  # judged since
    pace.tick(36.0, trail.samples, 2)
    pace.tick(38.0, trail.samples, 4)
    assert pace.distilling_left(10) == pytest.approx((6, 6))


def test_a_board_reads_a_part_at_a_time(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cpfl.board.board.MOST", 700)
    monkeypatch.setattr("cpfl.board.board.OFTEN", 0.0)
    monkeypatch.setattr("cpfl.board.board.SHARE", 1e9)
    watched = Board(run.parent)
    assert b"Still reading: " in watched.page()
    looks = 1
    while b"Still reading: " in watched.page():
        looks += 1
    assert looks > 4
    (followed,) = watched._runs.values()
    assert [vars(trail) for trail in followed.trails] == [vars(trail) for trail in read(run).trails]


def test_a_board_does_not_look_more_often_than_it_may(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("cpfl.board.board.time.monotonic", lambda: now[0])
    watched = Board(run.parent)
    first, tag = watched.fresh()
    shutil.copytree(run, run.parent / "two")
    assert watched.fresh() == (first, tag)  # within the same second nothing is read
    now[0] = watched._next
    assert watched.fresh() != (first, tag)


def test_a_link_out_of_the_folder_is_named_and_not_followed(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "looked-at"
    folder.mkdir()
    (folder / "out").symlink_to(run, target_is_directory=True)
    text = Board(folder).page().decode()
    assert "it is a link that leads out of" in text
    assert 'data-figure="' not in text.split("<script")[0]


def test_a_damaged_run_is_named_and_the_others_drawn(run: Path) -> None:
    other = Path(shutil.copytree(run, run.parent / "two"))
    path = other / "rounds" / "cohort-0001.jsonl"
    path.write_text("nonsense\n" + path.read_text())
    (other / "summary.json").unlink()
    text = Board(run.parent).page().decode()
    assert "1 folder is damaged" in text
    assert "a line is not JSON" in text
    assert 'data-figure="trade-off"' in text


def test_nothing_is_written(run: Path) -> None:
    def seen() -> dict[Path, tuple[int, int]]:
        return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in run.parent.rglob("*")}

    before = seen()
    watched = Board(run.parent)
    watched.page()
    watched.fresh()
    assert seen() == before


def test_the_same_page_as_the_report(run: Path) -> None:
    """What a report draws of finished runs, the board draws too, equally."""
    from cpfl.report.content import all_figures

    watched = Board(run.parent)
    watched.page()
    drawn = {figure["id"]: figure["spec"] for figure in all_figures(watched._tree)}
    written = cpfl.report(run.parent)
    assert drawn == {figure["id"]: figure["spec"] for figure in all_figures(written.content)}


def test_a_worker_that_died_is_no_second_start(unfinished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(unfinished, tmp_path / "run"))
    folder = RunFolder.open(run)
    (run / "log.jsonl").unlink()
    folder.log("started", engine="ray", device="cpu")
    folder.log("worker died", worker="worker 0", run_again=[])
    assert following._began(run) is not None
    folder.log("resumed", engine="ray", device="cpu")
    assert following._began(run) is None
