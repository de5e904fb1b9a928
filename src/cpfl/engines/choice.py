"""Which engine does the work: lanes on a GPU, workers on a CPU; the plain one for models that lanes cannot train."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from cpfl import models
from cpfl.engines import room
from cpfl.engines.base import Engine
from cpfl.engines.grouped import GroupedEngine
from cpfl.engines.lanes import LaneEngine
from cpfl.engines.mishaps import short_of_memory
from cpfl.engines.ray import Place
from cpfl.engines.reference import ReferenceEngine
from cpfl.engines.workers import WorkerEngine
from cpfl.engines.workers.crew import can_fork, cores
from cpfl.errors import SettingError
from cpfl.problem import Problem

NAMES = ("auto", "reference", "workers", "lanes", "ray")


def engine(
    name: str,
    problem: Problem,
    device: torch.device,
    note: Callable[[str], None],
    workers: int = 0,
    place: Place | None = None,  # of Ray
) -> Engine:
    """The engine of this name, one for each model where cohorts train different ones."""
    if name == "ray":
        from cpfl.engines.ray.engine import RayEngine  # only those who ask for it need Ray

        on_ray = RayEngine(problem, place or Place(), workers, note)
        if on_ray.device == "cuda" and device.type != "cuda":
            note("the driver sees no GPU: cohorts train on GPUs, their judge and the student on this CPU")
        return on_ray
    if not problem.others:
        return _engine(name, problem, device, note, workers)
    return GroupedEngine(problem, lambda own: _engine(name, own, device, note, workers))


def _engine(name: str, problem: Problem, device: torch.device, note: Callable[[str], None], workers: int) -> Engine:
    """auto takes lanes where there is a GPU, else workers on all cores."""
    if name == "reference":
        return ReferenceEngine(problem, device)
    if name == "workers" or (name == "auto" and device.type != "cuda"):
        if device.type != "cpu":
            raise SettingError("engine workers trains on the CPU: it goes with --device cpu")
        room.check(problem, device, in_lanes=False)
        if not can_fork() and cores() > 1 and workers != 1:
            note("training on one core: workers are processes forked from this one, on Linux and where no GPU is seen")
        return WorkerEngine(problem, workers)
    obstacle = why_not_lanes(problem)
    if obstacle:
        note(f"this model cannot train in lanes, one client at a time instead: {obstacle}")
        return ReferenceEngine(problem, device)
    room.check(problem, device, in_lanes=True)
    wanted = lanes = 0
    while True:
        try:
            engine = LaneEngine(problem, device, lanes)
        except Exception as error:
            if not short_of_memory(error):
                raise
            wanted = wanted or LaneEngine.default_lanes(problem, device)
            lanes = (lanes or wanted) // 2
            if lanes < 1:
                raise
        else:
            if lanes:
                note(f"the device is out of memory for {wanted} lanes: going on with {lanes}")
            return engine
        gc.collect()  # what was begun refers to itself
        if not LaneEngine.living:  # else another model's lanes need it
            torch.compiler.reset()  # kernels that were being tried out hold what they were tried with
            gc.collect()
        if device.type == "cuda":
            torch.cuda.synchronize()  # work that was begun may still write into what is handed back
            torch.cuda.empty_cache()


def why_not_lanes(problem: Problem) -> str:
    """What keeps a model from being trained in lanes; empty: nothing. Found by trying two lanes of some samples."""
    data = problem.data
    module = models.fresh(problem.build, problem.experiment.seed, "init", data.transform.dtype).train()
    x = data.transform(torch.as_tensor(data.train.x[:4]))
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            return f"{type(part).__name__} looks at a batch as a whole"
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        state = torch.get_rng_state()
        module(torch.cat([x, x]))
        if not torch.equal(state, torch.get_rng_state()):
            return "it draws random numbers of its own, as dropout does"
    if models.looks_at_batches(module, x):
        return "it looks at a batch as a whole, as BatchNorm does"
    parameters = {name: torch.stack([value.detach()] * 2) for name, value in models.trained(module).items()}
    buffers = {name: value.clone() for name, value in module.named_buffers()}
    before = {name: value.clone() for name, value in buffers.items()}

    def loss(params: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = functional_call(module, {**params, **buffers}, (x,))
        return out.square().mean()

    try:
        vmap(grad(loss))(parameters, torch.stack([x, x]))
    except Exception as error:  # vmap tells of what it cannot do in many ways
        return models.first_line(error)
    if any(not torch.equal(buffers[name], value) for name, value in before.items()):
        return "it changes its buffers while it trains"
    return ""
