"""The end of a run: the mean of the cohort models, beside their student or in its place."""

from cpfl.meetings.rules import weighted_mean
from cpfl.models import State
from cpfl.runs import files
from cpfl.runs.teachers import Teachers
from cpfl.task.task import Task


def merged(task: Task, teachers: Teachers) -> State | None:
    """Their mean, with the weights of the rules mean and outer; None: there is only one, or models differ."""
    if len(teachers.cohorts) == 1 or task.cohort_models:
        return None
    layout = task.layout()
    states = (files.on_host(layout.sent(state)) for state in teachers.states())
    mean = layout.received(weighted_mean(states, _weights(task, teachers)))
    return {name: mean[name] for name in task.start}


def _weights(task: Task, teachers: Teachers) -> list[float]:
    settings = task.experiment.meetings
    kind = settings.rule_args.get("weights") if settings.rule in ("mean", "outer", "asynchronous") else ""
    found = [1.0 for _ in teachers.cohorts]
    if kind == "samples":
        found = [float(task.samples(cohort)) for cohort in teachers.cohorts]
    if kind == "work" and any(teachers.work):  # else nobody has trained since the last meeting
        found = [float(samples) for samples in teachers.work]
    return found
