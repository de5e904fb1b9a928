"""The bound from Python: of a finished run, or of all finished runs in a folder."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpfl.bounds.divergence import RULES
from cpfl.bounds.hoeffding import check_delta
from cpfl.bounds.measure import Known, RunBound, measure
from cpfl.bounds.rows import rows
from cpfl.engines.create import torch_device
from cpfl.errors import RunFolderError, SettingError, quoted
from cpfl.runs.finding import find_runs
from cpfl.runs.folder import RunFolder
from cpfl.runs.reload import reload_task
from cpfl.task.loading import given_arrays
from cpfl.task.task import UserModel
from cpfl.user_files import expanded


@dataclass(frozen=True)
class Bounds:
    """The bound of every run, and a row for every n."""

    delta: float
    divergence: str
    runs: list[RunBound]
    rows: list[dict[str, Any]]

    def tree(self) -> dict[str, Any]:
        """All of it as JSON holds it."""
        listed = [{"path": str(one.path), "n": one.n, "seed": one.seed, **one.numbers()} for one in self.runs]
        return {"delta": self.delta, "divergence": self.divergence, "rows": self.rows, "runs": listed}


def bound(
    path: str | Path,
    *,
    delta: float = 0.05,
    divergence: str = "classifier",
    model: UserModel | None = None,
    train: object = None,
    test: object = None,
    public: object = None,
    data: str | Path | None = None,
    device: str = "auto",
    notify: Callable[[str], None] = lambda text: None,
) -> Bounds:
    """Measure every term of the paper's Theorem 1 on a finished run, or on all finished runs in a folder.

    Parameters
    ----------
    path
        A run folder, or a folder with runs, such as that of a sweep.
    delta
        The probability with which the bound may fail, between 0 and 1.
    divergence
        What stands for the distance of a client from the target: classifier (the proxy A-distance) or labels.
    model, train, test, public, data, device
        As in `cpfl.distill`: a model and arrays of your own must be given again.
    notify
        Is told of every run, also of those that are unfinished and left out.
    """
    check_delta(delta)
    if divergence not in RULES:
        raise SettingError(f"divergence = {quoted(divergence)} is not allowed: {' or '.join(RULES)} is needed")
    on_device, known = torch_device(device), Known()
    found = list[RunBound]()
    for folder in finished(expanded(Path(path), "the folder"), notify):
        notify(f"measuring {folder.path}")
        given = given_arrays(train, test, public, folder.experiment(), notify)
        task = reload_task(folder, data, model, given, notify)
        found.append(measure(folder, task, delta, divergence, on_device, known))
    return Bounds(delta, divergence, found, rows(found))


def finished(path: Path, notify: Callable[[str], None]) -> list[RunFolder]:
    """The finished runs in a folder, unchanged since they ended; a run that is named itself must be finished."""
    if (path / "run.json").is_file():
        folder = RunFolder.open(path).verify()
        if folder.summary() is None:
            raise RunFolderError(f"{path} is unfinished, and the bound is of a finished run: cpfl resume it")
        return [folder]
    folders = [RunFolder.open(one).verify() for one in find_runs(path)]
    done = [folder for folder in folders if folder.summary() is not None]
    for folder in folders:
        if folder not in done:
            notify(f"{folder.path} is unfinished and left out")
    if not done:
        raise RunFolderError(f"there is no finished run in {path}: the bound needs one")
    return done
