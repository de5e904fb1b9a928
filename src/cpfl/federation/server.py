"""How clients' models become the cohort's next model."""

from __future__ import annotations

from cpfl.models import State


class Mean:
    """A weighted mean, streamed: memory does not grow with the participants."""

    def __init__(self) -> None:
        self._sum: State = {}
        self._weight = 0.0

    def add(self, state: State, weight: float) -> None:
        """Take one client's model in; it is not kept."""
        if not self._sum:
            self._sum = {n: v * weight if v.is_floating_point() else v.clone() for n, v in state.items()}
        else:
            for name, value in state.items():
                if value.is_floating_point():  # counters, such as BatchNorm's, stay the first client's
                    self._sum[name].add_(value, alpha=weight)
        self._weight += weight

    def result(self) -> State:
        """The mean of what was added."""
        return {n: v / self._weight if v.is_floating_point() else v for n, v in self._sum.items()}


def weight(kind: str, samples: int) -> float:
    """A client's say in the mean: equal, or by its training samples."""
    return 1.0 if kind == "equal" else float(samples)
