"""How a student is trained: its initial weights, its learning rate, its views of public images and their targets."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cpfl
from cpfl.data.given import Given, as_samples
from cpfl.data.transform import draw_mix, paste
from cpfl.distillation.ensemble import Ensemble, Precision
from cpfl.distillation.student import RISE, one_cycle
from cpfl.distillation.views import Views
from cpfl.errors import SettingError
from cpfl.models import State, fresh, state_of
from cpfl.models.layout import RunningMean
from cpfl.objectives.links import SOFTMAX, fitting_temperature
from cpfl.runs.folder import RunFolder, load_state
from cpfl.settings import Distillation, experiment_file
from cpfl.task.task import Task, build_task


def images(**settings: Any) -> Task:
    """Random images of 24×24, augmented in training."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (60, 3, 24, 24), dtype=np.uint8), rng.integers(0, 3, 60)
    tree = {"clients": 4, "cohorts": 2, "model.name": "gn-lenet", "data.augment": "crop-flip-cutout"}
    chosen = {**tree, **{f"distillation.{key}": value for key, value in settings.items()}}
    experiment = experiment_file.with_settings(experiment_file.load("digits"), chosen)
    given = Given(as_samples(x, y), as_samples(x, y), as_samples(x))
    return build_task(experiment, [], given)


def views(task: Task, **changes: Any) -> Views:
    """The views of two teachers; changes are settings of which the experiment knows nothing."""
    states = [state_of(fresh(task.build, seed, "init", torch.float32)) for seed in (1, 2)]
    settings = task.experiment.distillation.model_copy(update=changes)
    precision = Precision(torch.device("cpu"), "float32")
    ensemble = Ensemble(task, range(2), settings, precision, np.full((2, 3), 0.5))
    return Views(task, ensemble, lambda: iter(states), settings)


def mean(states: Iterable[State]) -> State:
    total = RunningMean()
    for state in states:
        total.add(state, 1.0)
    return total.result()


def test_flip_shows_an_image_alternately_as_it_is_and_mirrored() -> None:
    task = images(recipe="paper", same_views=True, views=2, augment="flip")
    shown, rows = views(task), torch.arange(10)
    plain = task.data.public_transform(torch.as_tensor(task.data.public.x[:10]))
    for epoch, right in enumerate((plain, plain.flip(3), plain)):
        shown.begin(epoch)
        torch.testing.assert_close(shown.batch(rows)[0], right, rtol=0, atol=0)


def test_crop_flip_has_no_cutout_and_training_has() -> None:
    def blank(augment: str) -> float:
        shown = views(images(augment=augment))
        shown.begin(0)
        return shown.batch(torch.arange(60))[0].eq(0).all(dim=1).float().mean().item()

    # The border after a shift has the value of a black pixel, which is not 0.
    assert blank("training") > blank("crop-flip") + 0.1
    plain = views(images(augment="none"))
    plain.begin(0)
    first = plain.batch(torch.arange(60))[0].clone()
    plain.begin(1)
    assert torch.equal(plain.batch(torch.arange(60))[0], first)


def test_targets_belong_to_the_view_that_the_student_sees() -> None:
    task = images(recipe="paper", same_views=True, views=3, augment="crop-flip")
    shown, rows = views(task), torch.arange(60)
    states = [state_of(fresh(task.build, seed, "init", torch.float32)) for seed in (1, 2)]
    module = fresh(task.build, 0, "init", torch.float32).eval()
    for epoch in range(3):
        shown.begin(epoch)
        inputs, targets = shown.batch(rows)
        total = torch.zeros_like(targets)
        for state in states:
            module.load_state_dict(state)
            total += module(inputs).detach() / 2
        torch.testing.assert_close(targets, total, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("aggregation", ["logits", "probabilities"])
def test_flip_average_is_the_mean_over_both_orientations(aggregation: str) -> None:
    entropy = {"target_entropy": 0.0} if aggregation == "probabilities" else {}

    def both(flip_average: bool) -> tuple[torch.Tensor, torch.Tensor]:
        shown = views(images(recipe="cpfl", aggregation=aggregation, views=2, flip_average=flip_average, **entropy))
        shown.begin(1)
        inputs, targets = shown.batch(torch.arange(60))
        return inputs.clone(), targets

    (inputs, one), (same, averaged) = both(False), both(True)
    assert torch.equal(inputs, same), "the student sees the same views"
    module, other = fresh(images().build, 0, "init", torch.float32).eval(), torch.zeros_like(one)
    for seed in (1, 2):
        module.load_state_dict(state_of(fresh(images().build, seed, "init", torch.float32)))
        logits = module(inputs.flip(3)).detach()
        other += (logits.softmax(dim=1) if aggregation == "probabilities" else logits) / 2
    torch.testing.assert_close(averaged, (one + other) / 2, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(averaged, one, atol=1e-4)


def test_images_without_augmentation_are_not_flipped() -> None:
    plain, flipped = (views(images(augment="none"), flip_average=flip) for flip in (False, True))
    for shown in (plain, flipped):
        shown.begin(0)
    rows = torch.arange(60)
    assert torch.equal(plain.batch(rows)[1], flipped.batch(rows)[1])
    for setting in ({"flip_average": True}, {"same_views": True, "views": 2}):
        with pytest.raises(SettingError, match=r"has no effect here: it needs distillation\.augment != none"):
            images(augment="none", **setting)


def test_cutmix_takes_squares_from_other_images_in_every_second_view() -> None:
    task = images(recipe="cpfl", views=2)
    shown, rows = views(task), torch.arange(60)
    seen = []
    for epoch in range(2):
        shown.begin(epoch)
        seen.append(shown.batch(rows)[0].clone())
    plain = views(images(recipe="cpfl", views=2, augment="crop-flip"))
    for epoch, least, most in ((0, 0.0, 0.0), (1, 0.2, 0.6)):  # squares of any size: half of the image, less the border
        plain.begin(epoch)
        foreign = seen[epoch].ne(plain.batch(rows)[0]).any(dim=1).float().mean().item()
        assert least <= foreign <= most


def test_pasted_squares() -> None:
    one, other = torch.zeros(3, 1, 6, 6), torch.ones(3, 1, 6, 6)
    mixed = paste(one, other, torch.tensor([[0, 3, 2, 0], [0, 3, 2, 1], [0, 0, 5, 3]]))
    assert mixed[0].sum() == 0
    assert mixed[1].nonzero().tolist() == [[0, 3, 2]]
    assert mixed[2, 0, :3, 3:].eq(1).all(), "cut off at the border of the image"
    assert mixed[2].sum() == 9
    drawn = draw_mix(np.random.default_rng(0), 5000, (3, 32, 32))
    assert sorted(drawn[:, 0]) == list(range(5000))
    assert (2 * drawn[:, 3] / 32).__pow__(2).mean() == pytest.approx(0.5, abs=0.02), "the share is uniform"


def test_sharpening_reaches_the_target_entropy_and_never_flattens() -> None:
    probabilities = torch.softmax(torch.randn(500, 10, generator=torch.Generator().manual_seed(0)) / 5, dim=1)
    sharp = SOFTMAX.sharpened(probabilities, fitting_temperature(SOFTMAX, probabilities, 0.5))
    entropy = -(sharp * sharp.log()).sum(1).mean().item()
    assert entropy == pytest.approx(0.5 * np.log(10), abs=0.01)
    assert sharp.argmax(1).equal(probabilities.argmax(1))
    assert fitting_temperature(SOFTMAX, torch.eye(10), 0.5) == 1.0
    assert SOFTMAX.sharpened(torch.eye(10), 0.1).isfinite().all()


def test_a_recipe_sets_what_is_not_given(tmp_path: Path) -> None:
    paper = experiment_file.load("cifar10").distillation
    assert (paper.loss, paper.epochs, paper.same_views, paper.target_entropy, paper.student_init) == (
        "l1",
        50,
        False,
        0.0,
        "fresh",
    )
    ours = experiment_file.load("cifar10", ["distillation.recipe=cpfl", "distillation.epochs=7"]).distillation
    assert ours == Distillation(epochs=7)
    back = experiment_file.load("cifar10-cpfl", ["distillation.recipe=paper", "distillation.lr=0.01"]).distillation
    assert back == Distillation(recipe="paper", lr=0.01)
    (tmp_path / "digits.toml").write_text(experiment_file.to_toml(experiment_file.load("digits")))
    assert experiment_file.read_stored(tmp_path / "digits.toml").distillation.loss == "l1"


def test_a_student_of_another_architecture_starts_fresh(tmp_path: Path) -> None:
    brief = {"max_rounds": 2, "distillation.recipe": "cpfl", "distillation.epochs": 1, "distillation.lr": 1e-12}
    run = cpfl.run("digits", out=tmp_path / "run", settings=brief)
    expected = mean(load_state(RunFolder.open(run.path).teacher(cohort)) for cohort in range(4))
    torch.testing.assert_close(run.model, expected, rtol=0, atol=1e-6)
    assert cpfl.distill(run.path, student="femnist-cnn", name="cnn")["distillation"]["student_init"] == "auto"


def test_one_cycle_rises_linearly_and_falls_along_a_cosine() -> None:
    assert one_cycle(0) == 0
    assert one_cycle(RISE / 2) == pytest.approx(0.5)
    assert one_cycle(RISE) == pytest.approx(1)
    assert one_cycle((1 + RISE) / 2) == pytest.approx(0.5)
    assert one_cycle(1) == pytest.approx(0)


def test_one_cycle_trains_differently_from_a_constant_rate(tmp_path: Path) -> None:
    quick = {"max_rounds": 3, "distillation.epochs": 4}
    run = cpfl.run("digits", out=tmp_path / "run", settings=quick)
    cycle = cpfl.distill(run.path, lr_schedule="one-cycle", data=None)
    assert cycle["distillation"]["lr_schedule"] == "one-cycle"
    lines = (Path(cycle["path"]) / "epochs.jsonl").read_text().splitlines()
    own = (Path(run.path) / "epochs.jsonl").read_text().splitlines()
    assert len(lines) == len(own) == 4
    assert lines != own


def test_a_student_that_starts_as_the_mean_and_learns_nothing_is_the_mean(tmp_path: Path) -> None:
    still = {"max_rounds": 3, "distillation.epochs": 1, "distillation.lr": 1e-12, "distillation.student_init": "mean"}
    run = cpfl.run("digits", out=tmp_path / "run", settings=still)
    folder = RunFolder.open(Path(run.path))
    teachers = [load_state(folder.teacher(cohort)) for cohort in range(run.summary["cohorts"])]
    for name, value in run.model.items():
        right = torch.stack([teacher[name] for teacher in teachers]).mean(0)
        torch.testing.assert_close(value, right, rtol=0, atol=1e-6)


def test_the_mean_of_states_keeps_the_first_counters() -> None:
    states = [{"w": torch.full((2,), float(k)), "count": torch.tensor(k)} for k in (1, 2, 6)]
    found = mean(states)
    assert found["w"].tolist() == [3.0, 3.0]
    assert found["count"].item() == 1


def test_only_images_are_cropped_and_flipped(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 5)).astype(np.float32), rng.integers(0, 2, 40)
    settings = {"clients": 4, "cohorts": 2, "max_rounds": 1, "distillation.augment": "flip"}
    with pytest.raises(SettingError, match=r"distillation\.augment = 'flip' is for images"):
        cpfl.run("digits", out=tmp_path / "run", settings=settings, train=(x, y), test=(x, y), public=x)
    assert not (tmp_path / "run").exists()
    with pytest.raises(SettingError, match='student_init = "mean"'):
        experiment_file.load("digits", ["distillation.student_init=mean", "distillation.student=femnist-cnn"])
