"""A run that another process writes: every line is read once, truncation and damage are noticed, sums are right."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import cpfl
from cpfl.dashboard import follow
from cpfl.dashboard.dashboard import Dashboard
from cpfl.dashboard.follow import Followed, Tail
from cpfl.dashboard.live import worker_pool
from cpfl.dashboard.work import samples_left
from cpfl.errors import DamagedError
from cpfl.reports.reading import LONGEST, CohortHistory, read
from cpfl.runs import records
from cpfl.runs.folder import RunFolder
from cpfl.settings import Experiment
from cpfl.terminal.progress import Expected, Throughput

MOST = 1 << 20


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "runs" / "one"))


def numbers(tail: Tail, most: int = MOST) -> list[int]:
    return [line["i"] for line in tail.new_lines(most)[0]]


def test_every_line_once(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    tail = Tail(path)
    assert tail.new_lines(MOST) == ([], True)
    records.append(path, {"i": 1}, {"i": 2})
    assert numbers(tail) == [1, 2]
    assert numbers(tail) == []
    with path.open("ab") as file:
        file.write(b'{"i":3}\n{"i"')  # the last line is incomplete
    assert numbers(tail) == [3]
    assert tail.unread == 0
    with path.open("ab") as file:
        file.write(b":4}\n")
    assert tail.new_lines(MOST) == ([{"i": 4}], False)


def test_bytes_that_were_read_are_not_read_again(tmp_path: Path) -> None:
    """Bytes before the position may change: they are not read again."""
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
    tail, found, reads = Tail(path), [], 0
    while not reads or tail.unread:
        before, reads = tail.read, reads + 1
        found += numbers(tail, 500)
        assert 500 <= tail.read - before < 520 or not tail.unread
    assert found == list(range(1000))
    assert reads == pytest.approx(path.stat().st_size / 510, abs=2)


@pytest.mark.parametrize("how", ["truncated", "replaced"])
def test_a_file_that_starts_again(tmp_path: Path, how: str) -> None:
    path = tmp_path / "lines.jsonl"
    records.append(path, {"i": 1}, {"i": 2})
    tail = Tail(path)
    assert numbers(tail) == [1, 2]
    if how == "truncated":
        records.truncate(path, 0)
        records.append(path, {"i": 7})
    else:
        records.append(tmp_path / "other", {"i": 7}, {"i": 8}, {"i": 9})
        os.replace(tmp_path / "other", path)
    lines, begins = tail.new_lines(MOST)
    assert begins
    assert lines[0] == {"i": 7}


def test_neither_a_pipe_nor_nonsense_stops_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DamagedError, match="no plain file"):
        Tail(tmp_path / "pipe").new_lines(MOST)
    (tmp_path / "lines").write_text("{\n")
    with pytest.raises(DamagedError, match="not JSON"):
        Tail(tmp_path / "lines").new_lines(MOST)


def line(round: int, loss: float | None = 1.0, **changes: Any) -> dict[str, Any]:
    return {
        "cohort": 0, "round": round, "participants": [3, 4], "loss": 2.0, "validation": loss, "reporting": 2,
        "moving_average": loss, "best": round % 10 == 0, "seconds": 10.0, "clock": 10.0 * round,
        "slowest": 3 + round % 2, "cpu_seconds": 6.0, "bytes": 100, "samples": 50, "stop": "",
    } | changes  # fmt: skip


def test_a_history_is_bounded_and_even() -> None:
    history = CohortHistory().extend(line(i, 1 / i) for i in range(1, 20_001))
    hours, losses = zip(*history.curve, strict=True)
    assert LONGEST / 2 <= len(hours) <= LONGEST + 1
    assert (hours[0], hours[-1]) == (10 / 3600, 200_000 / 3600)
    assert losses[-1] == 1 / 20_000
    gaps = {round((b - a) * 360) for a, b in itertools.pairwise(hours[:-1])}
    assert len(gaps) == 1
    assert (history.rounds, history.samples, history.bytes, history.best_round) == (
        20_000,
        1_000_000,
        2_000_000,
        20_000,
    )
    assert history.busy == pytest.approx(3 * 20_000)
    assert history.slowest == {3: 100_000.0, 4: 100_000.0}


def test_a_record_of_another_shape_is_damage() -> None:
    for changes in ({"clock": "x"}, {"participants": []}, {"slowest": None}, {"bytes": {}}):
        with pytest.raises(DamagedError, match="not that of a round"):
            CohortHistory().extend([line(1, **changes)])


def test_followed_is_as_read_at_once(run: Path) -> None:
    """However the records were read, the sums are those of the report."""
    whole = read(run).histories
    kept = {path: path.read_bytes() for path in (run / "rounds").iterdir()}
    for path in kept:
        path.write_bytes(b"")
    followed = Followed(run, run.parent)
    followed.reload()
    for end in range(0, max(map(len, kept.values())) + 300, 300):
        for path, text in kept.items():
            path.write_bytes(text[:end])
        followed.read(MOST)
    assert [vars(history) for history in followed.histories] == [vars(history) for history in whole]
    assert followed.caught_up


def test_a_resumed_run_that_was_truncated_between_two_updates(run: Path) -> None:
    (run / "summary.json").unlink()  # a finished one has all its records
    path = run / "rounds" / "cohort-0000.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4]))
    followed = Followed(run, run.parent)
    followed.reload()
    followed.read(MOST)
    assert followed.histories[0].rounds == 4
    longer = json.dumps(json.loads(lines[1]) | {"note": "x" * 2000}).encode() + b"\n"  # grown beyond what was read
    path.write_bytes(lines[0] + longer + b"".join(lines[2:]))
    (run / "models" / "cohort-0000.safetensors").unlink()  # it vouches for the records as they were
    for _ in range(2):
        followed.read(MOST)
    assert vars(followed.histories[0]) == vars(read(run).histories[0])
    assert not followed.damage


def test_another_run_under_the_same_name(run: Path, unfinished: Path) -> None:
    followed = Followed(run, run.parent)
    followed.reload()
    followed.read(MOST)
    assert followed.finished
    shutil.rmtree(run)
    shutil.copytree(unfinished, run)
    assert followed.reload()
    followed.read(MOST)
    assert not followed.finished
    assert [vars(history) for history in followed.histories] == [vars(history) for history in read(run).histories]


def test_what_has_not_changed_is_not_read(run: Path) -> None:
    followed = Followed(run, run.parent)
    assert followed.reload()
    assert followed.read(MOST) == sum(path.stat().st_size for path in (run / "rounds").iterdir())
    assert not followed.reload()
    assert followed.read(MOST) == 0


def test_throughput_is_that_of_the_records() -> None:
    samples = Throughput(began=1000.0)
    assert samples.rate == 0
    samples.tick(1010.0, 500)
    assert samples.rate == 50
    for i in range(1, 100):
        samples.tick(1010.0 + i, 500 + 200 * i)  # it became faster
    assert samples.rate == pytest.approx(200)
    samples.tick(2000.0, 100)  # resumed from an earlier round
    assert samples.rate == 0


def left(settings: dict[str, Any], ended: list[int], budgets: dict[int, float] | None = None) -> Expected:
    """The rounds left of a cohort after 35, of which the 30th was the best."""
    experiment = Experiment(cohorts=1, clients=2, max_rounds=100, stopping=settings)
    history = CohortHistory().extend(line(i) for i in range(1, 36))
    found = samples_left(experiment, [[3, 4]], [history], budgets or {}, ended)
    assert found is not None
    return found.times(1 / 50)


def test_what_is_left_is_what_others_trained_longer() -> None:
    rule = {"patience": 20}
    assert left(rule, []) == (15, False)  # the least that the rule allows
    assert left(rule, [20, 30]) == (15, False)  # it has outlived both
    assert left(rule, [20, 55, 75]) == (30, True)  # it has outlived one; the others did 20 and 40 more
    assert left(rule, [36]) == (15, True)  # never less than the rule allows
    assert left(rule, [400]) == (65, True)  # nor more
    assert left({"rule": "rounds", "rounds": 50}, []) == (15, True)  # known exactly
    assert samples_left(Experiment(cohorts=1, clients=2), [[3, 4]], [CohortHistory()], {}, []) is None


def test_limits_of_cpu_hours_count() -> None:
    spent = 6.0 * 35 / 3600  # hours, of 35 rounds; as much again is allowed
    limited = {"rule": "joint", "max_cpu_hours": 2 * spent}
    assert left(limited, [1000]).amount == pytest.approx(35)
    assert left(limited, [1000], {0: 6.0 * 45}).amount == pytest.approx(10)  # set by an evaluation


def test_a_dashboard_reads_a_part_at_a_time(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cpfl.dashboard.dashboard.MOST", 700)
    monkeypatch.setattr("cpfl.dashboard.dashboard.INTERVAL", 0.0)
    monkeypatch.setattr("cpfl.dashboard.dashboard.SHARE", 1e9)
    dashboard = Dashboard(run.parent)
    assert b"Still reading: " in dashboard.page()
    updates = 1
    while b"Still reading: " in dashboard.page():
        updates += 1
    assert updates > 4
    (followed,) = dashboard._runs.values()
    assert [vars(history) for history in followed.histories] == [vars(history) for history in read(run).histories]


def test_a_dashboard_does_not_update_more_often_than_it_may(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("cpfl.dashboard.dashboard.time.monotonic", lambda: now[0])
    dashboard = Dashboard(run.parent)
    first, tag = dashboard.fresh()
    shutil.copytree(run, run.parent / "two")
    assert dashboard.fresh() == (first, tag)  # within the same second nothing is read
    now[0] = dashboard._next
    assert dashboard.fresh() != (first, tag)


def test_a_link_out_of_the_folder_is_named_and_not_followed(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shown"
    folder.mkdir()
    (folder / "out").symlink_to(run, target_is_directory=True)
    text = Dashboard(folder).page().decode()
    assert "it is a link that leads out of" in text
    assert 'data-figure="' not in text.split("<script")[0]


def test_a_damaged_run_is_named_and_the_others_drawn(run: Path) -> None:
    other = Path(shutil.copytree(run, run.parent / "two"))
    path = other / "rounds" / "cohort-0001.jsonl"
    path.write_text("nonsense\n" + path.read_text())
    (other / "summary.json").unlink()
    text = Dashboard(run.parent).page().decode()
    assert "1 folder is damaged" in text
    assert "a line is not JSON" in text
    assert 'data-figure="trade-off"' in text


def test_damaged_evaluations_are_those_of_one_run(run: Path) -> None:
    """The others are shown, by the page and by the report; the file may be restored."""
    path = Path(shutil.copytree(run, run.parent / "two")) / "evaluations.jsonl"
    path.write_text('{"round": 1}\n')
    (path.parent / "summary.json").unlink()
    dashboard = Dashboard(run.parent)
    text = dashboard.page().decode()
    assert "1 folder is damaged" in text
    assert "evaluations.jsonl was changed" in text
    assert 'data-figure="trade-off"' in text
    path.unlink()
    dashboard._next = 0
    assert "is damaged" not in dashboard.page().decode()


FOREIGN = ["5", "[]", "null", '{"workers": 5}', '{"workers": [5]}', "[" * 20_000 + "]" * 20_000]
FOREIGN += ['{"workers": [{"worker": 1, "node": 1, "device": 1, "load": 1%s, "samples_per_second": 1}]}' % ("0" * 400)]


@pytest.mark.parametrize("content", FOREIGN, ids=lambda text: text[:15])
def test_workers_of_a_foreign_shape_are_not_shown(content: str, run: Path) -> None:
    (run / "summary.json").unlink()
    (run / "workers.json").write_text(content)
    assert worker_pool("one", run, (run / "workers.json").stat().st_mtime) is None
    assert b"<h1" in Dashboard(run.parent).page()


def test_names_that_are_no_text_are_shown_as_text(run: Path) -> None:
    (run / "summary.json").unlink()
    worker = {"worker": "\ud800", "node": 1, "device": 1, "load": 1, "samples_per_second": 1, "cohorts": [0]}
    (run / "workers.json").write_text(json.dumps({"workers": [worker]}))
    assert b"<h1" in Dashboard(run.parent).page()


def test_nothing_is_written(run: Path) -> None:
    def seen() -> dict[Path, tuple[int, int]]:
        return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in run.parent.rglob("*")}

    before = seen()
    dashboard = Dashboard(run.parent)
    dashboard.page()
    dashboard.fresh()
    assert seen() == before


def test_the_same_page_as_the_report(run: Path) -> None:
    """What a report draws of finished runs, the dashboard draws too, equally."""
    from cpfl.reports.content import all_figures

    dashboard = Dashboard(run.parent)
    dashboard.page()
    drawn = {figure["id"]: figure["spec"] for figure in all_figures(dashboard._tree)}
    written = cpfl.report(run.parent)
    assert drawn == {figure["id"]: figure["spec"] for figure in all_figures(written.content)}


def test_a_worker_that_died_is_no_second_start(unfinished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(unfinished, tmp_path / "run"))
    folder = RunFolder.open(run)
    (run / "log.jsonl").unlink()
    folder.log("started", engine="ray", device="cpu")
    folder.log("worker died", worker="worker 0", run_again=[])
    assert follow._began(run) is not None
    folder.log("resumed", engine="ray", device="cpu")
    assert follow._began(run) is None
