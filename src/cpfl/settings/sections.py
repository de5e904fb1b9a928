"""The sections of an experiment but [distillation], which has recipes."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from cpfl.settings.choices import (
    ASSIGNMENT_RULES,
    CLIENT_OPTIMIZERS,
    OBJECTIVES,
    SELECTIONS,
    SERVER_OPTIMIZERS,
    STOPPING_RULES,
)
from cpfl.settings.types import (
    MOST,
    Args,
    Count,
    Fraction,
    LearningRate,
    Listed,
    NoBool,
    Norm,
    NotNegative,
    Number,
    OptionalCount,
    Section,
    Share,
    When,
    optional,
)

Milliseconds = Annotated[float, Field(ge=1e-6, le=MOST), NoBool]
Kilobits = Annotated[float, Field(ge=1e-3, le=MOST), NoBool]
Hours = Annotated[float, Field(ge=0.01, le=MOST), NoBool]

_PUBLIC = When("public != none")
_LOSES = When("deadline or devices.availability != always or devices.crash_rate or buffer_size")


class Data(Section):
    """Who holds which samples, and how samples become model inputs."""

    train: str = "digits"
    """Training set: a known set, a folder below a data root, or a path."""
    public: str = "letters"
    """Public set, unlabelled: the cohort models are distilled on it; none: there is none (meetings.final = merge)."""
    public_splits: Annotated[tuple[str, ...], Listed, _PUBLIC] = ()
    """Splits of the public set to use, such as ["train", "extra"]; empty: the set's usual ones."""
    inputs: Literal["auto", "pixels", "numbers", "integers"] = "auto"
    """What samples are: pixels (bytes, scaled to 0 … 1), numbers, or integers such as tokens, which stay integers.
    auto: bytes of (channels, height, width) are pixels, other integers stay integers."""
    label: str = ""
    """Column of labels in a table: csv, npz, parquet, save_to_disk, a frame or dataset in Python; empty: label, labels,
    target, y or class."""
    split: Literal["dirichlet", "iid", "column", "shards"] = "dirichlet"
    """How training samples are divided among clients."""
    alpha: Annotated[float, Field(ge=1e-6, le=MOST), NoBool, When("split = dirichlet")] = 0.1
    """Dirichlet concentration α: lower is more skewed. The paper uses 0.1, 0.3 and 1."""
    remainder: Annotated[Literal["last", "spread"], When("split = dirichlet")] = "last"
    """Who gets what rounding leaves: the last client, as in the authors' code, or those with the largest fractions."""
    column: Annotated[str, When("split = column")] = ""
    """Id column of the training set that says which client owns a sample."""
    shards: Annotated[Count, When("split = shards")] = 2
    """Label-sorted shards per client (McMahan et al. 2017)."""
    validation: Annotated[float, Field(ge=0, le=0.99), NoBool] = 0.1
    """Share of a client's samples that it keeps for validation."""
    validation_min_samples: Annotated[Count, When("validation")] = 10
    """A client with fewer samples keeps none for validation and reports no loss."""
    augment: Literal["none", "crop-flip-cutout"] = "none"
    """Augmentation of training images, and of public images where distillation.augment says "training"."""
    augment_validation: Annotated[bool, When("augment != none")] = False
    """Augment validation images too, as the authors' code does."""
    mean: Annotated[tuple[Number, ...], Listed] = ()
    """Mean per channel of values in 0 to 1, for normalization; empty: no normalization."""
    std: Annotated[tuple[Number, ...], Listed] = ()
    """Standard deviation per channel, for normalization."""
    public_mean: Annotated[tuple[Number, ...] | None, Listed, _PUBLIC] = None
    """The same for the public set; not given: as for the training set."""
    public_std: Annotated[tuple[Number, ...] | None, Listed, _PUBLIC] = None
    """The same for the public set; not given: as for the training set."""
    public_fit: Annotated[Literal["exact", "crop", "resize"], _PUBLIC] = "exact"
    """How public images get the training images' size; "exact": they must have it."""
    train_limit: OptionalCount = 0
    """Use only the first so many training samples, for a quick test; 0: all."""
    public_limit: Annotated[OptionalCount, _PUBLIC] = 0
    """Use only the first so many public samples; 0: all."""
    classes: Annotated[
        int, Field(ge=0, le=100_000), NoBool, When("model.objective != binary | multi-label | regression")
    ] = 0
    """Number of classes; 0: as many as the labels have."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for use, mean, std in (("", self.mean, self.std), ("public_", self.public_mean or (), self.public_std or ())):
            if bool(mean) != bool(std):
                given, missing = ("mean", "std") if mean else ("std", "mean")
                raise ValueError(f"data.{use}{given} is given without data.{use}{missing}: both are needed")
            if len(mean) != len(std):
                raise ValueError(f"data.{use}mean has {len(mean)} channels, and data.{use}std has {len(std)}")
            if any(s < 1e-9 for s in std):
                raise ValueError(f"data.{use}std must be 1e-09 or more in every channel")
        return self


class Model(Section):
    """The model that clients train."""

    name: str = "mlp"
    """gn-lenet, femnist-cnn, mlp, signal-cnn, char-lstm, or a class of yours as "module:Class"."""
    args: Args = Field(default_factory=dict)
    """Keyword arguments of that class."""
    objective: Annotated[str, AfterValidator(OBJECTIVES.check)] = "classification"
    """What it is trained for: classification, per-position (a class at every position, such as the next token), binary,
    multi-label, regression, or a class of yours as "module:Class"."""
    objective_args: Args = Field(default_factory=dict)
    """Arguments of the objective: per-position takes ignore, the label of positions that do not count (-100), and
    multi-label metric, accuracy or f1."""
    start: str = "fresh"
    """The weights that training starts from: fresh (drawn by the seed), given (those of the model object given in
    Python), or a safetensors file with all weights: a path, or a file in a data folder."""
    bytes: Annotated[int, Field(ge=0, le=10**15), NoBool] = 0
    """Size on the network in bytes; 0: four bytes for each trained parameter and each number of a buffer."""
    by_cohort: dict[str, str] = Field(default_factory=dict)
    """Cohorts that train another model, with its defaults and fresh weights: {"0" = "gn-lenet"}."""


class Assignment(Section):
    """Which clients train together; `cohorts` says into how many cohorts."""

    rule: Annotated[str, AfterValidator(ASSIGNMENT_RULES.check)] = "random"
    """How clients are assigned to cohorts: random, speed, column, label-balanced, label-clustered, multi-objective,
    csv, or a class of yours as "module:Class". Most rules reveal something of clients: `cpfl cohorts` says what."""
    rule_args: Args = Field(default_factory=dict)
    """Arguments of the rule: column = {column = "region"}, csv = {file = "cohorts.csv"},
    multi-objective = {skew_weight = 1.0, speed_weight = 1.0}."""


class Federation(Section):
    """What happens inside a cohort's round: FedAvg, unless client or server say otherwise."""

    local_epochs: Annotated[int, Field(ge=1, le=100_000), NoBool, When("local_steps = 0")] = 1
    """Passes of a client over its samples in a round."""
    local_steps: Annotated[int, Field(ge=0, le=1_000_000), NoBool] = 0
    """Mini-batches of a client in a round instead of epochs, each from a fresh shuffle; 0: use local_epochs."""
    batch_size: Count = 20
    """Samples of a mini-batch."""
    lr: LearningRate = 0.002
    """The clients' learning rate."""
    momentum: Share = 0.0
    """Momentum of SGD at the clients; it starts at zero in every round."""
    lr_schedule: Literal["constant", "step", "cosine"] = "constant"
    """How lr changes over rounds."""
    lr_schedule_args: Annotated[Args, When("lr_schedule = step | cosine")] = Field(default_factory=dict)
    """rounds: lr falls every so many rounds (step), or to its floor in so many (cosine); factor: what step multiplies
    lr by (0.5); floor: the share of lr that remains (0.01)."""
    warmup_rounds: OptionalCount = 0
    """Rounds in which lr grows linearly to its full value."""
    max_grad_norm: Norm = 0.0
    """Longer gradients are scaled down to this norm; 0: no clipping."""
    client: Annotated[str, AfterValidator(CLIENT_OPTIMIZERS.check)] = "sgd"
    """Client optimizer: sgd, adam, adamw, fedprox, scaffold, feddyn, or a class of yours as "module:Class"."""
    client_args: Args = Field(default_factory=dict)
    """Arguments of the client optimizer: fedprox takes mu, feddyn alpha, adam and adamw beta1, beta2 and epsilon, all
    take weight_decay, and those based on SGD nesterov."""
    server: Annotated[str, AfterValidator(SERVER_OPTIMIZERS.check)] = "mean"
    """Server optimizer: mean (FedAvg), fedavgm, fedadagrad, fedadam, fedyogi, fednova, median, trimmed-mean, krum, or a
    class of yours as "module:Class"."""
    server_args: Args = Field(default_factory=dict)
    """Arguments of the server optimizer: fedavgm takes lr and momentum, the adaptive ones lr, beta1, beta2 (not
    fedadagrad) and tau, trimmed-mean trim, krum num_byzantine and num_selected."""
    max_update_norm: Norm = 0.0
    """The server scales longer client updates down to this norm; 0: no clipping."""
    weights: Literal["equal", "samples"] = "equal"
    """Weights of clients in the mean: equal, as in the authors' code, or their training samples."""
    batch_stats: Literal["average", "local"] = "average"
    """average: BatchNorm is averaged like the rest; local: a client begins a round with its own parameters and running
    statistics of BatchNorm (FedBN, Li et al. 2021), and the cohort's model has the mean of the participants'."""
    participation: Annotated[Fraction, When("participants = 0")] = 1.0
    """Share of a cohort's clients that take part in a round."""
    participants: OptionalCount = 0
    """Number of participants of each cohort's round instead; 0: use participation."""
    selection: Annotated[str, AfterValidator(SELECTIONS.check)] = "random"
    """Who takes part: random, all, oort, refl, power-of-choice, or a class of yours as "module:Class"."""
    selection_args: Args = Field(default_factory=dict)
    """Arguments of the selection rule."""
    over_selection: Annotated[float, Field(ge=0, le=1000), NoBool] = 0
    """0.3 selects 30 % more clients than needed; the first to finish count."""
    deadline: NotNegative = 0
    """Virtual seconds after which a round ends without its stragglers; 0: no deadline."""
    straggler_policy: Annotated[Literal["drop", "partial", "stale"], When("deadline or over_selection")] = "drop"
    """What becomes of stragglers' work: dropped, the steps that fit before the deadline, or a later round as a stale
    update with a lower weight."""
    max_staleness: Annotated[Count, When("straggler_policy = stale")] = 5
    """Rounds after which a stale update is discarded, as FedScale's max_staleness."""
    min_results: Annotated[Count, _LOSES] = 1
    """A round starts when so many clients are available; with fewer results it is repeated."""
    buffer_size: OptionalCount = 0
    """Above 0: FedBuff instead of rounds, with a new model after so many results (its K)."""
    concurrency: Annotated[OptionalCount, When("buffer_size")] = 0
    """FedBuff: clients that train at the same time; 0: as many as would take part in a round."""

    @property
    def mixes_ages(self) -> str:
        """The setting that lets updates of different age into one model; empty: none does."""
        if self.straggler_policy == "stale":
            return 'straggler_policy = "stale"'
        return "buffer_size" if self.buffer_size else ""


class Stopping(Section):
    """When a cohort's training ends, and which of its models becomes the teacher."""

    rule: Annotated[str, AfterValidator(STOPPING_RULES.check)] = "plateau"
    """plateau: a cohort's validation loss stops falling (the paper); rounds: after so many; budget: only the limits
    below; joint: all cohorts stop together when the ensemble's score rises too slowly; or "module:Class"."""
    rule_args: Args = Field(default_factory=dict)
    """Keyword arguments of a rule of yours."""
    patience: Annotated[Count, When("rule != rounds | budget | joint")] = 50
    """Rounds without a new minimum of the moving average after which a cohort stops."""
    window: Count = 20
    """Rounds in the moving average of the validation loss."""
    rounds: Annotated[OptionalCount, When("rule = rounds")] = 0
    """Number of rounds."""
    max_hours: NotNegative = 0
    """Limit in virtual hours, with any rule; 0: none."""
    max_cpu_hours: NotNegative = 0
    """Limit in CPU hours of all cohorts together, with any rule; 0: none."""
    max_traffic_gb: NotNegative = 0
    """Limit in GB (10^9 bytes) of all traffic together, with any rule; 0: none."""
    keep: Literal["best", "last", "ema"] = "best"
    """The teacher: the model with the lowest moving average of the validation loss, the last one, or an exponential
    moving average of all rounds' models. With the rule joint, "best" is the last one."""
    ema_rounds: Annotated[Count, When("keep = ema")] = 10
    """A round's model has a weight of one in so many in the average."""
    metric: Annotated[Literal["ensemble-accuracy", "public-agreement"], When("rule = joint")] = "ensemble-accuracy"
    """What is evaluated: the ensemble on the clients' validation samples, by the objective's metric, or how often two
    halves of the cohorts agree on public samples, for which no client and no label is needed."""
    eval_interval: Annotated[Count, When("rule = joint", "meetings.rule = none or .cohorts = 1")] = 25
    """Rounds of a phase, after which cohorts wait for each other and the ensemble is evaluated; cohorts that meet are
    evaluated at every meeting."""
    min_gain: Annotated[NotNegative, When("rule = joint")] = 4.0
    """Continue while twice the CPU hours (gain_per) would gain so many points of the metric; 0: until a limit."""
    gain_per: Annotated[Literal["cpu_hours", "hours"], When("rule = joint")] = "cpu_hours"
    """What is doubled to compute the gain: CPU hours or virtual hours."""
    eval_window: Annotated[int, Field(ge=4, le=MOST), NoBool, When("rule = joint")] = 6
    """Evaluations from which the gain is estimated; fewer are mostly noise."""
    client_fraction: Annotated[Fraction, When("rule = joint", "metric = ensemble-accuracy")] = 1.0
    """Share of the clients with validation samples that evaluate the ensemble, the same ones every time."""


class Devices(Section):
    """How fast every client is, and when it is available."""

    trace: str = "synthetic"
    """Device speeds: "fedscale" (in the data folder), a csv or pickle file, "synthetic", or "fixed"."""
    compute_ms: Annotated[Milliseconds, When("trace = fixed")] = 50.0
    """Milliseconds of inference per sample, for all clients."""
    network_kbps: Annotated[Kilobits, When("trace = fixed")] = 6000.0
    """Network speed in kbit/s, for all clients."""
    availability: str = "always"
    """When clients are available: "fedscale" (in the data folder), a json file like it, "synthetic", or "always"."""
    online_hours: Annotated[Hours, When("availability = synthetic")] = 4.0
    """Mean hours of a client's online periods; their lengths are exponential."""
    offline_hours: Annotated[Hours, When("availability = synthetic")] = 8.0
    """Mean hours between two online periods."""
    crash_rate: Share = 0.0
    """Probability that a client crashes in a round and its work is lost."""


class Privacy(Section):
    """What label counts may reveal of clients."""

    label_counts: Literal["plain", "masked"] = "plain"
    """How simulated clients report label counts: plain sums, or masked sums as real clients always do."""
    min_clients: Count = 1
    """A cohort with fewer clients reports no label counts; its model gets uniform weights."""
    epsilon: Annotated[NotNegative, *optional(1e-6)] = 0
    """Noise on every sum for (ε, δ)-differential privacy of single samples; 0: none."""
    delta: Annotated[float, Field(ge=1e-30, lt=1), NoBool, When("epsilon")] = 1e-5
    """The δ of that promise."""
