"""A tune from its first trial to the recommendation: batches of trials as runs of a sweep, then finalists and tests.

A batch is asked for, trained side by side and told to the search; then tune.json is written. So a tune that is killed
repeats at most what its open runs had not written, and proposes what it would have proposed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from cpfl.errors import CpflError, SettingError, one_sentence
from cpfl.runs import files
from cpfl.runs.reload import check_snapshots
from cpfl.settings import Experiment, experiment_file
from cpfl.sweeps.callback import SweepCallback
from cpfl.sweeps.grid import value_of
from cpfl.sweeps.runner import MakeRuns
from cpfl.tuning import finalists
from cpfl.tuning.curve import PRUNED, CurveFollower, read_curve
from cpfl.tuning.goal import WORDS, Curve, Goal
from cpfl.tuning.planning import LoadTask, Planner
from cpfl.tuning.result import ENDED, Outcome, Trial
from cpfl.tuning.space import changed_space, default_space, references

ASKS = 5  # times the trials: settings that were tried already are asked for again
REPEATED = 10  # such settings in a row, after which a random trial is asked for


class Tuner:
    """One tune."""

    def __init__(
        self,
        base: Experiment,
        goal: Goal,
        folder: Path,
        request: Mapping[str, Any],
        common: Mapping[str, Any],
        callback: SweepCallback,
        load: LoadTask,
    ) -> None:
        self.base, self.goal, self.folder, self.request = base, goal, folder, request
        self._common, self._callback = common, callback
        self._load = load
        self._repeated: list[int] = []  # trials whose value the search is not told yet

    def prepare(self, before: Mapping[str, Any] | None) -> None:
        """Find mistakes before anything is written; take what an earlier start of this tune has found."""
        task, fixed = self._load(self.base), self.request["fixed"]
        if not task.data.clients.validation_sizes.any():
            raise SettingError(
                "a tune compares trials on validation samples, and no client keeps any: lower "
                "data.validation_min_samples or raise data.validation"
            )
        own = default_space(self.base, task, self.goal.hours)
        self.space = changed_space(self.base, own, self.request["search"], fixed)
        self.planner = Planner(self.base, self.goal, self.request["points"], task, self._load)
        self.planner.check_possible(self.space)
        found = references(self.base, task, fixed)
        trials = {number: Trial(number, own, name) for number, (name, own) in enumerate(found.items())}
        for trial in trials.values():
            check_snapshots(self.planner.plan(trial.settings).experiment)
        state = "searching"
        if before is not None:
            state = before["state"]
            trials |= {tree["number"]: Trial.of(tree) for tree in before["trials"]}
        self.outcome = Outcome(
            state, self.request, self.goal, trials, [one.tree() for one in self.space], self.request["trials"],
            self.base.name, task.data.objective.metric,
        )  # fmt: skip
        if before is not None:
            keys = ("importances", "finalists", "recommendation", "paragraph")
            self.outcome = replace(self.outcome, **{key: before[key] for key in keys})

    def work(self, device: str, make_runs: MakeRuns) -> None:
        """All that is left of the tune."""
        self.begin(device, make_runs)
        if self.outcome.state == "searching":
            self.run_trials()
            self._write(state="distilling", importances=self.search.importances())
        if self.outcome.state == "distilling":
            self._choose()
        if self.outcome.state == "testing":
            self._test()

    def begin(self, device: str, make_runs: MakeRuns, seed: int | None = None) -> None:
        """Open the search; `seed` is that of its proposals, else the experiment's."""
        from cpfl.tuning.search import Search  # Optuna is optional

        self._make_runs = make_runs
        self._resolved = partial(Experiment.resolved, device=device)
        self.outcome.write(self.folder)
        self.search = Search(self.folder, self.space, self.base, self.goal, self.base.seed if seed is None else seed)

    def run_trials(self) -> None:
        """Batch after batch, until there are enough."""
        while batch := self._batch():
            self._train(batch)
            self._write()

    def _write(self, **changes: Any) -> None:
        self.outcome = replace(self.outcome, **changes)
        self.outcome.write(self.folder)

    # The search.

    def _batch(self) -> dict[int, Experiment]:
        """The next trials, those first that a kill has interrupted; empty: enough have been run."""
        trials, asked = self.outcome.trials, self.search.asked()
        for number, settings in asked.items():
            if number not in trials:
                self.outcome = self.outcome.with_trial(Trial(number, settings))
        waiting = [t for t in self.outcome.trials.values() if t.state not in ENDED]
        batch: dict[int, Experiment] = {}
        for trial in sorted(waiting, key=lambda one: one.number):
            self._add(trial, batch)
        repeated, number = 0, max(self.outcome.trials) + 1
        while len(batch) < self.request["batch"] and self._runs() < self.request["trials"]:
            if number >= ASKS * self.request["trials"] + len(trials):
                break
            settings = self.search.ask(number, random=repeated >= REPEATED)
            repeated = 0 if self._add(Trial(number, settings), batch) else repeated + 1
            number += 1
        return batch

    def _runs(self) -> int:
        """Trials that are runs; not those that were refused before, or are the same as others."""
        return sum(bool(one.experiment) and one.state != "repeated" for one in self.outcome.trials.values())

    def _add(self, trial: Trial, batch: dict[int, Experiment]) -> bool:
        """Put a trial into the batch, unless it is the same as an earlier one or cannot be run."""
        try:
            experiment = self._resolved(self.planner.plan(trial.settings).experiment)
        except CpflError as error:
            self._end(replace(trial, state="failed", error=one_sentence(error)))
            return False
        digest = files.checksum(experiment.model_dump(mode="json"))
        trial = replace(trial, experiment=digest)
        others = self.outcome.trials.values()
        same = next((t for t in others if t.experiment == digest and t.number < trial.number), None)
        if same is not None:
            self._end(replace(trial, state="repeated", same_as=same.number if same.same_as is None else same.same_as))
            self._repeated.append(trial.number)
            self._tell_repeated()
            return False
        self.outcome = self.outcome.with_trial(trial)
        batch[trial.number] = experiment
        return True

    def _train(self, batch: Mapping[int, Experiment]) -> None:
        """Run trials side by side, and tell the search what they found."""
        others = self._curves()
        errors: dict[Path, str] = {}
        done: dict[str, Trial] = {}
        trials = self.outcome.trials

        def end(path: Path, error: Exception | None) -> None:
            if error is not None:
                errors[path] = _sentence(error)
            ended = replace(trials[int(path.name)], **_found(path, errors.get(path, "")))
            self._callback.on_message(_line(ended, self.goal))
            done[path.name] = ended
            self._tell_progress(ended, done)

        follow = partial(_follower, goal=self.goal, others=others, prune=self.request["prune"])
        work = {self.folder / trials[number].path: experiment for number, experiment in batch.items()}
        self._make_runs(work, {**self._common, "follow": follow, "train_only": True}, self._callback, end)
        for number in batch:
            trial = trials[number]
            path = self.folder / trial.path
            self._end(replace(trial, **_found(path, errors.get(path, ""))))
        self._tell_repeated()

    def _end(self, trial: Trial) -> None:
        """Keep and tell what became of a trial."""
        self.outcome = self.outcome.with_trial(trial)
        if trial.reference:
            self.search.add(trial.number, trial.settings, trial.curve)
        elif trial.state != "repeated":
            impossible = trial.state == "failed" and not trial.experiment
            self.search.tell(trial.number, trial.curve, trial.state == "pruned", trial.state == "failed", impossible)

    def _tell_repeated(self) -> None:
        """Settings that differ only in what has no effect are worth the same, as soon as that is known."""
        trials = self.outcome.trials
        for number in self._repeated.copy():
            same_as = trials[number].same_as
            assert same_as is not None, "a repeated trial"
            same = trials[same_as]
            if same.state in ENDED:
                self.search.tell(number, same.curve, same.state == "pruned", same.state == "failed")
                self._repeated.remove(number)

    def _tell_progress(self, ended: Trial, done: Mapping[str, Trial]) -> None:
        """What a view shows once a trial of the batch has ended."""
        runs = self._runs() - sum(one.state not in ENDED for one in self.outcome.trials.values()) + len(done)
        trials = {**self.outcome.trials, **{one.number: one for one in done.values()}}
        found = [(self.goal.value(one.curve), number) for number, one in trials.items() if self.goal.best(one.curve)]
        facts = [f"{runs} of {self.request['trials']} trials ended"]
        if found:
            value, number = min(found) if self.goal.minimise else max(found)
            unit = WORDS.get(self.goal.minimise, "%")
            facts.append(f"best so far {value:.3g} {unit} (trial {number})")
        self._callback.on_trial(ended.path.rpartition("/")[2], runs / self.request["trials"], facts)

    def _curves(self) -> list[Curve]:
        return [t.curve for t in self._candidates() if t.state in ("complete", "pruned")]

    def _candidates(self) -> list[Trial]:
        """Trials that keep to what is fixed; a reference need not, and then is only shown."""
        fixed = {key: value_of(self.base.model_dump(mode="json"), key) for key in self.request["fixed"]}
        trials = self.outcome.trials.values()
        return [one for one in trials if all(fixed.get(key, value) == value for key, value in one.settings.items())]

    # Finalists, recommendation, tests.

    def _choose(self) -> None:
        """Make the final models of the best trials, and recommend one."""
        trials = self.outcome.trials
        found = []
        for trial in finalists.choose(self._candidates(), self.goal):
            experiment = self.planner.experiment(trial.settings)
            found.append(finalists.finish(trial, self.folder, self.goal, experiment, self._common))
            one = found[-1]
            score = one["error"] if one["accuracy"] is None else f"{one['accuracy']:.1f} %"
            self._callback.on_message(f"finalist {trial.number}: {one['result']} {score}")
        made = [one for one in found if one["accuracy"] is not None]
        if not made:
            self._write(state="finished", finalists=found, paragraph=_nothing(self.goal, self._candidates()))
            return
        chosen = finalists.recommend(found, trials, self.goal)
        found.sort(key=lambda one: (one["accuracy"] is None, -(one["accuracy"] or 0)))
        trial = trials[chosen["trial"]]
        best = self._final(trial, chosen["point"])
        files.write_atomic(self.folder / "recommended.toml", experiment_file.to_toml(best).encode())
        recommendation = {
            "trial": trial.number, "settings": trial.settings, "text": trial.text, "file": "recommended.toml",
            "cohorts": best.cohorts, "cohorts_pay": best.cohorts > 1, "point": chosen["point"],
        }  # fmt: skip
        text = finalists.paragraph(chosen, found, trials, self.goal, [], self.outcome.metric)
        self._write(state="testing", finalists=found, recommendation=recommendation, paragraph=text)

    def _final(self, trial: Trial, point: Mapping[str, Any]) -> Experiment:
        """The experiment of a trial up to a point of its curve."""
        return self.planner.limited(self.planner.experiment(trial.settings), point["moment"] * 3600)

    def _test(self) -> None:
        """The recommended experiment and the references over fresh seeds: the only look at test samples."""
        own = self.outcome.recommendation
        assert own is not None, "a state that follows the recommendation"
        entries = [("recommended", own["trial"], own["point"])]
        for trial in self.outcome.trials.values():
            if trial.reference and trial.curve:
                best = self.goal.best(trial.curve) or trial.curve[-1]
                entries.append((trial.reference, trial.number, {"moment": best.moment}))
        seeds = [self.base.seed + 1 + k for k in range(self.request["seeds"])]
        work: dict[Path, Experiment] = {}
        paths: dict[str, list[Path]] = {}
        for who, number, point in entries:
            final = self._final(self.outcome.trials[number], point)
            same = next((name for name, one, _ in entries[: len(paths)] if one == number), None)
            if same is not None:  # a reference is recommended
                paths[who] = paths[same]
                continue
            paths[who] = [self.folder / "tests" / f"{who.replace(' ', '-')}-seed{seed}" for seed in seeds]
            for path, seed in zip(paths[who], seeds, strict=True):
                work[path] = self._resolved(experiment_file.with_settings(final, {"seed": seed}, strict=False))
        errors: dict[Path, str] = {}
        ended: list[Path] = []
        left = {path: one for path, one in work.items() if not (path / "summary.json").is_file()}

        def end(path: Path, error: Exception | None) -> None:
            if error is not None:
                errors[path] = _sentence(error)
            self._callback.on_message(f"test {path.name}: {errors.get(path, 'done')}")
            ended.append(path)
            facts = [f"{len(ended)} of {len(left)} tests ended"]
            self._callback.on_trial(path.name, len(ended) / len(left), facts)

        if left:
            self._make_runs(left, self._common, self._callback, end)
        tests, allowed = [], {trial.number for trial in self._candidates()}
        for who, number, _ in entries if seeds else ():
            failed = [errors[path] for path in paths[who] if path in errors]
            tests.append(finalists.tested(who, number, number in allowed, seeds, paths[who], failed))
        found = self.outcome.finalists
        chosen = next(one for one in found if one["trial"] == own["trial"])
        text = finalists.paragraph(chosen, found, self.outcome.trials, self.goal, tests, self.outcome.metric)
        self._write(state="finished", tests=tests, paragraph=text)


def _follower(path: Path, goal: Goal, others: Sequence[Curve], prune: bool) -> CurveFollower:
    return CurveFollower(goal, others, prune)


def _found(path: Path, error: str) -> dict[str, Any]:
    """What a run folder says of its trial."""
    curve, stop = read_curve(path) if path.is_dir() else ([], "")
    if error or not curve:
        return {"state": "failed", "curve": curve, "error": error or "no cohort had a round within the limits"}
    return {"state": "pruned" if stop in PRUNED else "complete", "curve": curve}


def _sentence(error: Exception) -> str:
    return one_sentence(error if isinstance(error, CpflError) else f"{type(error).__name__}: {error}")


def _line(trial: Trial, goal: Goal) -> str:
    """A trial that has ended, for a person."""
    name = trial.reference or trial.text
    if trial.state == "failed":
        return f"trial {trial.number}, {name}: failed: {trial.error}"
    best = goal.best(trial.curve)
    facts = "misses the goal"
    if best is not None:
        facts = f"{best.accuracy:.1f} %, {best.hours:.3g} h, {best.cpu_hours:.3g} CPU h, {best.traffic_gb:.3g} GB"
    return f"trial {trial.number}, {name}: {facts}" + (", stopped early" if trial.state == "pruned" else "")


def _nothing(goal: Goal, trials: Sequence[Trial]) -> str:
    """The paragraph where no trial reaches the goal."""
    best = max((point for trial in trials for point in trial.curve), key=lambda one: one.accuracy, default=None)
    failed = sum(trial.state == "failed" for trial in trials)
    text = f"No trial reaches the goal: {goal}."
    if best is not None:
        text += f" The most accurate one had {best.accuracy:.1f} % after {best.hours:.3g} hours."
    return text + (f" {failed} trials failed." if failed else "")
