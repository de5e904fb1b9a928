"""The bound of one finished run: its terms, and the risks that were measured on the target."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cpfl import models
from cpfl.bounds.divergence import RULES
from cpfl.bounds.domains import Domains
from cpfl.bounds.joint import joint_risks
from cpfl.bounds.theorem import Source, Terms, terms
from cpfl.bounds.weights import scalar_weights
from cpfl.distillation.ensemble import Ensemble, Precision, to_device
from cpfl.runs.folder import RunFolder
from cpfl.runs.teachers import select_teachers
from cpfl.task.task import Task

Known = dict[str, tuple[list[float], list[float]]]
"""Divergences and λ̂ of all clients: they do not depend on the cohorts, so runs over n share them."""


@dataclass(frozen=True)
class RunBound:
    """What was measured of one run; risks are shares of wrong answers, from 0 to 1."""

    path: Path
    n: int
    seed: int
    terms: Terms
    global_risk: float  # L̂_D(h_s) of the global model, on the whole test set
    cohort_risk: float  # Σ_i p_i L̂_D(h_i) of the cohort models there

    def numbers(self) -> dict[str, float]:
        """Every term, the sums and the measured risks by name."""
        own = self.terms
        return {
            "risk": own.risk,
            "half_divergence": own.half_divergence,
            "joint": own.joint,
            "hoeffding": own.hoeffding,
            "bound": own.bound,
            "bound_in_body": own.bound_in_body,
            "global_risk": self.global_risk,
            "cohort_risk": self.cohort_risk,
        }


def measure(
    folder: RunFolder, task: Task, delta: float, divergence: str, device: torch.device, known: Known
) -> RunBound:
    """The bound of a finished run and its task; `known` is used, and filled for the next run."""
    experiment = folder.experiment()
    models.choose_arithmetic(task.experiment.precision)
    precision = Precision(device, task.experiment.precision)
    settings = experiment.distillation
    with models.threads_for(task.start):
        domains = Domains(task, precision)
        key = _key(folder, divergence)
        if key not in known:
            known[key] = RULES[divergence](domains), joint_risks(domains)
        divergences, joints = known[key]
        teachers = select_teachers(folder, settings)
        weights = scalar_weights(settings, task.label_counts, teachers.cohorts)
        ensemble = Ensemble(task, teachers.cohorts, settings, precision)
        cohorts, risks = list[list[Source]](), list[float]()
        for cohort, module, state in zip(teachers.cohorts, ensemble.modules, teachers.states(), strict=True):
            module.load_state_dict(state)
            risks.append(_risk_on_target(domains, module))
            cohorts.append([])
            for client in task.cohorts[cohort]:
                rows = domains.clients[client]
                risk = domains.source.losses(module, rows).mean().item()
                cohorts[-1].append(Source(risk, divergences[client], joints[client], len(rows)))
        alone = len(teachers.cohorts) == 1  # its model is the result itself
        student = ensemble.modules[0] if alone else _student(folder, task, precision)
        return RunBound(
            folder.path,
            experiment.cohorts,
            experiment.seed,
            terms(weights.tolist(), cohorts, delta),
            _risk_on_target(domains, student),
            sum(p * risk for p, risk in zip(weights.tolist(), risks, strict=True)),
        )


def _risk_on_target(domains: Domains, module: nn.Module) -> float:
    return float(domains.target.losses(module, domains.test).mean())


def _student(folder: RunFolder, task: Task, precision: Precision) -> nn.Module:
    """The global model of a run with several teachers."""
    module = models.fresh(task.build_student, task.experiment.seed, "student", task.data.transform.dtype)
    module.load_state_dict(folder.global_state())
    return to_device(module, task, precision)


def _key(folder: RunFolder, divergence: str) -> str:
    """What divergences and joint risks depend on."""
    about, experiment = folder.about(), folder.experiment()
    data = {name: about["fingerprint"][name] for name in ("train", "test", "clients'")}
    settings: list[Any] = [experiment.model.model_dump(mode="json"), experiment.data.model_dump(mode="json")]
    more = [about["start"].get("start"), experiment.seed, experiment.precision, divergence]
    return json.dumps([data, settings, more], sort_keys=True)
