"""Runs of a sweep on one device, side by side in the same lanes: one process, one start, data in memory once.

A run that ends makes room for the next one. A run that fails, diverges or is stopped ends alone.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from cpfl.engines.create import create_engine, lane_engine
from cpfl.engines.lanes.shared import RunEngine, SharedLanes, common_settings
from cpfl.settings import Experiment
from cpfl.sweep.one_run import End, Work
from cpfl.sweep.turns import Turn

RunOne = Callable[[Experiment, Path, RunEngine], None]
Take = Callable[[], tuple[Path, Experiment] | None]
"""Gives the next run, if one is left."""


def groups(work: Work) -> list[list[tuple[Path, Experiment]]]:
    """Runs with the same common settings, in their order."""
    found: dict[str, list[tuple[Path, Experiment]]] = {}
    for path, experiment in work.items():
        found.setdefault(common_settings(experiment), []).append((path, experiment))
    return list(found.values())


class SideBySide:
    """Runs with the same common settings, as many at a time as keep the lanes busy."""

    def __init__(
        self,
        experiments: Sequence[Experiment],
        take: Take,
        run: RunOne,
        device: torch.device,
        notify: Callable[[str], None],
        end: End,
    ) -> None:
        """`take` gives runs of these experiments."""
        self._take, self._run, self._device, self._notify, self._end = take, run, device, notify, end
        self._lanes = SharedLanes(experiments, device, partial(lane_engine, device=device, notify=notify))
        self._turns: dict[RunEngine, tuple[Turn, Path]] = {}  # of runs that have begun

    def work(self) -> None:
        """Make all runs."""
        try:
            left = True
            while left or self._turns:
                while left and not self._lanes.full([engine for engine in self._turns if engine.request]):
                    if taken := self._take():
                        self._begin(*taken)
                    else:
                        left = False
                training = [engine for engine in self._turns if engine.request]
                distilling = [engine for engine in self._turns if not engine.request]
                # A student and the lanes advance alternately: on a GPU what they ask for is done at the same time.
                if training:
                    distilling += self._lanes.train(training, 1 if distilling else math.inf)
                for engine in distilling:
                    self._give(engine)
        except BaseException:  # the runs can be resumed
            for turn, _ in self._turns.values():
                turn.cancel()
            raise

    def _begin(self, path: Path, experiment: Experiment) -> None:
        """Start a run; it loads its data and comes to its first round."""
        turn: list[Turn] = []
        engine = RunEngine(
            self._lanes,
            wait=lambda: turn[0].wait(),
            alone=lambda task: create_engine("lanes", task, self._device, self._notify),
        )
        turn.append(Turn(lambda: self._in_stream(experiment, path, engine), path.name))
        self._turns[engine] = turn[0], path
        self._give(engine)

    def _in_stream(self, experiment: Experiment, path: Path, engine: RunEngine) -> None:
        """A run with a stream of its own on a GPU."""
        own = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None  # type: ignore[no-untyped-call]
        with torch.cuda.stream(own):  # None: nothing changes
            self._run(experiment, path, engine)

    def _give(self, engine: RunEngine) -> None:
        turn, path = self._turns[engine]
        turn.give()
        if turn.ended:
            del self._turns[engine]
            self._end(path, turn.error)
