"""What a session goes on from after a kill: its last two states, each whole and with a checksum."""

from __future__ import annotations

from pathlib import Path

from cpfl.errors import DamagedError
from cpfl.federation.session import Session
from cpfl.runs import files, records
from cpfl.runs.folder import RunFolder

KEPT = 2


def save(folder: RunFolder, session: Session, records_size: int) -> None:
    """Write the session's state; the one before it stays, older ones go."""
    records.sync(folder.rounds(session.cohort))
    states, numbers = session.state()
    tensors = {f"{kind}/{name}": value for kind, state in states.items() for name, value in state.items()}
    path = folder.path / "checkpoints" / f"cohort-{session.cohort:04d}-round-{session.round:06d}.safetensors"
    files.save_tensors(path, tensors, {**numbers, "records_size": records_size})
    for old in _paths(folder, session.cohort)[KEPT:]:
        old.unlink(missing_ok=True)


def restore(folder: RunFolder, session: Session) -> list[str]:
    """Bring a new session to its newest sound checkpoint, or leave it at the start; what was found damaged."""
    damaged = []
    for path in _paths(folder, session.cohort):
        try:
            tensors, numbers = files.load_tensors(path)
            records.check(folder.rounds(session.cohort), numbers["records_size"], numbers["round"])
        except DamagedError as error:
            damaged.append(str(error))
            path.unlink(missing_ok=True)  # or it would pass for the newest again
            continue
        states: dict[str, dict[str, object]] = {}
        for name, value in tensors.items():
            kind, _, key = name.partition("/")
            states.setdefault(kind, {})[key] = value
        session.restore(states, numbers)  # type: ignore[arg-type]
        records.cut(folder.rounds(session.cohort), numbers["records_size"])
        return damaged
    records.cut(folder.rounds(session.cohort), 0)
    return damaged


def _paths(folder: RunFolder, cohort: int) -> list[Path]:
    found = (folder.path / "checkpoints").glob(f"cohort-{cohort:04d}-round-*.safetensors")
    return sorted(found, reverse=True)
