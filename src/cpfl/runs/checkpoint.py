"""What a session resumes from after a kill: its last two states, each whole and with a checksum."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpfl.errors import DamagedError
from cpfl.federation.session import Session
from cpfl.models import State
from cpfl.runs import files, records
from cpfl.runs.folder import RunFolder

KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """A session's state after a round, in host memory; later rounds do not change it."""

    cohort: int
    round: int
    tensors: State
    numbers: dict[str, Any]


@dataclass(frozen=True)
class Restored:
    """What was found beside the session: real seconds of training so far, damaged checkpoints, and rounds that were
    recorded after the checkpoint and are run again."""

    wall_seconds: float
    damaged: list[str]
    again: int


def capture(session: Session, wall_seconds: float) -> Checkpoint:
    """The session's state now, so many real seconds after training began."""
    states, numbers = session.state()
    tensors = {f"{kind}/{name}": value for kind, state in states.items() for name, value in state.items()}
    return Checkpoint(
        session.cohort, session.round, files.on_host(tensors), {**numbers, "wall_seconds": round(wall_seconds, 3)}
    )


def save(folder: RunFolder, checkpoints: Sequence[tuple[Checkpoint, int]]) -> None:
    """Write states of different cohorts, each with the size of its records; those before them stay, older ones go."""
    for state, _ in checkpoints:
        records.sync(folder.rounds(state.cohort))
    checkpoints_folder = folder.path / "checkpoints"
    for state, size in checkpoints:
        path = checkpoints_folder / f"cohort-{state.cohort:04d}-round-{state.round:06d}.safetensors"
        files.save_tensors(path, state.tensors, {**state.numbers, "records_size": size}, lasting=False)
    files.sync_folder(checkpoints_folder)  # once for all of them
    there: dict[str, list[Path]] = {}
    for path in sorted(checkpoints_folder.glob("cohort-*.safetensors"), reverse=True):
        there.setdefault(path.name[: len("cohort-0000")], []).append(path)
    for state, _ in checkpoints:
        for old in there.get(f"cohort-{state.cohort:04d}", [])[KEPT:]:
            old.unlink(missing_ok=True)


def restore(folder: RunFolder, session: Session) -> Restored:
    """Bring a new session to its newest sound checkpoint, or leave it at the start."""
    damaged = []
    for path in _paths(folder, session.cohort):
        try:
            tensors, numbers = files.load_tensors(path)
            records.check(folder.rounds(session.cohort), numbers["records_size"], numbers["round"])
        except DamagedError as error:
            damaged.append(str(error))
            path.unlink(missing_ok=True)  # or it would be taken for the newest again
            continue
        states: dict[str, dict[str, object]] = {}
        for name, value in tensors.items():
            kind, _, key = name.partition("/")
            states.setdefault(kind, {})[key] = value
        session.restore(states, numbers)  # type: ignore[arg-type]
        again = records.truncate(folder.rounds(session.cohort), numbers["records_size"])
        return Restored(numbers["wall_seconds"], damaged, again)
    return Restored(0.0, damaged, records.truncate(folder.rounds(session.cohort), 0))


def _paths(folder: RunFolder, cohort: int) -> list[Path]:
    found = (folder.path / "checkpoints").glob(f"cohort-{cohort:04d}-round-*.safetensors")
    return sorted(found, reverse=True)
