"""[federation]: what happens inside a cohort's round, and which of its settings fit together."""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from cpfl.settings.choices import CLIENT_OPTIMIZERS, SELECTIONS, SERVER_OPTIMIZERS
from cpfl.settings.types import Args, Count, Fraction, NotNegative, OptionalCount, Positive, Section, Share, When

ROBUST = ("median", "trimmed-mean", "krum")  # servers that need every single update and give all the same weight


class Federation(Section):
    """What happens inside a cohort's round: FedAvg, unless client or server say otherwise."""

    local_epochs: Annotated[Count, When("local_steps = 0")] = 1
    """Passes of a client over its samples in a round."""
    local_steps: OptionalCount = 0
    """Mini-batches of a client in a round instead of epochs, each from a fresh shuffle; 0: use local_epochs."""
    batch_size: Count = 20
    """Samples of a mini-batch."""
    lr: Positive = 0.002
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
    max_grad_norm: NotNegative = 0.0
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
    """Arguments of the server optimizer: fedavgm takes lr and momentum, the adaptive ones lr, beta1, beta2 and tau,
    trimmed-mean trim, krum num_byzantine and num_selected."""
    max_update_norm: NotNegative = 0.0
    """The server scales longer client updates down to this norm; 0: no clipping."""
    weights: Literal["equal", "samples"] = "equal"
    """Weights of clients in the mean: equal, as in the authors' code, or their training samples."""
    participation: Annotated[Fraction, When("participants = 0")] = 1.0
    """Share of a cohort's clients that take part in a round."""
    participants: OptionalCount = 0
    """Number of participants of each cohort's round instead; 0: use participation."""
    selection: Annotated[str, AfterValidator(SELECTIONS.check)] = "random"
    """Who takes part: random, all, oort, refl, power-of-choice, or a class of yours as "module:Class"."""
    selection_args: Args = Field(default_factory=dict)
    """Arguments of the selection rule."""
    over_selection: NotNegative = 0
    """0.3 selects 30 % more clients than needed; the first to finish count."""
    deadline: NotNegative = 0
    """Virtual seconds after which a round ends without its stragglers; 0: no deadline."""
    straggler_policy: Annotated[Literal["drop", "partial", "stale"], When("deadline or over_selection")] = "drop"
    """What becomes of stragglers' work: dropped, the steps that fit before the deadline, or a later round as a stale
    update with a lower weight."""
    max_staleness: Annotated[Count, When("straggler_policy = stale")] = 5
    """Rounds after which a stale update is discarded, as FedScale's max_staleness."""
    min_results: Count = 1
    """A round starts when so many clients are available; with fewer results it is repeated."""
    buffer_size: OptionalCount = 0
    """Above 0: FedBuff instead of rounds, with a new model after so many results (its K)."""
    concurrency: Annotated[OptionalCount, When("buffer_size")] = 0
    """FedBuff: clients that train at the same time; 0: as many as would take part in a round."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.lr_schedule != "constant" and not self.lr_schedule_args.get("rounds"):
            raise ValueError(f"lr_schedule = {self.lr_schedule!r} needs lr_schedule_args.rounds, at least 1")
        if conflict := next(_conflicts(self), ""):
            raise ValueError(conflict)
        return self

    @property
    def mixes_ages(self) -> str:
        """The setting that lets updates of different age into one model; empty: none does."""
        if self.straggler_policy == "stale":
            return 'straggler_policy = "stale"'
        return "buffer_size" if self.buffer_size else ""


def _conflicts(settings: Federation) -> Iterator[str]:
    """Settings that do not fit together, each conflict in one sentence."""
    client, server, ages = settings.client, settings.server, settings.mixes_ages
    if client in ("adam", "adamw") and settings.momentum:
        yield f"client = {client!r} has a momentum of its own, client_args.beta1: momentum must be 0"
    if client == "scaffold" and settings.momentum:
        yield 'client = "scaffold" takes the path of plain SGD for the mean gradient: momentum must be 0'
    if client == "scaffold" and server in ROBUST:
        yield f'client = "scaffold" corrects towards the mean of its clients: server = {server!r} takes another model'
    if client == "feddyn" and server != "mean":
        yield 'client = "feddyn" has a server step of its own: server must be "mean"'
    if client == "feddyn" and settings.max_update_norm:
        yield 'client = "feddyn" corrects the plain mean of the models: max_update_norm must be 0'
    if server == "fednova" and (client != "sgd" or settings.client_args.get("nesterov")):
        yield 'server = "fednova" counts what each step of plain SGD adds: client must be "sgd", without nesterov'
    if server in ROBUST and settings.weights != "equal":
        yield f'server = {server!r} gives all clients the same weight: weights must be "equal"'
    everybody = settings.participation == 1 and not settings.participants
    if settings.selection == "all" and not everybody:
        yield 'selection = "all" takes all available clients: leave out participation and participants'
    if settings.over_selection and everybody:
        yield "over_selection selects more clients than needed: lower participation, or set participants"
    if settings.straggler_policy == "partial" and not settings.deadline:
        yield 'straggler_policy = "partial" needs a deadline, in virtual seconds'
    if settings.straggler_policy == "stale" and not (settings.deadline or settings.over_selection):
        yield 'straggler_policy = "stale" needs a deadline or over_selection: nobody is late without'
    if settings.concurrency and not settings.buffer_size:
        yield "concurrency goes with buffer_size: set buffer_size, or leave it out"
    plain = {"over_selection": 0, "deadline": 0, "straggler_policy": "drop", "min_results": 1, "selection": "random"}
    for key, default in plain.items():
        if settings.buffer_size and getattr(settings, key) != default:
            yield f"buffer_size replaces rounds, so {key} = {getattr(settings, key)!r} has no effect: leave it out"
    # Updates of different age are damped before a server optimizer sees them, so some have no meaning there.
    if ages and client in ("scaffold", "feddyn"):
        yield f"client = {client!r} needs clients that start from the same model: it does not go with {ages}"
    if ages and server in (*ROBUST, "fednova"):
        yield f"server = {server!r} weighs whole updates of one round: it does not go with {ages}"
