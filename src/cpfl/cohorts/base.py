"""Cohorts, what a rule that assigns clients to them is, and how good an assignment is.

Axes: M clients, N cohorts, S slots of a cohort, C classes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from cpfl.errors import SettingError
from cpfl.randomness import stream

Floats = NDArray[np.float64]
Index = NDArray[np.int64]

EMPTY = -1  # a slot without a client
LEARNS = "The global server, which assigns cohorts, learns"
LABELS = "how many samples of each label every single client holds, which the paper's method hides in its cohort's sum"
SECONDS = "how long every single client's round takes, and so how fast its device and network are and how much it holds"


class Members(Sequence[int]):
    """A cohort's clients in ascending order: reads like a list of numbers, and takes eight bytes for each."""

    def __init__(self, clients: ArrayLike | Sequence[int]) -> None:
        self._numbers: NDArray[np.int64] = np.asarray(clients, np.int64)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: Any) -> Any:
        return Members(self._numbers[index]) if isinstance(index, slice) else int(self._numbers[index])

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers.tolist())

    def holds(self, clients: Sequence[int]) -> bool:
        """Whether all of these are members; one vectorised look-up, since engines call this every round."""
        try:
            wanted = np.asarray(clients, np.int64)
        except OverflowError:
            return False
        positions = np.searchsorted(self._numbers, wanted)
        return bool((self._numbers.take(positions, mode="clip") == wanted).all())

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self._numbers, dtype, copy=copy)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        return repr(list(self))


Cohorts = Sequence[Sequence[int]]


@dataclass(frozen=True)
class ClientView:
    """What a rule sees of the clients; what its `needs` does not name is None."""

    count: int  # M
    seed: int
    # `Any` stands for None: a rule need not test for what it needs.
    labels: Index | Any = None  # samples by client and label, (M, C)
    seconds: Floats | Any = None  # how long each client's part in a round takes, (M,)
    column: Sequence[str] | Any = None  # each client's value in the rule's `column` of the training data

    @property
    def rng(self) -> np.random.Generator:
        """A generator at the start of its stream: draw from it alone, and the same seed gives the same cohorts."""
        return stream(self.seed, "cohorts")

    def shuffled(self) -> Index:
        """The clients in the random order that decides between equal ones."""
        return self.rng.permutation(self.count)


class CohortAssignment:
    """A rule of assignment. A subclass with `assign` is named `module:Class` in assignment.rule.

    Its keyword arguments are assignment.rule_args. It sees of single clients what `needs` names, and the run's record
    says that the global server learns it.
    """

    needs: tuple[str, ...] = ()  # of "labels", "seconds" and "column"
    column: str = ""  # which column of the training data, where needs names "column"

    def assign(self, clients: ClientView, cohorts: int) -> Sequence[int] | Index:
        """The cohort of every client, from 0; no cohort may be empty."""
        raise NotImplementedError

    @property
    def reveals(self) -> str:
        """One sentence: what the global server learns of clients that the paper's method keeps from it."""
        texts = {"labels": LABELS, "seconds": SECONDS, "column": f"every single client's {self.column}"}
        learned = ", and ".join(text for name, text in texts.items() if name in self.needs)
        return f"{LEARNS} {learned}." if learned else "The assignment rule is shown nothing of any client."


class RandomAssignment(CohortAssignment):
    """The paper's rule: clients at random into n cohorts whose sizes differ by at most one."""

    reveals = "Cohorts are drawn at random, which reveals nothing of any client."

    def assign(self, clients: ClientView, cohorts: int) -> Index:
        """In shuffled order, cohort after cohort."""
        return by_slot(fill_slots(clients.shuffled(), sizes(clients.count, cohorts)))


def as_cohorts(name: str, cohort_of: Sequence[int] | Index, clients: int, cohorts: int) -> Cohorts:
    """A rule's answer, checked, as each cohort's clients in ascending order."""
    found = np.asarray(cohort_of)
    if found.shape != (clients,) or not np.array_equal(np.unique(found), np.arange(cohorts)):
        raise SettingError(
            f"assignment.rule = {name!r} must give each of the {clients} clients a cohort from 0 to {cohorts - 1} "
            "and leave none empty"
        )
    order = np.argsort(found, kind="stable")
    return [Members(part) for part in np.split(order, np.searchsorted(found[order], np.arange(1, cohorts)))]


def sizes(clients: int, cohorts: int) -> Index:
    """Sizes that differ by at most one, the larger ones first."""
    return clients // cohorts + (np.arange(cohorts) < clients % cohorts).astype(np.int64)


def fill_slots(order: Index, sizes_N: Index) -> Index:
    """Clients in this order fill the slots of cohort after cohort; (N, largest size), the last slot may be empty."""
    slots = np.full((len(sizes_N), int(sizes_N.max())), EMPTY, np.int64)
    slots[np.arange(slots.shape[1]) < sizes_N[:, None]] = order
    return slots


def by_slot(slots_NS: Index) -> Index:
    """The cohort of every client, from the clients in each cohort's slots."""
    taken = slots_NS != EMPTY
    cohort_of = np.empty(np.count_nonzero(taken), np.int64)
    cohort_of[slots_NS[taken]] = np.nonzero(taken)[0]
    return cohort_of


def skews(counts_NC: Floats, whole_C: Floats) -> Floats:
    """Total-variation distance of each row's label distribution to the whole's: 0 is equal, 1 is nothing in common.

    It is the share of a cohort's samples that would need another label for the cohort to mirror the whole.
    """
    # A cohort without samples has no distribution: it counts as far away.
    total_N = counts_NC.sum(axis=-1, keepdims=True)
    share_NC = counts_NC / np.maximum(total_N, 1e-12)
    skew: Floats = np.abs(share_NC - whole_C / whole_C.sum()).sum(axis=-1) / 2
    return np.where(total_N[..., 0] > 0, skew, 1.0)


def expected_longest(seconds: Floats, participants: int) -> float:
    """The mean length of a round with random participants: the expected maximum of so many of these seconds.

    Of all draws of s from m, C(k-1, s-1) have the k-th fastest as their slowest.
    """
    m, s = len(seconds), participants
    k = np.arange(m - 1, s - 1, -1)
    chance = s / m * np.cumprod([1.0, *(k + 1 - s) / k])  # of the slowest client of all, the second slowest, …
    return float(np.sort(seconds)[::-1][: len(chance)] @ chance)
