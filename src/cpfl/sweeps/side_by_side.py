"""Runs of a sweep side by side on an engine that they share: one process, one start, data in memory once.

A run that ends makes room for the next one. A run that fails, diverges or is stopped ends alone.
"""

import math
from collections.abc import Callable
from pathlib import Path

from cpfl.engines.base import Engine
from cpfl.engines.shared import RunEngine, SharedEngine
from cpfl.settings import Experiment
from cpfl.sweeps.one_run import End
from cpfl.sweeps.turns import Turn, give, stream_of_its_own
from cpfl.task.task import Task

RunOne = Callable[[Experiment, Path, RunEngine], None]
Take = Callable[[], tuple[Path, Experiment] | None]
"""Gives the next run, if one is left."""


class SideBySide:
    """As many runs at a time as keep the shared engine busy."""

    def __init__(
        self, shared: SharedEngine, take: Take, run: RunOne, alone: Callable[[Task], Engine], end: End
    ) -> None:
        """`alone` makes an engine for a run that cannot share."""
        self._shared, self._take, self._run, self._make_alone, self._end = shared, take, run, alone, end
        self._turns: dict[RunEngine, tuple[Turn, Path]] = {}  # of runs that have begun

    def work(self) -> None:
        """Make all runs."""
        try:
            left = True
            while left or self._turns:
                while left and not self._shared.full([engine for engine in self._turns if engine.request]):
                    if taken := self._take():
                        self._begin(*taken)
                    else:
                        left = False
                training = [engine for engine in self._turns if engine.request]
                distilling = [engine for engine in self._turns if not engine.request]
                # Students and the shared engine advance alternately: what they ask for is done at the same time.
                if training:
                    distilling += self._shared.train(training, 1 if distilling else math.inf)
                for engine in distilling:
                    self._give(engine)
        except BaseException:  # the runs can be resumed
            for turn, _ in self._turns.values():
                turn.cancel()
            raise
        finally:
            self._shared.close()

    def _begin(self, path: Path, experiment: Experiment) -> None:
        """Start a run; it loads its data and comes to its first round."""
        turn: list[Turn] = []
        engine = RunEngine(self._shared, wait=lambda: turn[0].wait(), alone=self._make_alone)
        turn.append(Turn(lambda: self._in_stream(experiment, path, engine), path.name))
        self._turns[engine] = turn[0], path
        self._give(engine)

    def _in_stream(self, experiment: Experiment, path: Path, engine: RunEngine) -> None:
        """A run with a stream of its own on a GPU."""
        with stream_of_its_own(self._shared.device):
            self._run(experiment, path, engine)

    def _give(self, engine: RunEngine) -> None:
        turn, path = self._turns[engine]
        give(turn)
        if turn.ended:
            del self._turns[engine]
            self._end(path, turn.error)
