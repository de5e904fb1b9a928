"""Every setting of an experiment, its default and why.

The names are what `--set` takes: `--set cohorts=16 --set data.alpha=1`.
"""

from __future__ import annotations

import difflib
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from cpfl import part_settings, round_settings, setting_groups
from cpfl.errors import SettingError
from cpfl.setting_sentences import sentence
from cpfl.setting_types import (
    Count,
    Fraction,
    Integer,
    NotNegative,
    Number,
    OptionalCount,
    Positive,
    Section,
    Share,
    hours,
    interval,
)

GIVEN = "(given)"
"""Stands in a stored experiment for a model or arrays that were handed over in Python."""


class Data(Section):
    """Who holds which samples, and how samples become numbers."""

    train: str = "digits"  # a known set, a folder under the data roots, or a path
    public: str = "letters"  # unlabelled; what the cohort models are distilled on
    public_splits: tuple[str, ...] = ()  # ("train", "extra") …; empty: those of the set's public use
    split: Literal["dirichlet", "iid", "column", "shards"] = "dirichlet"
    alpha: Positive = 0.1  # Dirichlet's α: lower is more skewed; 0.1 is the paper's hardest
    remainder: Literal["last", "spread"] = "last"  # the authors' code gives the last client all that is left
    column: str = ""  # split = "column": the id column that says whose sample it is
    shards: Count = 2  # split = "shards": label-sorted shards per client (McMahan et al.)
    validation: Share = 0.1  # what a client keeps to judge the cohort's model
    validation_minimum: Count = 10  # smaller clients keep nothing and report nothing
    augment: Literal["none", "crop-flip-cutout"] = "none"  # of training images and public views
    augment_validation: bool = False  # the authors' code augments validation images too
    mean: tuple[Number, ...] = ()  # per channel, of values in 0…1; empty: no normalisation
    std: tuple[Number, ...] = ()
    public_mean: tuple[Number, ...] | None = None  # None: as the training data
    public_std: tuple[Number, ...] | None = None
    public_fit: Literal["exact", "crop", "resize"] = "exact"  # how public images get the training images' shape
    train_limit: OptionalCount = 0  # use only the first so many samples, for a quick look; 0: all
    public_limit: OptionalCount = 0
    classes: OptionalCount = 0  # 0: as many as the labels say

    @model_validator(mode="after")
    def _check(self) -> Self:
        for mean, std in ((self.mean, self.std), (self.public_mean or (), self.public_std or ())):
            if len(mean) != len(std):
                raise ValueError(f"mean has {len(mean)} channels and std {len(std)}: they must be equally many")
            if any(s <= 0 for s in std):
                raise ValueError("std must be above 0 in every channel")
        if self.split == "column" and not self.column:
            raise ValueError('split = "column" needs column, the name of the id column')
        return self


class Model(Section):
    """What every client trains."""

    name: str = "mlp"  # gn-lenet, femnist-cnn, mlp, or "module:Class"
    args: dict[str, Any] = Field(default_factory=dict)  # keyword arguments of that class
    bytes: OptionalCount = 0  # its size on the wire; 0: four bytes a number

    @model_validator(mode="after")
    def _check(self) -> Self:
        if any(value is None for value in self.args.values()):
            raise ValueError("args has a value of None, which a file cannot hold: leave it out")
        return self


PLANS = ("random", "speed", "column", "label-balanced", "label-clustered", "multi-objective", "csv")


class Cohorting(Section):
    """Who trains with whom; `cohorts` says into how many."""

    plan: str = "random"  # one of PLANS, or "module:Class"; most reveal something of clients: `cpfl plan` says what
    plan_args: dict[str, Any] = Field(default_factory=dict)  # keyword arguments of a class of your own
    column: str = ""  # plan = "column": clients with the same value in it stay together
    file: str = ""  # plan = "csv": the columns client (from 0) and cohort
    skew: NotNegative = 1.0  # plan = "multi-objective": weight of the cohorts' mean label skew, 0 to 1
    speed: NotNegative = 1.0  # and of their mean round, as a share of the slowest client's
    models: dict[str, str] = Field(default_factory=dict)  # cohorts with another model, its defaults: {"0" = "gn-lenet"}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.plan in PLANS and self.plan_args:
            raise ValueError(f"plan_args goes with a class of your own; {self.plan} has its settings beside it")
        if any(value is None for value in self.plan_args.values()):
            raise ValueError("plan_args has a value of None, which a file cannot hold: leave it out")
        if self.plan not in PLANS and ":" not in self.plan:
            near = difflib.get_close_matches(self.plan, PLANS, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ValueError(f"plan = {self.plan!r} is unknown; {hint}Known: {', '.join(PLANS)}, or module:Class")
        for plan, key, value in (("column", "column", self.column), ("csv", "file", self.file)):
            if self.plan == plan and not value:
                raise ValueError(f'plan = "{plan}" needs cohorting.{key}')
        if self.plan == "multi-objective" and not (self.skew or self.speed):
            raise ValueError('plan = "multi-objective" needs skew or speed above 0')
        return self


class Federation(Section):
    """What happens inside a cohort's round: FedAvg, unless local or server say otherwise."""

    local_epochs: Count = 1
    local_steps: OptionalCount = 0  # above 0: so many steps instead of epochs, each from a fresh shuffle
    batch_size: Count = 20
    lr: Positive = 0.002
    momentum: Share = 0.0  # starts at zero every round
    local: str = "sgd"  # sgd, adam, adamw, fedprox, scaffold, feddyn (the last three on sgd), or "module:Class"
    local_args: dict[str, Any] = Field(default_factory=dict)  # keyword arguments of a class of your own
    nesterov: bool = False  # look ahead along the momentum
    weight_decay: NotNegative = 0.0  # added to the slope; adamw: taken from the weights
    clip: NotNegative = 0.0  # the longest a slope may be, longer ones are cut to it; 0: any length
    beta1: Share = 0.9  # adam, adamw: the usual memory of slopes …
    beta2: Share = 0.999  # … and of their squares
    epsilon: Positive = 1e-8  # adam, adamw: keeps small slopes from becoming large steps
    mu: NotNegative = 0.01  # fedprox: the pull back to the round's start; its authors try 0.001 to 1
    dyn: Positive = 0.01  # feddyn: its α; its authors take 0.1, 0.01 and 0.001
    schedule: Literal["constant", "step", "cosine"] = "constant"  # of lr, over rounds
    schedule_rounds: OptionalCount = 0  # step: lr falls every so many rounds; cosine: down to the floor in so many
    schedule_factor: Fraction = 0.5  # step: what lr is multiplied by
    schedule_floor: Fraction = 0.01  # step, cosine: the part of lr that stays, for rounds may go on long after
    warmup: OptionalCount = 0  # rounds in which lr grows to its full height, with any schedule
    server: str = "mean"  # mean, fedavgm, fedadagrad, fedadam, fedyogi, fednova, median, trimmed-mean, krum, or own
    server_args: dict[str, Any] = Field(default_factory=dict)  # keyword arguments of a class of your own
    server_lr: NotNegative = 0.0  # fedavgm, fedadagrad, fedadam, fedyogi; 0: theirs, which is 1 and else 10^-1.5
    server_momentum: Share = 0.9  # fedavgm: β; fedadam, fedyogi: β₁; fedadagrad: β₁ too, 0 if it is not given
    server_beta2: Share = 0.99  # fedadam, fedyogi: as their authors set it
    server_tau: Positive = 1e-3  # fedadagrad, fedadam, fedyogi: how adaptive; smaller is more
    trim: Annotated[Number, Field(ge=0, lt=0.5)] = 0.1  # trimmed-mean: left out on either side; above 0: one at least
    byzantine: OptionalCount = 0  # krum: so many participants may send anything
    chosen: Count = 1  # krum: the mean of so many models (multi-Krum), 1 is Krum
    update_norm: NotNegative = 0.0  # the longest update the server takes, longer ones are cut to it; 0: any length
    participation: Fraction = 1.0  # of a cohort's clients, in every round
    participants: OptionalCount = 0  # above 0: so many clients of each cohort instead
    weights: Literal["equal", "samples"] = "equal"  # the authors average client models equally
    selection: str = "random"  # who takes part: random, all, oort, refl, power-of-choice, or "module:Class"
    selection_args: dict[str, Any] = Field(default_factory=dict)  # keyword arguments of that part
    over_selection: NotNegative = 0  # 0.3: ask 30 % more clients than are needed; the first to finish count
    deadline: NotNegative = 0  # virtual seconds after which a round ends without those who are late; 0: none
    late: Literal["drop", "partial", "stale"] = "drop"  # nothing | the steps that fit | joins a later round, damped
    stale_rounds: Count = 5  # late = "stale": an older update comes to nothing; as FedScale's max_staleness
    minimum: Count = 1  # clients that a round waits for until they are there at once; fewer results: it is repeated
    buffer: OptionalCount = 0  # above 0: no rounds, but an update of the model for so many results (FedBuff's K)
    concurrency: OptionalCount = 0  # buffer: clients that train at the same time; 0: as many as take part in a round

    @model_validator(mode="before")
    @classmethod
    def _follow_the_server(cls, tree: Any) -> Any:
        return {**part_settings.own_defaults(tree.get("server")), **tree} if isinstance(tree, dict) else tree

    @model_validator(mode="after")
    def _check(self) -> Self:
        if trouble := part_settings.discord(self) or round_settings.discord(self):
            raise ValueError(trouble)
        return self


class Stopping(Section):
    """When a cohort's training ends, and which of its models becomes the teacher."""

    rule: Literal["plateau", "rounds", "budget", "joint"] = "plateau"  # joint: all cohorts together, by what they teach
    patience: Count = 50  # plateau: rounds without a new minimum of the moving average
    window: Count = 20  # plateau: rounds in the moving average
    rounds: OptionalCount = 0  # rule = "rounds": exactly so many
    hours: NotNegative = 0  # a limit in virtual hours, with any rule; 0: none
    cpu_hours: NotNegative = 0  # a limit for the whole federation; 0: none
    keep: Literal["best", "last", "average"] = (
        "best"  # lowest moving average | newest, joint's "best" too | mean of late
    )
    late: Count = 10  # keep = "average": every round's model counts one in so many, the average before it the rest
    judge: Literal["ensemble", "public"] = "ensemble"  # joint: validation samples | two halves agree on public ones
    every: Count = 25  # joint: rounds of a leg, after which cohorts wait for each other and are judged
    gain: NotNegative = 4.0  # joint: go on while twice the CPU hours would gain so many points; 0: until a limit
    legs: Annotated[Integer, Field(ge=4)] = 6  # joint: judgements that the gain is taken from; fewer are mostly noise
    asked: Fraction = 1.0  # judge = "ensemble": of the clients with validation samples, the same ones every time

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.rule == "rounds" and self.rounds < 1:
            raise ValueError('rule = "rounds" needs rounds, at least 1')
        if self.rule == "budget" and not (self.hours or self.cpu_hours):
            raise ValueError('rule = "budget" needs hours or cpu_hours')
        return self


class Devices(Section):
    """How fast every client is, and when it is there."""

    trace: str = "synthetic"  # "fedscale" (in the data folder), a csv or pickle file, "synthetic", or "fixed"
    compute_ms: Positive = 50.0  # trace = "fixed": milliseconds per sample (inference)
    network_kbps: Positive = 6000.0  # trace = "fixed": kbit/s
    availability: str = "always"  # "fedscale" (in the data folder), a json file like it, "synthetic", or "always"
    online_hours: Positive = 4.0  # availability = "synthetic": mean length of a spell; lengths are exponential
    offline_hours: Positive = 8.0  # phones train at night: a third of the day
    crash_rate: Share = 0.0  # of the clients asked in a round, so many come to nothing


RECIPES: dict[str, dict[str, Any]] = {
    "paper": {
        "views": 1, "same_views": False, "augment": "training", "mirrored": False, "join": "logits",
        "weights": "labels", "sharpen": 0.0, "loss": "l1", "temperature": 1.0, "epochs": 50, "batch_size": 512,
        "lr": 0.001, "schedule": "constant", "start": "fresh",
    },
}  # fmt: skip
"""What a recipe sets; the one that is not here, cpfl, is the default of every setting."""


class Distillation(Section):
    """How cohort models become one."""

    recipe: Literal["cpfl", "paper"] = "cpfl"  # what the settings down to start are where they are not given
    views: Count = 3  # different views of each image, taken in turn epoch by epoch
    same_views: bool = True  # the student sees what the teachers saw; false: targets once, a new view every epoch
    augment: Literal["auto", "cut-mix", "crop-flip", "mirror", "training", "none"] = (
        "auto"  # of views; auto: cut-mix if training images are augmented, else none; mirror: as it is, then mirrored
    )
    mirrored: bool = False  # teachers look at the mirror image of every augmented view too; the mean of both counts
    join: Literal["probabilities", "logits", "log-probabilities"] = "probabilities"
    weights: Literal["labels", "uniform"] = "labels"  # per class, a cohort's share of its labels | 1/n
    sharpen: Share = 0.5  # probabilities: until their mean entropy is so much of the largest there is; 0: as they are
    loss: Literal["kl", "mse", "l1"] = "kl"
    temperature: Positive = 1.0  # of probabilities and of kl
    epochs: Count = 100
    batch_size: Count = 512
    lr: Positive = 0.004  # Adam; the highest one
    schedule: Literal["one-cycle", "constant"] = "one-cycle"  # of lr; one-cycle: up for a fifth of the steps, then down
    start: Literal["auto", "mean", "fresh"] = "auto"  # the student's first weights; auto: the teachers' mean if it fits
    student: str = ""  # another model than the cohorts'; empty: the same
    at: str = ""  # "10h": distil the models every cohort had at that virtual time
    quorum: Fraction = 1.0  # distil when this share of the cohorts has stopped
    unfinished: Literal["latest", "drop"] = "latest"  # what cohorts that had not stopped contribute then

    @model_validator(mode="before")
    @classmethod
    def _follow_the_recipe(cls, tree: Any) -> Any:
        named = tree.get("recipe") if isinstance(tree, dict) else None
        return {**RECIPES.get(named, {}), **tree} if isinstance(named, str) else tree  # no name is refused later

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.start == "mean" and self.student:
            raise ValueError(
                f'start = "mean" takes the teachers\' weights, which student = {self.student!r} cannot have'
            )
        if self.at:
            hours(self.at)
            if self.quorum < 1:
                raise ValueError("at and quorum exclude each other: give one")
        return self


class Privacy(Section):
    """What a cohort's label counts may tell of its clients."""

    counts: Literal["plain", "masked"] = "plain"  # simulated clients may mask theirs too; real ones always do
    smallest: Count = 1  # a cohort of fewer clients hides nobody: its model gets uniform weights
    epsilon: NotNegative = 0  # noise on every sum for (ε, δ) differential privacy of single samples; 0: none
    delta: Annotated[Share, Field(gt=0)] = 1e-5


class Experiment(Section):
    """One experiment, whole."""

    name: Annotated[str, Field(pattern=r"^\w[\w.-]*$")] = "experiment"  # becomes part of folder names
    cohorts: Count = 4  # n, the dial: 1 is plain FL, M is one-shot FedKD
    clients: Count = 40  # M
    seed: OptionalCount = 90  # the authors' seeds are 90–94
    max_rounds: Count = 5000  # per cohort, a safety net
    snapshots: str = ""  # "5h" or "50 rounds": keep cohort models as they were then; empty: none
    precision: Literal["float32", "tf32", "bf16", "float64"] = "float32"  # of the arithmetic; models stay in float32
    checkpoint_seconds: NotNegative = 5.0  # a kill costs at most so much work besides open rounds; 0: every round
    data: Data = Data()
    model: Model = Model()
    cohorting: Cohorting = Cohorting()
    federation: Federation = Federation()
    stopping: Stopping = Stopping()
    devices: Devices = Devices()
    distillation: Distillation = Distillation()
    privacy: Privacy = Privacy()

    @property
    def numbers(self) -> Literal["float32", "float64"]:
        """What inputs and models are stored as."""
        return "float64" if self.precision == "float64" else "float32"

    def __init__(self, /, **tree: Any) -> None:
        """A mistake in any setting becomes one sentence, from Python as from a file."""
        try:
            super().__init__(**tree)
        except ValidationError as error:
            raise SettingError(sentence(error, type(self))) from None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.snapshots:
            interval(self.snapshots)
        if trouble := setting_groups.discord(self):
            raise ValueError(trouble)
        return self
