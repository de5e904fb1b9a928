"""A cohort's clients as an array of numbers."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray


class Members(Sequence[int]):
    """Clients in ascending order: reads like a list of numbers, and takes eight bytes for each."""

    def __init__(self, clients: ArrayLike | Sequence[int]) -> None:
        self._numbers: NDArray[np.int64] = np.asarray(clients, np.int64)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: Any) -> Any:
        return Members(self._numbers[index]) if isinstance(index, slice) else int(self._numbers[index])

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers.tolist())

    def __contains__(self, client: object) -> bool:
        return isinstance(client, int | np.integer) and self.holds([int(client)])

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
