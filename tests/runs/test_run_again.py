"""A resume reports which closed rounds it runs again: those after the last checkpoint."""

from __future__ import annotations

from pathlib import Path

import small_runs
import suspending
from small_runs import Unbroken
from test_checkpoint import Messages

from cpfl import api
from cpfl.runs import records

LONG = {
    "max_rounds": 400,
    "stopping.patience": 400,
    "snapshots": "",
    "checkpoint_seconds": 0.1,
}


def counts(path: Path) -> list[tuple[int, int]]:
    """For every cohort: the round of its newest checkpoint, and the number of its records."""
    kept = [0] * 3
    for file in path.glob("checkpoints/cohort-*.safetensors"):
        _, cohort, _, number = file.stem.split("-")
        kept[int(cohort)] = max(kept[int(cohort)], int(number))
    records_of = [path / "rounds" / f"cohort-{cohort:04d}.jsonl" for cohort in range(3)]
    written = [len(records.read(file)) if file.exists() else 0 for file in records_of]
    return list(zip(kept, written, strict=True))


def test_rounds_closed_after_the_last_checkpoint_are_reported(tmp_path: Path, unbroken: Unbroken) -> None:
    path = tmp_path / "run"
    process = small_runs.start(*small_runs.run_words(path, LONG), driver=("often", "0.05"))
    assert suspending.killed_when(process, lambda: all(0 < kept < recorded for kept, recorded in counts(path)))
    process.communicate()
    kept, written = zip(*counts(path), strict=True)
    assert sum(written) < 1200  # some rounds are run again
    messages = Messages()
    api.resume(path, device="cpu", callback=messages)
    (logged,) = [line for line in records.read(path / "log.jsonl") if line["event"] == "run again"]
    assert logged["run_again"] == [
        {"cohort": cohort, "first_round": kept[cohort] + 1, "last_round": written[cohort]} for cohort in range(3)
    ]
    count = sum(written) - sum(kept)
    assert f"closed after the last checkpoint and run again: {count} rounds of 3 cohorts" in messages.texts
    assert small_runs.differing(path, unbroken(**LONG)) == []


def test_nothing_is_run_again_where_every_round_has_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "run"
    small_runs.cpfl(*small_runs.run_words(path, {}))
    for name in ("summary.json", "models/global.safetensors"):
        (path / name).unlink()
    messages = Messages()
    api.resume(path, device="cpu", callback=messages)
    assert "run again" not in [line["event"] for line in records.read(path / "log.jsonl")]
    assert not any("run again" in text for text in messages.texts)
