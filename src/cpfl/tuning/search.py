"""Optuna proposes settings and is told what came of them. Its journal in the tune's folder survives any kill."""

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import TrialState

from cpfl.runs import records
from cpfl.settings import Experiment
from cpfl.tuning.goal import Curve, Goal
from cpfl.tuning.space import Dimension, Space, settings_of

JOURNAL = "journal.log"
STARTUP = 10  # random trials before those that are proposed
GOOD = 0.25  # the share of trials that proposals resemble; with Optuna's tenth, 40 trials leave four to learn from
NUMBER = "number"  # of the trial in tune.json
FEWEST = 4  # trials for importances


def distribution(one: Dimension) -> BaseDistribution:
    """A dimension as Optuna has it; values are chosen by position, since they may be of any kind."""
    if one.values:
        return CategoricalDistribution(range(len(one.values)))
    kind = IntDistribution if one.whole else FloatDistribution
    return kind(one.low, one.high, log=one.log)  # type: ignore[arg-type]


def good_trials(count: int) -> int:
    """How many of so many trials count as good ones."""
    return math.ceil(GOOD * count)


class Search:
    """A study over a space: `ask` for settings, `tell` what they are worth."""

    def __init__(self, folder: Path | None, space: Space, base: Experiment, goal: Goal, seed: int) -> None:
        """`folder`: where the journal is; None: it is in memory alone."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space, self._base, self._goal, self._seed = space, base, goal, seed
        self._distributions = {one.key: distribution(one) for one in space}
        storage = None
        if folder is not None:
            path = folder / JOURNAL
            records.repair(path)  # a line that a kill cut short
            for left in folder.glob(f"{JOURNAL}.lock*"):  # whose process was killed: the tune's own lock is held
                left.unlink()
            storage = JournalStorage(JournalFileBackend(str(path), JournalFileOpenLock(str(path))))
        direction: Literal["minimize", "maximize"] = "minimize" if goal.minimise else "maximize"
        self.study = optuna.create_study(storage=storage, study_name="tune", direction=direction, load_if_exists=True)
        for trial in self.study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
            if NUMBER not in trial.user_attrs:  # killed while it was asked for
                self.study.tell(trial.number, state=TrialState.FAIL)

    def asked(self) -> dict[int, dict[str, Any]]:
        """Settings by number that were asked for, whatever became of them."""
        return {
            trial.user_attrs[NUMBER]: self._settings(trial.params)
            for trial in self.study.get_trials(deepcopy=False)
            if NUMBER in trial.user_attrs
        }

    def ask(self, number: int, random: bool = False) -> dict[str, Any]:
        """The settings of the trial with this number; the same ones after a kill."""
        self.study.sampler = self._sampler(number, random)
        trial = self.study.ask(self._distributions)
        trial.set_user_attr(NUMBER, number)
        return self._settings(trial.params)

    def tell(
        self, number: int, curve: Curve, pruned: bool = False, failed: bool = False, impossible: bool = False
    ) -> None:
        """What became of a trial, once. What is `impossible` to run is worse than all others."""
        found = next(t for t in self.study.get_trials(deepcopy=False) if t.user_attrs.get(NUMBER) == number)
        if found.state.is_finished():
            return
        trial = optuna.trial.Trial(self.study, found._trial_id)
        if impossible:
            for key, amount in self._goal.violations([]).items():
                if key not in found.constraints:
                    trial.set_constraint(key, amount)
            self.study.tell(trial, state=TrialState.PRUNED)
            return
        if failed or not curve:
            self.study.tell(trial, state=TrialState.FAIL)
            return
        for key, amount in self._goal.violations(curve).items():
            if key not in found.constraints:  # a kill came before the value
                trial.set_constraint(key, amount)
        value = self._goal.value(curve)
        if pruned:
            trial.report(value, step=len(curve))
            self.study.tell(trial, state=TrialState.PRUNED)
        else:
            self.study.tell(trial, value)

    def add(self, number: int, settings: Mapping[str, Any], curve: Curve) -> None:
        """A trial that was not asked for, such as a reference, if it lies within the space."""
        if number in self.asked() or not curve:
            return
        values = {one.key: settings.get(one.key, _own(self._base, one)) for one in self._space}
        if not all(one.holds(values[one.key]) for one in self._space):
            return
        params = {one.key: one.values.index(values[one.key]) if one.values else values[one.key] for one in self._space}
        added = optuna.create_trial(
            params=params,
            distributions=self._distributions,
            value=self._goal.value(curve),
            user_attrs={NUMBER: number},
            constraints=self._goal.violations(curve),
        )
        self.study.add_trial(added)

    def importances(self) -> list[dict[str, Any]]:
        """What share of the difference between good and other trials each setting explains, the largest first."""
        done = self.study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
        if len(done) < FEWEST or len({trial.value for trial in done}) < 2:
            return []
        shares = optuna.importance.get_param_importances(self.study)
        return [{"key": key, "share": float(share)} for key, share in shares.items()]

    def _sampler(self, number: int, random: bool) -> BaseSampler:
        """With random numbers of its own for every trial: a search that was killed continues as it would have."""
        seed = (self._seed * 100_003 + number) % 2**32
        if random:
            return RandomSampler(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # Optuna 6, which is not allowed yet, may drop gamma
            return TPESampler(n_startup_trials=STARTUP, seed=seed, gamma=good_trials)

    def _settings(self, params: Mapping[str, Any]) -> dict[str, Any]:
        def choose(one: Dimension) -> Any:
            return one.values[params[one.key]] if one.values else params[one.key]

        return settings_of(self._space, self._base, choose)


def _own(base: Experiment, one: Dimension) -> Any:
    """The base's value of a dimension, or its first one where that is not searched: it has no effect or is near."""
    value: Any = base
    for part in one.key.split("."):
        value = value.get(part) if isinstance(value, dict) else getattr(value, part)
    return value if one.holds(value) else one.values[0] if one.values else one.low
