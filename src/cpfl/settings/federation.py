"""[federation]: what happens inside a cohort's round."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from cpfl.settings.choices import CLIENT_OPTIMIZERS, SELECTIONS, SERVER_OPTIMIZERS
from cpfl.settings.types import Args, Count, Fraction, NotNegative, OptionalCount, Positive, Section, Share, When


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

    @property
    def mixes_ages(self) -> str:
        """The setting that lets updates of different age into one model; empty: none does."""
        if self.straggler_policy == "stale":
            return 'straggler_policy = "stale"'
        return "buffer_size" if self.buffer_size else ""
