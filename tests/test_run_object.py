"""A run from Python: its table of records, its model, predictions, pictures, and how it is shown."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from rich.console import Console
from torch import nn

import cpfl
from cpfl.inference.run import LIBRARIES

FEW: dict[str, Any] = {"cohorts": 2, "clients": 4, "max_rounds": 2, "distillation": {"epochs": 1}}


def images(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Bright and dark pictures, as bytes."""
    rng = np.random.default_rng(count)
    y = rng.integers(0, 2, count)
    return (rng.integers(0, 100, (count, 1, 8, 8)) + 120 * y[:, None, None, None]).astype(np.uint8), y


class Named(nn.Module):
    """Two inputs by name, one of them a number of a word."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.words = nn.Linear(3, 2), nn.Embedding(5, 2)

    def forward(self, numbers: torch.Tensor, word: torch.Tensor) -> torch.Tensor:
        return self.line(numbers) + self.words(word)  # type: ignore[no-any-return]


def test_five_lines_to_load_and_predict(tmp_path: Path) -> None:
    """The model normalises by itself; the share of right answers is that of the summary."""
    (x, y), test = images(300), images(80)
    settings = {**FEW, "max_rounds": 10, "data": {"split": "iid"}, "federation": {"lr": 0.1, "batch_size": 8}}
    cpfl.run(train=(x, y), test=test, public=images(100)[0], out=tmp_path / "run", **settings)
    run = cpfl.load_run(tmp_path / "run")
    model = run.load_model()
    classes = run.predict(test[0])
    assert 100 * (classes == test[1]).mean() == pytest.approx(run.summary["student_accuracy"])
    assert 20 < len(np.flatnonzero(classes)) < 60  # it has learned something
    assert not model.training
    with torch.no_grad():
        logits = model(torch.from_numpy(test[0]).float() / 255)
    np.testing.assert_array_equal(logits.argmax(1), classes)
    np.testing.assert_array_equal(run.predict(test[0].astype(np.float32) / 255), classes)
    np.testing.assert_array_equal(run.predict(torch.from_numpy(test[0])), classes)
    np.testing.assert_array_equal(run.predict(test[0][:1]), classes[:1])
    for wrong, said in ((test[0][:, 0], r"\(8, 8\): the model was trained on \(1, 8, 8\)"), (5, "shape")):
        with pytest.raises(cpfl.DataError, match=said):
            run.predict(wrong)


def test_inputs_by_name_and_a_model_of_ones_own(tmp_path: Path) -> None:
    """The run that `cpfl.run` gives back remembers the model; one that is opened later is given it again."""
    rng = np.random.default_rng(1)
    x = {"numbers": rng.normal(size=(200, 3)).astype(np.float32), "word": rng.integers(0, 5, 200)}
    y = (x["numbers"][:, 0] > 0).astype(int)
    run = cpfl.run(model=Named, train=(x, y), test=(x, y), public=x, out=tmp_path / "run", **FEW)
    classes = run.predict(x)
    assert 100 * (classes == y).mean() == pytest.approx(run.summary["student_accuracy"])
    later = cpfl.load_run(run)
    assert later == run
    np.testing.assert_array_equal(later.predict(x, model=Named), classes)
    with pytest.raises(cpfl.ModelError, match="model="):
        later.predict(x)
    with pytest.raises(cpfl.DataError, match="the inputs numbers, word, and what is given is one array"):
        run.predict(x["numbers"])
    with pytest.raises(cpfl.DataError, match="'word' are float32: the model was trained on integers"):
        run.predict({**x, "word": x["word"].astype(np.float32)})


def test_records_as_a_table(finished: Path) -> None:
    run = cpfl.load_run(finished)
    table = run.rounds_frame("arrow")
    assert isinstance(table, pa.Table)
    keys = table.column_names
    wasted = {"wasted_cpu_seconds": 0.0, "wasted_bytes": 0}  # nothing was: the records have no such field
    assert table.to_pylist() == [{key: (wasted | record).get(key) for key in keys} for record in run.rounds]
    assert set(keys) == wasted.keys() | {key for record in run.rounds for key in record}
    losses = [one["loss"] for one in run.rounds]
    installed = [name for name in LIBRARIES if name == "arrow" or importlib.util.find_spec(name)]
    for library in installed:
        frame = run.rounds_frame(library)
        assert frame["loss"].to_pylist() == losses if library == "arrow" else list(frame["loss"]) == losses
    assert type(run.rounds_frame()) is type(run.rounds_frame(installed[0]))
    with pytest.raises(cpfl.SettingError, match="library = 'excel' is not allowed: pandas, polars, arrow"):
        run.rounds_frame("excel")


def test_without_a_library_of_frames(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, library, None)
    assert isinstance(cpfl.load_run(finished).rounds_frame(), pa.Table)
    with pytest.raises(cpfl.SettingError, match="'polars' is not installed: pip install polars"):
        cpfl.load_run(finished).rounds_frame("polars")


def test_how_it_is_shown(finished: Path, unfinished: Path, tmp_path: Path) -> None:
    run = cpfl.load_run(finished)
    console = Console(width=120, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(run)
    console.file.close()
    text, page = console.export_text(), run._repr_html_()
    accuracy = f"{run.summary['student_accuracy']:.2f} % on the test set"
    assert accuracy in text
    assert accuracy in page
    assert page.count("<svg") == 1
    assert "12 rounds so far" in cpfl.load_run(unfinished)._repr_html_()
    broken = shutil.copytree(finished, tmp_path / "<b>run</b>")
    (broken / "summary.json").write_text("{}")
    assert "damaged" in cpfl.load_run(broken)._repr_html_()
    assert "<b>" not in cpfl.load_run(broken)._repr_html_()


def test_a_picture(finished: Path, tmp_path: Path) -> None:
    picture = cpfl.load_run(finished).plot()
    assert len({row["cohort"] for row in picture.spec["datasets"]["cohorts"]}) == 4
    assert picture._repr_svg_().startswith("<svg")
    for suffix, begin in {"svg": b"<svg", "png": b"\x89PNG", "pdf": b"%PDF"}.items():
        assert picture.save(tmp_path / f"loss.{suffix}").read_bytes().startswith(begin)
    with pytest.raises(cpfl.SettingError, match=r"'loss\.gif' names no picture: \.svg, \.pdf, \.png, \.html"):
        picture.save("loss.gif")


def test_a_run_is_a_path(finished: Path) -> None:
    run = cpfl.load_run(finished)
    assert os.fspath(run) == str(finished)
    assert Path(run) == finished
    assert sorted(os.listdir(run)) == sorted(os.listdir(finished))
    assert cpfl.resume(run) == run  # it is finished already
    assert repr(run) == f"Run(path={finished!r})"


KEYWORDS: list[tuple[dict[str, Any], str]] = [
    ({"cohort": 2}, "there is no setting cohort; did you mean cohorts?"),
    ({"alpha": 2}, "there is no setting alpha; did you mean data.alpha?"),
    ({"enigne": "lanes"}, "there is no argument or setting enigne; did you mean engine?"),
    ({"federation": {"lrr": 2}}, "there is no setting federation.lrr; did you mean federation.lr?"),
    ({"cohorts": 2, "settings": {"cohorts": 3}}, "cohorts is given twice: as a keyword and in settings"),
    ({"federation": {"lr": 1}, "settings": {"federation.lr": 2}}, "federation.lr is given twice, as 2 and as 1"),
    ({"cohorts": 0}, "cohorts = 0 is not allowed: input should be greater than or equal to 1"),
]


@pytest.mark.parametrize(("keywords", "said"), KEYWORDS)
def test_mistakes_in_keywords(keywords: dict[str, Any], said: str, tmp_path: Path) -> None:
    for call in (cpfl.run,) if "cohorts" in keywords else (cpfl.run, cpfl.sweep):
        with pytest.raises(cpfl.SettingError) as error:
            call("digits", out=tmp_path / "run", **keywords)
        assert str(error.value) == said
    assert not (tmp_path / "run").exists()


def test_settings_in_every_form(tmp_path: Path) -> None:
    """As keywords, sections as dicts, dotted keys, and a dict instead of an experiment: a section keeps the rest."""
    wanted = cpfl.load_experiment("digits", ["cohorts=2", "max_rounds=1", "data.alpha=5", "distillation.epochs=1"])
    forms: list[tuple[Any, dict[str, Any]]] = [
        ("digits", {"cohorts": 2, "max_rounds": 1, "data": {"alpha": 5}, "distillation": {"epochs": 1}}),
        ("digits", {"cohorts": 2, "settings": {"max_rounds": 1, "data": {"alpha": 5}, "distillation.epochs": 1}}),
    ]
    for number, (base, keywords) in enumerate(forms):
        assert cpfl.run(base, out=tmp_path / str(number), **keywords).experiment == wanted.resolved("cpu")
    small = {**FEW, "max_rounds": 1, "model": {"args": {"hidden": 8}}}
    made = [cpfl.run(small, out=tmp_path / "dict"), cpfl.run(**small, out=tmp_path / "keywords")]
    assert [one.experiment for one in made] == [cpfl.Experiment(**small).resolved("cpu")] * 2
    (swept,) = cpfl.sweep("digits", cohorts=[2], max_rounds=1, data={"alpha": 5}, distillation={"epochs": 1},
                          out=tmp_path / "sweep")  # fmt: skip
    assert swept.experiment == wanted.resolved("cpu")
    (x, y), many = images(80), {"cohorts": 1, "max_rounds": 1, "out": tmp_path / "clients"}
    own = {"a": (x[:40], y[:40]), "b": (x[40:], y[40:])}  # a dict, and no settings
    assert cpfl.sweep(train=own, test=(x, y), public=x, experiment=cpfl.Experiment(), **many)[0].experiment.clients == 2


def test_what_a_script_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing where nobody looks, unless it is wanted; never on standard output, which is the script's."""
    for name, verbose in (("none", None), ("no", False), ("yes", True)):
        cpfl.run("digits", **FEW, out=tmp_path / name, verbose=verbose)
        shown = capsys.readouterr()
        assert shown.out == ""
        assert ("cohort 0 stopped after 2 rounds" in shown.err) == (verbose is True)
    cpfl.sweep("digits", **{**FEW, "cohorts": [2]}, out=tmp_path / "s", verbose=True)
    assert "n = 2, seed 90: accuracy" in capsys.readouterr().err
    cpfl.distill(tmp_path / "yes", weights="uniform", verbose=True)
    assert "Traceback" not in capsys.readouterr().err
