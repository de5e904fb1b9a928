"""[distillation]: how cohort models become one."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from cpfl.settings.choices import DISTILLATION_LOSSES, TEACHER_AGGREGATIONS, TEACHER_WEIGHTS
from cpfl.settings.types import Args, Count, Fraction, LearningRate, NoBool, Section, Share, When, hours

RECIPES: dict[str, dict[str, Any]] = {
    "paper": {
        "views": 1, "same_views": False, "augment": "training", "flip_average": False, "aggregation": "logits",
        "weights": "labels", "target_entropy": 0.0, "loss": "l1", "temperature": 1.0, "epochs": 50, "batch_size": 512,
        "lr": 0.001, "lr_schedule": "constant", "student_init": "fresh",
    },
}  # fmt: skip
"""What a recipe sets; the one that is missing here, cpfl, is the default of every setting."""
Temperature = Annotated[float, Field(ge=1e-3, le=1000), NoBool]
_DISTILLS = When("meetings.final != merge or meetings.rule = distill")
_AUGMENTED = When("augment != none", "data.augment != none or augment = cutmix | crop-flip | flip")


class Distillation(Section):
    """How cohort models become one."""

    recipe: Literal["cpfl", "paper"] = "cpfl"
    """Defaults of the settings from views to student_init: this project's, or the paper's."""
    views: Annotated[Count, When("same_views"), _AUGMENTED, _DISTILLS] = 3
    """Different augmented views of each public image, used alternately epoch by epoch."""
    same_views: Annotated[bool, _AUGMENTED, _DISTILLS] = True
    """The student sees the views that the teachers saw; false, as in the paper: targets are computed once, on one view,
    and the student sees a new view in every epoch."""
    augment: Annotated[Literal["auto", "cutmix", "crop-flip", "flip", "training", "none"], _DISTILLS] = "auto"
    """Augmentation of views; auto: cutmix if training images are augmented, else none; training: as training images."""
    flip_average: Annotated[bool, _AUGMENTED, _DISTILLS] = False
    """Teachers also predict the mirror image of every view, and both predictions are averaged."""
    aggregation: Annotated[str, AfterValidator(TEACHER_AGGREGATIONS.check)] = "probabilities"
    """What of the teachers is averaged: probabilities, logits (the paper, and the default of a regression),
    log-probabilities, or a class of yours as "module:Class"."""
    aggregation_args: Args = Field(default_factory=dict)
    """Keyword arguments of a class of yours."""
    weights: Annotated[str, AfterValidator(TEACHER_WEIGHTS.check)] = "labels"
    """Teacher weights p_i: a cohort's share of each class's labels (the paper), uniform (1/n), or "module:Class"."""
    weights_args: Args = Field(default_factory=dict)
    """Keyword arguments of a class of yours."""
    target_entropy: Annotated[Share, When("aggregation != logits | log-probabilities"), _DISTILLS] = 0.5
    """Sharpen the averaged probabilities until their mean entropy is this share of the maximum; 0: leave them."""
    loss: Annotated[str, AfterValidator(DISTILLATION_LOSSES.check), _DISTILLS] = "kl"
    """The student's loss: kl, mse (the default of a regression), l1 (the paper), or a class of yours as
    "module:Class"."""
    loss_args: Annotated[Args, _DISTILLS] = Field(default_factory=dict)
    """Keyword arguments of a class of yours."""
    temperature: Annotated[Temperature, When("aggregation != logits | log-probabilities or loss != mse | l1")] = 1.0
    """Softmax temperature of the probabilities and of the loss kl."""
    epochs: Annotated[Count, _DISTILLS] = 100
    """Passes of the student over the public set."""
    batch_size: Annotated[Count, _DISTILLS] = 512
    """Public samples of a mini-batch."""
    lr: Annotated[LearningRate, _DISTILLS] = 0.004
    """Adam's learning rate; with one-cycle its maximum."""
    lr_schedule: Annotated[Literal["one-cycle", "constant"], _DISTILLS] = "one-cycle"
    """one-cycle: lr rises for a fifth of the steps and then falls along a cosine."""
    student_init: Annotated[Literal["auto", "mean", "fresh"], _DISTILLS] = "auto"
    """The student's first weights: fresh (or those of model.start, if it names some), or the mean of the teachers';
    auto: their mean where the models match."""
    student: Annotated[str, _DISTILLS] = ""
    """Another model than the cohorts' for the student; empty: the same."""
    at: str = ""
    """"10h" distills the models that every cohort had at that virtual time; empty: at their stops."""
    quorum: Fraction = 1.0
    """Distill when this share of the cohorts has stopped."""
    unfinished: Annotated[Literal["latest", "drop"], When("at or quorum != 1.0")] = "latest"
    """What cohorts that had not stopped by then contribute: their latest model, or nothing."""

    @model_validator(mode="before")
    @classmethod
    def _apply_recipe(cls, tree: Any) -> Any:
        named = tree.get("recipe") if isinstance(tree, dict) else None
        return {**RECIPES.get(named, {}), **tree} if isinstance(named, str) else tree  # no name is refused later

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.at:
            hours(self.at)
        return self
