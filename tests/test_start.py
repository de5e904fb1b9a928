"""Initial weights (`model.start`), and models with frozen parameters: these stay, and only the others travel."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.zoo import (
    PUBLIC,
    TEST,
    TOKENS,
    TRAIN,
    ZOO,
    Animal,
    Encoder,
    Lora,
    Tied,
    Twice,
    Y,
    lora_transformer,
    scripted,
)
from tests.zoo import TABLE as ROWS
from torch import Tensor, nn

import cpfl
from cpfl.engines.ray.messages import RoundDone, SessionState
from cpfl.errors import CpflError, ModelError, RunFolderError, SettingError
from cpfl.federation.session import ClientResult, RoundResult
from cpfl.models import State, state_of
from cpfl.runs.folder import RunFolder
from cpfl.settings import experiment_file
from cpfl.task.loading import given_arrays
from cpfl.task.task import Task, build_task

ENGINES = ("reference", "workers", "lanes")
SMALL: dict[str, Any] = {
    "clients": 6, "cohorts": 3, "max_rounds": 2, "data.alpha": 10, "federation.lr": 0.05,
    "distillation.batch_size": 10, "distillation.epochs": 1,
}  # fmt: skip
FROZEN: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "lora": (Lora, ROWS),
    "lora transformer": (lora_transformer, TOKENS),
}


def trained(path: Path, model: Any, x: Any = ROWS, engine: str = "reference", **settings: Any) -> cpfl.Run:
    changes = SMALL | {key.replace("__", "."): value for key, value in settings.items()}
    return cpfl.run(
        cpfl.Experiment(), model=model, train=(x[TRAIN], Y[TRAIN]), test=(x[TEST], Y[TEST]), public=x[PUBLIC],
        settings=changes, out=path, engine=engine, device="cpu",
    )  # fmt: skip


def task_of(model: Any, x: Any = ROWS, **settings: Any) -> Task:
    changes = SMALL | {"model.name": "(given)", "data.train": "(given)", "data.public": "(given)"}
    changes |= {key.replace("__", "."): value for key, value in settings.items()}
    given = given_arrays((x[TRAIN], Y[TRAIN]), (x[TEST], Y[TEST]), x[PUBLIC])
    return build_task(experiment_file.with_settings(cpfl.Experiment(), changes), [], given, model)


def models_of(run: cpfl.Run) -> list[State]:
    """All that a run has written: starts, teachers, the global model."""
    return [load_file(path) for path in sorted(run.path.glob("models/*.safetensors"))]


def weights(seed: int, build: Callable[[], nn.Module] = lambda: nn.Linear(12, 3)) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("init", ["fresh", "mean", "auto"])
@pytest.mark.parametrize("start", ["given", "file"])
def test_training_starts_from_given_weights(tmp_path: Path, start: str, init: str) -> None:
    """The student of a start like this has no other first weights either: with a rate near 0 it is the start."""
    model = weights(1)
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    chosen = "given" if start == "given" else str(tmp_path / "weights.safetensors")
    still = {"federation__lr": 1e-30, "distillation__lr": 1e-30, "distillation__student_init": init}
    run = trained(tmp_path / "run", model if start == "given" else lambda: weights(2), model__start=chosen, **still)
    for found in models_of(run):
        for name, value in model.state_dict().items():
            torch.testing.assert_close(found[name], value, rtol=0, atol=1e-7)
    fresh = trained(tmp_path / "fresh", model, **still)
    assert not same(models_of(fresh)[-1], dict(model.state_dict()))


def test_a_file_in_a_data_folder_by_a_path_or_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = weights(1)
    (tmp_path / "data").mkdir()
    save_file(model.half().state_dict(), tmp_path / "data" / "w.safetensors")  # any precision will do
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CPFL_DATA", str(tmp_path / "data"))
    first = trained(tmp_path / "one", weights(2), model__start="w.safetensors")
    by_path = trained(tmp_path / "two", weights(2), model__start="data/w.safetensors")
    assert by_path.experiment.model.start == str(tmp_path / "data" / "w.safetensors")
    assert same(first.model, by_path.model)
    assert RunFolder.open(first.path).about()["start"] == RunFolder.open(by_path.path).about()["start"]
    further = trained(tmp_path / "three", weights(2), model__start=str(first.path / "models" / "global.safetensors"))
    assert same(load_file(further.path / "models" / "start.safetensors"), first.model)


def test_a_tied_parameter_may_be_in_the_file_once(tmp_path: Path) -> None:
    model = weights(1, Tied)
    own = state_of(model)
    for name, absent in (("first", "two.weight"), ("second", "one.weight")):
        save_file({key: value for key, value in own.items() if key != absent}, tmp_path / f"{name}.safetensors")
        start = task_of(Tied, model__start=str(tmp_path / f"{name}.safetensors")).start
        assert same(start, own)


WHOLE = {"weight": torch.zeros(3, 12), "bias": torch.zeros(3)}
BAD: dict[str, tuple[State | bytes, str]] = {
    "not a number": (WHOLE | {"bias": torch.tensor([0, float("nan"), 0])}, "no finite number: bias"),
    "too large": (WHOLE | {"weight": torch.full((3, 12), 1e300, dtype=torch.float64)}, "no finite number: weight"),
    "lacks": ({"weight": torch.zeros(3, 12)}, "lacks bias"),
    "more": ({"weight": torch.zeros(3, 12), "bias": torch.zeros(3), "b.c": torch.zeros(1)}, "more than the model: b.c"),
    "shape": ({"weight": torch.zeros(3, 11), "bias": torch.zeros(3)}, "another shape or type of weight"),
    "type": ({"weight": torch.zeros(3, 12), "bias": torch.zeros(3).int()}, "another shape or type of bias"),
    "others": ({f"layer{k}": torch.zeros(1) for k in range(9)}, "layer0, layer1, layer2 and 6 more"),
    "no such file": (b"PK\x03\x04 a pickle", "is no safetensors file"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, case: str) -> None:
    content, sentence = BAD[case]
    file = tmp_path / "w.safetensors"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        save_file(content, file)
    with pytest.raises(ModelError, match=r"model\.start = .*w\.safetensors") as error:
        trained(tmp_path / "run", weights(2), model__start=str(file))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("start", "model", "sentence"),
    [
        ("given", lambda: nn.Linear(12, 3), "needs a model object, given in Python"),
        ("given", None, "needs a model object, given in Python"),
        ("nowhere.safetensors", nn.Linear(12, 3), "is no file, nor one in a data folder"),
        ("x" * 5000, nn.Linear(12, 3), "is no file"),
        ("", nn.Linear(12, 3), "is no file"),
    ],
)
def test_a_start_that_there_is_not(tmp_path: Path, start: str, model: Any, sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        trained(tmp_path / "run", model, model__start=start)
    assert not (tmp_path / "run").exists()


def test_an_object_with_a_weight_that_is_no_number_is_refused() -> None:
    model = nn.Linear(12, 3)
    with torch.no_grad():
        model.bias[1] = float("inf")
    with pytest.raises(ModelError, match="no finite number: bias"):
        task_of(model, model__start="given")


def test_a_resume_with_other_weights_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    save_file(weights(1).state_dict(), file)
    run = trained(tmp_path / "run", weights(2), model__start=str(file))
    given = {
        "model": weights(2),
        "train": (ROWS[TRAIN], Y[TRAIN]),
        "test": (ROWS[TEST], Y[TEST]),
        "public": ROWS[PUBLIC],
    }
    cpfl.distill(run.path, name="same", device="cpu", **given)
    save_file(weights(3).state_dict(), file)
    with pytest.raises(RunFolderError, match=r"weights of model\.start .* checksums differ"):
        cpfl.distill(run.path, name="changed", device="cpu", **given)
    other = trained(tmp_path / "other", weights(2), model__start=str(file))
    assert RunFolder.open(run.path).identity != RunFolder.open(other.path).identity


def test_cohorts_with_another_model_start_fresh(tmp_path: Path) -> None:
    """… and those that name the experiment's own start as the experiment does."""
    own = build_task(experiment_file.load("digits"), [], given_arrays(None, None, None)).start
    save_file({name: value + 1 for name, value in own.items()}, tmp_path / "w.safetensors")
    settings = {"model.by_cohort": {"0": "femnist-cnn", "1": "mlp"}, "model.start": str(tmp_path / "w.safetensors")}
    experiment = experiment_file.load("digits", settings=settings)
    task = build_task(experiment, [], given_arrays(None, None, None))
    plain = build_task(
        experiment_file.load("digits", settings={"model.by_cohort": settings["model.by_cohort"]}),
        [],
        given_arrays(None, None, None),
    )
    assert same(task.for_cohort(1).start, task.for_cohort(2).start)
    assert not same(task.for_cohort(1).start, plain.for_cohort(1).start)
    assert same(task.for_cohort(0).start, plain.for_cohort(0).start)


@pytest.mark.parametrize("init", ["fresh", "mean", "auto"])
@pytest.mark.parametrize("name", FROZEN)
def test_what_is_frozen_stays_bit_by_bit(tmp_path: Path, name: str, init: str) -> None:
    """Of three teachers and their student; the mean of three equal numbers need not be that number."""
    build, x = FROZEN[name]
    task = task_of(build, x)
    for engine in ENGINES:
        run = trained(tmp_path / engine, build, x, engine, distillation__student_init=init)
        found = models_of(run)
        assert len(found) == 5
        for state in found:
            for key in task.layout().frozen:
                assert torch.equal(state[key], task.start[key]), (engine, key)
        assert not any(torch.equal(run.model[key], task.start[key]) for key in task.layout().shapes)


def test_a_resumed_run_keeps_its_frozen_parameters(tmp_path: Path) -> None:
    """A model of one's own may have others when it is built again later."""
    run = trained(tmp_path / "run", partial(weights, 1, Lora))
    again = cpfl.distill(
        run.path, name="again", model=partial(weights, 2, Lora), train=(ROWS[TRAIN], Y[TRAIN]),
        test=(ROWS[TEST], Y[TEST]), public=ROWS[PUBLIC], device="cpu", student_init="fresh",
    )  # fmt: skip
    start, student = (
        load_file(Path(path))
        for path in (run.path / "models" / "start.safetensors", Path(again["path"]) / "models" / "global.safetensors")
    )
    assert torch.equal(start["base.weight"], student["base.weight"])
    assert not torch.equal(start["a"], student["a"])


@pytest.mark.parametrize("name", FROZEN)
def test_only_what_is_trained_is_accounted(tmp_path: Path, name: str) -> None:
    build, x = FROZEN[name]
    run = trained(tmp_path / "run", build, x)
    task = task_of(build, x)
    size = json.loads((run.path / "run.json").read_text())["model_bytes"]
    assert size == task.model_bytes == 4 * sum(value.numel() for value in build().parameters() if value.requires_grad)
    assert size < 4 * sum(value.numel() for value in task.start.values()) / 1.5
    for record in run.rounds:
        assert record["bytes"] == 2 * size * len(record["participants"])
    assert task_of(build, x, model__bytes=77).model_bytes == 77


class Normed(nn.Sequential):
    """A frozen layer, a tied one, and buffers that travel."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(12, 12), nn.BatchNorm1d(12), nn.Linear(12, 12), nn.Linear(12, 3), nn.Linear(12, 3))
        self[0].requires_grad_(False)
        self[4].weight = self[3].weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self[2](self[1](self[0](x)))
        return self[3](hidden) + self[4](hidden)  # type: ignore[no-any-return]


@pytest.mark.parametrize("build", [Normed, Lora])
def test_accounted_bytes_are_those_of_the_arrays_that_ray_sends(build: Callable[[], nn.Module]) -> None:
    task = task_of(build)
    layout, session = task.layout(), task.session(0)
    result = RoundResult(
        {name: value + 1 if value.is_floating_point() else value for name, value in task.start.items()},
        [ClientResult(0, 1, 1, 1.0, 1.0)],
    )
    result = RoundResult({**result.model, **layout.frozen}, result.results)
    done = RoundDone.from_result(0, result, layout)
    state = SessionState.from_session(session, layout)
    for arrays in (done.arrays.model, state.states["model"]):
        assert sum(array.nbytes for array in arrays.values()) == task.model_bytes
    assert same(done.result(layout).model, result.model)
    state.restore(again := task.session(0), layout)
    assert same(again.model, task.start)


def test_a_session_with_states_of_optimizers_comes_back_whole() -> None:
    """Scaffold's states have no frozen part: they stay as they are."""
    task = task_of(Lora, federation__client="scaffold", stopping__keep="ema")
    from cpfl.engines.reference import ReferenceEngine

    session = task.session(0)
    request = session.open_round()
    session.close_round(ReferenceEngine(task, torch.device("cpu")).do(request))
    sent = SessionState.from_session(session, task.layout())
    assert not any("base.weight" in arrays for arrays in sent.states.values())
    sent.restore(again := task.session(0), task.layout())
    ours, theirs = session.state()[0], again.state()[0]
    assert ours.keys() == theirs.keys()
    assert all(same(ours[kind], theirs[kind]) for kind in ours)


def test_engines_agree_on_a_lora_transformer_with_pretrained_weights(tmp_path: Path) -> None:
    model = weights(5, lora_transformer)
    runs = [
        trained(tmp_path / engine, model, TOKENS, engine, model__start="given", precision="float64")
        for engine in ENGINES
    ]
    assert [run.summary["engine"] for run in runs] == list(ENGINES)
    for run in runs[1:]:
        for name, value in runs[0].model.items():
            torch.testing.assert_close(run.model[name], value, rtol=0, atol=1e-9)


STALE: dict[str, dict[str, Any]] = {
    "fedbuff": {"federation.buffer_size": 2, "federation.concurrency": 2},
    "refl": {"federation.deadline": 7, "federation.straggler_policy": "stale", "devices.trace": "synthetic"},
}


@pytest.mark.parametrize("rule", STALE)
@pytest.mark.parametrize("build", [Lora, Tied])
def test_engines_agree_on_updates_of_different_age(rule: str, build: Callable[[], nn.Module], tmp_path: Path) -> None:
    """A distance between updates counts a tied parameter once, whatever the engine."""
    more = STALE[rule] | {"max_rounds": 8, "precision": "float64", "cohorts": 1, "federation.lr": 0.5}
    runs = [trained(tmp_path / engine, build, ROWS, engine, **more) for engine in ENGINES]
    assert any(record.get("stale") for record in runs[0].rounds)
    for run in runs[1:]:
        for name, value in runs[0].model.items():
            torch.testing.assert_close(run.model[name], value, rtol=0, atol=1e-9)


def test_fewer_bytes_than_the_whole_model() -> None:
    whole, part = task_of(Encoder, TOKENS), task_of(lora_transformer, TOKENS)
    assert part.model_bytes < whole.model_bytes / 2


def test_a_mistake_is_one_sentence() -> None:
    with pytest.raises(CpflError, match="no parameter that is to be trained"):
        task_of(lambda: nn.Linear(12, 3).requires_grad_(False))


@pytest.mark.parametrize("name", ["frozen batch norm", "batch norm, one layer with two names"])
def test_layers_that_stay_with_clients_may_be_frozen_or_have_two_names(name: str, tmp_path: Path) -> None:
    """What workers and messages leave out of a model is in no client's own state either, or comes back."""
    animal = {"frozen batch norm": ZOO["frozen batch norm"]}.get(name, Animal(lambda: Twice(two_names=True), "table"))
    more = {"federation.batch_stats": "local", "precision": "float64"}
    runs = [trained(tmp_path / engine, animal.build, animal.arrays, engine, **more) for engine in ENGINES]
    for run in runs[1:]:
        for key, value in runs[0].model.items():
            torch.testing.assert_close(run.model[key], value, rtol=0, atol=1e-6)  # Adam divides by small gradients


class Attends(nn.Module):
    """torch's attention, whose own weights are drawn by a method of another name."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(12, 2, batch_first=True), nn.Linear(12, 3)
        self.head.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, None]
        return self.head(self.attention(x, x, x)[0][:, 0])  # type: ignore[no-any-return]


class Locked(nn.Linear):
    """Cannot be copied."""

    def __init__(self) -> None:
        super().__init__(12, 3)
        self.lock = threading.Lock()


def test_a_fresh_start_has_nothing_of_the_weights_of_an_object() -> None:
    """… but for what is frozen."""
    one, other = weights(1, Attends), weights(2, Attends)
    with torch.no_grad():
        for name, value in one.named_parameters():
            value.fill_(7) if name != "head.bias" else value.copy_(other.get_parameter(name))
    start = task_of(one).start
    assert same(start, task_of(other).start)
    assert not any((value == 7).any() for value in start.values())
    assert torch.equal(start["head.bias"], other.get_parameter("head.bias"))
    assert not start["attention.out_proj.bias"].any()  # as torch begins


def parametrized() -> nn.Module:
    return nn.utils.parametrizations.weight_norm(nn.Linear(12, 3))


@pytest.mark.parametrize(("build", "name"), [(Lora, "for a, b"), (parametrized, "for parametrizations.weight.orig")])
def test_an_object_whose_weights_cannot_be_drawn_anew_is_refused(
    build: Callable[[], nn.Module], name: str, tmp_path: Path
) -> None:
    model = build()
    with pytest.raises(ModelError, match=name):
        trained(tmp_path / "run", model)
    assert not (tmp_path / "run").exists()
    save_file(state_of(model), tmp_path / "w.safetensors")
    own = state_of(model)
    for start in ("given", str(tmp_path / "w.safetensors")):
        assert same(task_of(model, model__start=start).start, own)
    run = trained(tmp_path / "run", model, model__start="given")
    assert cpfl.export(run.path, model=model, onnx=False)


def test_an_object_that_cannot_be_copied_is_refused(tmp_path: Path) -> None:
    for start in ("fresh", "given"):
        with pytest.raises(ModelError, match=r"cannot be copied: .*lock.*; give its class"):
            trained(tmp_path / "run", Locked(), model__start=start)
    assert not (tmp_path / "run").exists()
    assert trained(tmp_path / "run", Locked).summary


def test_a_scripted_object_is_refused_where_it_must_start_fresh(tmp_path: Path) -> None:
    """… because a module of torch.jit has no reset_parameters."""
    with pytest.raises(ModelError, match="fresh weights for weight, bias: give its class"):
        trained(tmp_path / "run", scripted())
    assert not (tmp_path / "run").exists()
