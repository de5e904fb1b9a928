"""Cohort-Parallel Federated Learning: Algorithm 1 of the paper.

Assign    M clients are split into n cohorts.
Train     Every cohort runs its own federated learning, in parallel and with no barrier, until its stopping rule fires.
          (If they are to meet, they wait every so many hours or rounds, and continue from their merged model, or each
          meets a global model when it is ready. Under the rule joint they wait for evaluations.)
Distill   The cohort models θ_i become teachers. For a public, unlabelled sample x the teachers' logits z_i = f(x; θ_i)
          are aggregated with the weights p_i: z̃ = Σ_i p_i ⊙ z_i. A student θ_s minimises ‖f(x; θ_s) − z̃‖₁ (or another
          loss). With n = 1 there is nothing to distill: the cohort model is the result. (Or the mean of the cohort
          models is the result, if the experiment says so: that needs no public samples.)
"""

import time
from collections.abc import Callable, Sequence

import torch

from cpfl import models
from cpfl.distillation.ensemble import Ensemble, Precision
from cpfl.distillation.objective import distillation_loss
from cpfl.distillation.outputs import TeacherOutputs
from cpfl.distillation.results import Distilled, TestSet
from cpfl.distillation.student import EpochRecord, initial_student, train_student
from cpfl.distillation.views import Views
from cpfl.engines.base import Engine
from cpfl.federation.session import Session
from cpfl.meetings.final import merged
from cpfl.phases import Phases
from cpfl.runs.recorder import RunRecorder
from cpfl.runs.teachers import Teachers
from cpfl.settings import Distillation
from cpfl.task.task import Task

NO_WORKERS = Engine()


def cpfl(task: Task, engine: Engine, run: RunRecorder, device: torch.device) -> Distilled:
    """The whole method; continues from whatever the run folder already holds."""
    sessions = train(task, engine, run, device)
    teachers = run.teachers(task.experiment.distillation, sessions)
    if task.experiment.merges:
        return merge(task, teachers, device)
    return distill(task, teachers, task.experiment.distillation, device, run.on_epoch, engine)


def train(task: Task, engine: Engine, run: RunRecorder, device: torch.device) -> list[Session]:
    """The cohorts alone: their sessions, all of which have stopped."""
    sessions = open_sessions(task)
    train_cohorts(task, sessions, engine, run, device)
    return sessions


def open_sessions(task: Task) -> list[Session]:
    """A federated-learning session for each cohort that the task assigned, all from the same initial model."""
    return [task.session(cohort) for cohort in range(len(task.cohorts))]


def train_cohorts(
    task: Task, sessions: Sequence[Session], engine: Engine, run: RunRecorder, device: torch.device
) -> None:
    """Federated learning inside every cohort, with or without meetings, until all of them have stopped."""
    with run.training(sessions) as on_round:
        if task.experiment.meets or task.experiment.stopping.rule == "joint":
            Phases(task, sessions, run, device, on_round).train(engine)
        else:
            engine.train_cohorts(sessions, on_round)


def distill(
    task: Task,
    teachers: Teachers,
    settings: Distillation,
    device: torch.device,
    on_epoch: Callable[[EpochRecord], None],
    engine: Engine = NO_WORKERS,  # its workers compute targets, if it has any
    outputs: TeacherOutputs | None = None,  # of teachers in other distillations of the task
) -> Distilled:
    """Train a student to predict what the teachers predict together on public samples."""
    began, experiment, task = time.perf_counter(), task.experiment, task.regrouped(teachers.clients)
    models.choose_arithmetic(experiment.precision)
    precision = Precision(device, experiment.precision)
    with models.threads_for(task.start):
        # p_i, and z̃ = Σ_i p_i ⊙ f(x; θ_i)
        ensemble = Ensemble(task, teachers.cohorts, settings, precision, outputs=outputs)
        test = TestSet(task, precision)
        accuracies = test.accuracies(ensemble, teachers.states())
        if len(teachers.cohorts) == 1:
            return test.results(ensemble.modules[0], *accuracies, epochs=[], seconds=0.0)
        mean = merged(task, teachers)
        also = {} if mean is None else test.merged_accuracy(ensemble.modules[0], mean)
        student = initial_student(task, ensemble, teachers.states, settings)
        views = Views(task, ensemble, teachers.states, settings, engine if engine.width else None)
        loss = distillation_loss(settings, ensemble.aggregation.probabilities, task.data.objective)  # ‖f(x; θ_s) − z̃‖₁
        epochs = train_student(student, views, loss, settings, task, precision, test.accuracy, on_epoch, engine.pause)
        seconds = time.perf_counter() - began
        return test.results(student, *accuracies, epochs=epochs, seconds=seconds, merged=also)


def merge(task: Task, teachers: Teachers, device: torch.device) -> Distilled:
    """The mean of the cohort models is the global model: nothing is distilled, and no public samples are needed."""
    task = task.regrouped(teachers.clients)
    models.choose_arithmetic(task.experiment.precision)
    precision = Precision(device, task.experiment.precision)
    with models.threads_for(task.start):
        ensemble = Ensemble(task, teachers.cohorts, task.experiment.distillation, precision)
        test, module = TestSet(task, precision), ensemble.modules[0]
        accuracies = test.accuracies(ensemble, teachers.states())
        mean = merged(task, teachers)
        also = {} if mean is None else test.merged_accuracy(module, mean)  # None: of one cohort; it is loaded
        return test.results(module, *accuracies, epochs=[], seconds=0.0, merged=also)
