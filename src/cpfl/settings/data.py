"""[data]: who holds which samples, and how samples become model inputs."""

from typing import Annotated, Literal, Self

from pydantic import model_validator

from cpfl.settings.types import Count, Number, OptionalCount, Positive, Section, Share, when


class Data(Section):
    """Who holds which samples, and how samples become model inputs."""

    train: str = "digits"
    """Training set: a known set, a folder below a data root, or a path."""
    public: str = "letters"
    """Public set, unlabelled: the cohort models are distilled on it."""
    public_splits: tuple[str, ...] = ()
    """Splits of the public set to use, such as ["train", "extra"]; empty: the set's usual ones."""
    split: Literal["dirichlet", "iid", "column", "shards"] = "dirichlet"
    """How training samples are divided among clients."""
    alpha: Annotated[Positive, when("split = dirichlet")] = 0.1
    """Dirichlet concentration α: lower is more skewed. The paper uses 0.1, 0.3 and 1."""
    remainder: Annotated[Literal["last", "spread"], when("split = dirichlet")] = "last"
    """Who gets what rounding leaves over: the last client, as in the authors' code, or all clients."""
    column: Annotated[str, when("split = column")] = ""
    """Id column of the training set that says which client owns a sample."""
    shards: Annotated[Count, when("split = shards")] = 2
    """Label-sorted shards per client (McMahan et al. 2017)."""
    validation: Share = 0.1
    """Share of a client's samples that it keeps for validation."""
    validation_min_samples: Annotated[Count, when("validation")] = 10
    """A client with fewer samples keeps none for validation and reports no loss."""
    augment: Literal["none", "crop-flip-cutout"] = "none"
    """Augmentation of training images, and of public images where distillation.augment says "training"."""
    augment_validation: Annotated[bool, when("augment != none")] = False
    """Augment validation images too, as the authors' code does."""
    mean: tuple[Number, ...] = ()
    """Mean per channel of values in 0 to 1, for normalization; empty: no normalization."""
    std: tuple[Number, ...] = ()
    """Standard deviation per channel, for normalization."""
    public_mean: tuple[Number, ...] | None = None
    """The same for the public set; not given: as for the training set."""
    public_std: tuple[Number, ...] | None = None
    """The same for the public set; not given: as for the training set."""
    public_fit: Literal["exact", "crop", "resize"] = "exact"
    """How public images get the training images' size; "exact": they must have it."""
    train_limit: OptionalCount = 0
    """Use only the first so many training samples, for a quick look; 0: all."""
    public_limit: OptionalCount = 0
    """Use only the first so many public samples; 0: all."""
    classes: OptionalCount = 0
    """Number of classes; 0: as many as the labels have."""

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
