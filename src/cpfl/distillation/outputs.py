"""What teachers answered before: students of the same teachers need the same forward passes once."""

from collections.abc import Callable, Hashable

from torch import Tensor

MAX_BYTES = 2**30  # of host memory: 40,000 samples of 10 classes in 3 views, of 200 teachers


class TeacherOutputs:
    """Logits of teachers, in host memory, for several distillations of one task.

    Each distillation keeps what it and the one before it have used, so those of the same teachers should come one after
    the other. What does not fit into `limit` bytes is computed again.
    """

    def __init__(self, limit: int = MAX_BYTES) -> None:
        self._limit = limit
        self._found: dict[Hashable, tuple[Tensor, int]] = {}  # each with the last distillation that used it
        self._number = self._bytes = 0

    def begin(self) -> None:
        """A distillation begins: what the last one did not use is forgotten."""
        self._found = {key: one for key, one in self._found.items() if one[1] == self._number}
        self._bytes = sum(logits.nbytes for logits, _ in self._found.values())
        self._number += 1

    def logits(self, key: Hashable, compute: Callable[[], Tensor]) -> Tensor:
        """A teacher's logits on some inputs, which the key names; `compute` makes them if they are not known."""
        if key in self._found:
            known = self._found[key][0]
            self._found[key] = known, self._number
            return known.clone()
        logits = compute()
        if self._bytes + logits.nbytes <= self._limit:
            self._found[key] = logits.to("cpu", copy=True), self._number
            self._bytes += logits.nbytes
        return logits
