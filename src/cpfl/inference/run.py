"""A run from Python: its settings, outcome and records, its global model, and a picture of how it went."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpfl.errors import CpflError, SettingError, quoted
from cpfl.inference import answers, outcome
from cpfl.inference.global_model import Deployed, load_global
from cpfl.models import State
from cpfl.reports import style
from cpfl.reports.cohort_figures import losses
from cpfl.reports.reading import read
from cpfl.runs import records
from cpfl.runs.folder import RunFolder
from cpfl.settings import Experiment
from cpfl.task.task import UserModel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.table import Table

LIBRARIES = ("pandas", "polars", "arrow")
DEFAULTS = {"wasted_cpu_seconds": 0.0, "wasted_bytes": 0}  # left out of records in which nothing was discarded


@dataclass(frozen=True)
class Run:
    """A run folder, opened for reading; wherever a path is taken, a run can be given."""

    path: Path
    given_model: UserModel | None = field(default=None, compare=False, repr=False)  # what `cpfl.run` was called with

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    @property
    def experiment(self) -> Experiment:
        """Every setting of the run."""
        return RunFolder.open(self.path).experiment()

    @property
    def summary(self) -> dict[str, Any]:
        """The outcome; empty while the run is unfinished."""
        return RunFolder.open(self.path).summary() or {}

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """All records, cohort by cohort."""
        folder = RunFolder.open(self.path)
        cohorts = range(len(folder.about()["cohorts"]))
        return [line for cohort in cohorts for line in records.read(folder.rounds(cohort))]

    def rounds_frame(self, library: str = "") -> Any:
        """All records as a table, one row for each round of a cohort.

        `library` is pandas, polars or arrow; empty: the first of them that is installed, and Arrow always is.
        """
        import pyarrow as pa

        if library and library not in LIBRARIES:
            raise SettingError(f"library = {quoted(library)} is not allowed: {', '.join(LIBRARIES)}")
        rounds = self.rounds
        columns = dict.fromkeys([*(key for record in rounds for key in record), *(DEFAULTS if rounds else ())])
        table = pa.table({key: [record.get(key, DEFAULTS.get(key)) for record in rounds] for key in columns})
        for name in [library] if library else LIBRARIES:
            if name == "arrow":
                break
            try:
                __import__(name)
            except ImportError:
                if library:
                    raise SettingError(f"library = {library!r} is not installed: pip install {library}") from None
                continue
            if name == "pandas":
                return table.to_pandas()
            import polars

            return polars.from_arrow(table)
        return table

    @property
    def model(self) -> State:
        """The global model's state, for `load_state_dict`."""
        return RunFolder.open(self.path).global_state()

    def load_model(self, model: UserModel | None = None, distillation: str = "") -> Deployed:
        """The global model, ready for inputs: pixels from 0 to 1, everything else as it was trained on.

        Parameters
        ----------
        model
            What was given to `cpfl.run` as model, where another process opens the run.
        distillation
            The name of a later distillation, instead of the run's own.
        """
        return load_global(self.path, model or self.given_model, distillation)[0]

    def predict(self, x: Any, model: UserModel | None = None, distillation: str = "") -> NDArray[np.generic]:
        """What the global model predicts for these inputs, in the form of the training set's: classes, or numbers.

        Bytes of images are pixels from 0 to 255, floats from 0 to 1. The other arguments are those of `load_model`.
        """
        module, about = load_global(self.path, model or self.given_model, distillation)
        return answers.predicted(module, module.objective, about, x)

    def plot(self) -> Picture:
        """The moving average of every cohort's validation loss over virtual hours, with its stop."""
        facts = read(self.path)
        title = f"{facts.experiment.name}: validation loss of {facts.n} cohort{'s' * (facts.n > 1)}"
        return Picture(losses(facts.histories) | {"title": title})

    def _lines(self) -> list[tuple[str, str]]:
        """The outcome in words, or why there is none."""
        try:
            summary = self.summary
            found = outcome.lines(summary) if summary else [("unfinished", f"{len(self.rounds):,} rounds so far")]
        except CpflError as error:
            found = [("error", str(error))]
        return [*found, ("run folder", str(self.path))]

    def __rich__(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        for name, value in self._lines():
            table.add_row(Text(name, style="bold"), Text(value))
        return table

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in self._lines())
        try:
            picture = self.plot().svg()
        except CpflError:  # there is nothing to draw, or nothing to draw with
            picture = ""
        return f"<table>{rows}</table>{picture}"


@dataclass(frozen=True)
class Picture:
    """A figure: a notebook shows it, `save` writes it."""

    spec: style.Spec  # in Vega-Lite

    def svg(self) -> str:
        """The figure as SVG."""
        style.check_open_files()
        return str(style.converter().vegalite_to_svg(self.spec))

    def save(self, path: str | Path) -> Path:
        """Write the figure in the format of the name: .svg, .pdf, .png, or .html."""
        suffixes = [*(f".{kind}" for kind in style.CONVERT), ".html"]
        if Path(path).suffix not in suffixes:
            raise SettingError(f"{str(path)!r} names no picture: {', '.join(suffixes)}")
        return style.save(self.spec, Path(path))

    def _repr_svg_(self) -> str:
        return self.svg()
