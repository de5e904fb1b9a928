"""The sets that are known by name: what they are, where they come from and what a folder of them must hold.

A name that is not here is a folder of the user's own; it is read by what lies in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Source = Literal["embedded", "files", "trace"]


@dataclass(frozen=True)
class RemoteFile:
    """One published file."""

    url: str
    checksum: str  # "md5:…" or "sha256:…", as its publisher or its best known reader gives it
    size: int  # bytes; the hub rounds to megabytes

    @property
    def name(self) -> str:
        """Its name in the set's folder."""
        return self.url.rsplit("/", 1)[1]


@dataclass(frozen=True)
class Entry:
    """One known set."""

    name: str
    what: str
    expects: str  # what its folder must hold, as the end of the sentence "expected there: …"
    shape: tuple[int, ...] = ()
    classes: int | None = None  # None: unlabelled
    source: Source = "files"
    public: tuple[str, ...] = ("train",)  # the splits of its public use, as in the paper
    files: tuple[RemoteFile, ...] = ()

    @property
    def downloadable(self) -> bool:
        """Whether `cpfl data get` can fetch it."""
        return bool(self.files)

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(file.size for file in self.files)


_KRIZHEVSKY = "https://www.cs.toronto.edu/~kriz/"
_COATES = "http://ai.stanford.edu/~acoates/stl10/"
_HOUSE_NUMBERS = "http://ufldl.stanford.edu/housenumbers/"
# A revision is named, so that the file behind the address cannot change.
_FEMNIST = "https://huggingface.co/datasets/flwrlabs/femnist/resolve/df739a2b09df2b5cc1ec93107659b9a9a8566487/data/"
_FEDSCALE = "https://raw.githubusercontent.com/SymbioticLab/FedScale/master/benchmark/dataset/data/device_info/"

_ENTRIES = (
    Entry(
        "digits",
        "handwritten digits of scikit-learn, 1,797 in all, a fixed fifth held out as the test set",
        "nothing, it is built in",
        shape=(1, 8, 8),
        classes=10,
        source="embedded",
    ),
    Entry(
        "letters",
        "4,000 drawn letters in the form of the digits, unlabelled: the public set for digits",
        "nothing, it is built in",
        shape=(1, 8, 8),
        source="embedded",
    ),
    Entry(
        "digits-grainy",
        "the digits as a bad scanner sees them: hard enough for small cohorts to overfit",
        "nothing, it is built in",
        shape=(1, 8, 8),
        classes=10,
        source="embedded",
    ),
    Entry(
        "letters-grainy",
        "the letters as a bad scanner sees them: the public set for digits-grainy",
        "nothing, it is built in",
        shape=(1, 8, 8),
        source="embedded",
    ),
    Entry(
        "cifar10",
        "CIFAR-10: small photographs, 50,000 train, 10,000 test",
        "train-*.parquet and test-*.parquet with columns image (or img) and label, or cifar-10-binary.tar.gz, "
        "or cifar-10-batches-bin/ with data_batch_1.bin … data_batch_5.bin and test_batch.bin",
        shape=(3, 32, 32),
        classes=10,
        files=(
            RemoteFile(f"{_KRIZHEVSKY}cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530", 170_052_171),
        ),
    ),
    Entry(
        "stl10",
        "STL-10: photographs from ImageNet, 5,000 train, 8,000 test, 100,000 unlabelled: "
        "the paper's public set for CIFAR-10",
        "stl10_binary.tar.gz, or stl10_binary/ with train_X.bin, train_y.bin, test_X.bin, test_y.bin "
        "and unlabeled_X.bin (unpacked, it loads faster)",
        shape=(3, 96, 96),
        classes=10,
        public=("unlabeled",),
        files=(RemoteFile(f"{_COATES}stl10_binary.tar.gz", "md5:91f7769df0f17e558f3565bffb0c7dfb", 2_640_397_119),),
    ),
    Entry(
        "svhn",
        "SVHN: house numbers, 73,257 train, 26,032 test, 531,131 extra: the paper's public set for FEMNIST",
        "train_32x32.mat, test_32x32.mat and extra_32x32.mat",
        shape=(3, 32, 32),
        classes=10,
        public=("extra",),
        files=(
            RemoteFile(f"{_HOUSE_NUMBERS}train_32x32.mat", "md5:e26dedcc434d2e4c54c9b2d4a06d8373", 182_040_794),
            RemoteFile(f"{_HOUSE_NUMBERS}test_32x32.mat", "md5:eb5a983be6a315427106f1b164d9cef3", 64_275_384),
            RemoteFile(f"{_HOUSE_NUMBERS}extra_32x32.mat", "md5:a93ce644f1a588dc4d68dda5feec44a7", 1_329_278_602),
        ),
    ),
    Entry(
        "femnist",
        "FEMNIST: handwritten digits and letters of 3,597 writers, 62 classes, no test set of its own",
        "train-*.parquet with columns image, writer_id and character (the hub's flwrlabs/femnist), "
        "or LEAF's train/*.json and test/*.json",
        shape=(1, 28, 28),
        classes=62,
        files=(
            RemoteFile(
                f"{_FEMNIST}train-00000-of-00001.parquet",
                "sha256:cdb389c8d41d5facab79a4a8d452724c30d9c629a1c1e0b1e9ae9de2c633522b",
                201_000_000,
            ),
        ),
    ),
    Entry(
        "mnist-writers",
        "MNIST with the writers of its digits: 60,000 train (539 writers), 10,000 test (297 others)",
        "train-*.parquet and test-*.parquet with columns image (28×28 grey), writer_id and character",
        shape=(1, 28, 28),
        classes=10,
    ),
    Entry(
        "tinyimagenet32",
        "Tiny-ImageNet shrunk to 32×32, 40,000, unlabelled: a public set for CIFAR-10",
        "train-*.parquet with column image (32×32 colour)",
        shape=(3, 32, 32),
    ),
    Entry(
        "emnist-letters",
        "EMNIST letters, 60,000, unlabelled: a public set for handwritten digits",
        "train-*.parquet with column image (28×28 grey)",
        shape=(1, 28, 28),
    ),
    Entry(
        "fedscale",
        "device trace: compute and network speeds of 500,000 phones",
        "client_device_capacity, a pickled {id: {computation: ms, communication: kbit/s}}, or such a table as .csv",
        source="trace",
        files=(
            RemoteFile(
                f"{_FEDSCALE}client_device_capacity",
                "sha256:477f61049443987318fc5667cafa059b3b420eb0e03ccb5ceb3262d20e059e53",
                39_369_071,
            ),
        ),
    ),
)

CATALOGUE: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}


def published_size(file_name: str) -> int | None:
    """How large the published file of this name is."""
    sizes = {file.name: file.size for entry in _ENTRIES for file in entry.files}
    return sizes.get(file_name)
