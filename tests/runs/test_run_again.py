"""A resume says which closed rounds it runs again: those that came after the last checkpoint."""

from __future__ import annotations

import time
from pathlib import Path

import small_runs
from small_runs import Unbroken
from test_checkpoint import Notes

from cpfl import api
from cpfl.experiment import Experiment
from cpfl.runs import records
from cpfl.runs.folder import RunFolder

LONG = {
    "max_rounds": 400,
    "stopping.patience": 400,
    "snapshots": "",
    "checkpoint_seconds": Experiment.model_fields["checkpoint_seconds"].default,
}


def test_what_was_closed_since_the_last_checkpoint(tmp_path: Path, unbroken: Unbroken) -> None:
    path = tmp_path / "run"
    process = small_runs.start(*small_runs.run_words(path, LONG))
    while process.poll() is None and sum(1 for _ in path.glob("rounds/*.jsonl")) < 3:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    folder = RunFolder.open(path)
    written = [len(records.read(folder.rounds(cohort))) for cohort in range(3)]
    kept = [0] * 3
    for file in (path / "checkpoints").glob("cohort-*.safetensors"):
        _, cohort, _, number = file.stem.split("-")
        kept[int(cohort)] = max(kept[int(cohort)], int(number))
    assert all(have < found for have, found in zip(kept, written, strict=True))
    assert sum(written) < 1200  # there is something to be run again
    notes = Notes()
    api.resume(path, device="cpu", watcher=notes)
    (told,) = [line for line in records.read(path / "log.jsonl") if line["event"] == "run again"]
    assert told["run_again"] == [
        {"cohort": cohort, "first_round": kept[cohort] + 1, "last_round": written[cohort]} for cohort in range(3)
    ]
    count = sum(written) - sum(kept)
    assert f"closed after the last checkpoint and run again: {count} rounds of 3 cohorts" in notes.texts
    assert small_runs.differing(path, unbroken(**LONG)) == []


def test_nothing_is_run_again_where_every_round_has_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "run"
    small_runs.cpfl(*small_runs.run_words(path, {}))
    for name in ("summary.json", "models/global.safetensors"):
        (path / name).unlink()
    notes = Notes()
    api.resume(path, device="cpu", watcher=notes)
    assert "run again" not in [line["event"] for line in records.read(path / "log.jsonl")]
    assert not any("run again" in note for note in notes.texts)
