"""Whether lanes can train a model: two lanes of a few samples do what the engine does, on its device."""

import torch
from torch import Tensor, nn

from cpfl import models
from cpfl.engines.lanes.model import LaneModel
from cpfl.engines.lanes.step import captured
from cpfl.errors import first_line
from cpfl.task.task import Task

LANES, SAMPLES = 2, 4


def why_not_lanes(task: Task, device: torch.device) -> str:
    """The reason why a model cannot train in lanes; empty: it can."""
    data, seed = task.data, task.experiment.seed
    x, y = data.transform(torch.as_tensor(data.train.x[:SAMPLES])), torch.as_tensor(data.train.y)[:SAMPLES]
    try:
        with torch.random.fork_rng(devices=[]):
            module = models.fresh(task.build, seed, "init", data.transform.dtype)
            return alone(module, x) or in_lanes(task, x.to(device), y.to(device))
    except Exception as error:  # a model, and vmap, report what they cannot do in many ways
        return first_line(error) or type(error).__name__


def alone(module: nn.Module, x: Tensor) -> str:
    """What a model does that clients side by side cannot have."""
    for layer in module.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            return f"{type(layer).__name__} looks at a batch as a whole"
    for training in (True, False):
        module.train(training)
        with torch.no_grad():
            state = torch.get_rng_state()
            module(torch.cat([x, x]))
            if not torch.equal(state, torch.get_rng_state()):
                return "it draws random numbers of its own, as dropout does"
        if models.looks_at_batches(module, x):
            return "it looks at a batch as a whole, as BatchNorm does"
    return ""


def in_lanes(task: Task, x: Tensor, y: Tensor) -> str:
    """What does not work in lanes: steps, evaluations, and the way from a row back to a model."""
    model = LaneModel(task, x.device)
    row_P = model.layout.row(task.start, x.device)
    params_LP = row_P.repeat(LANES, 1).requires_grad_()
    x, y, before = torch.stack([x] * LANES), torch.stack([y] * LANES), buffers(model)

    def step() -> None:
        torch.autograd.grad(model.losses(params_LP, x, y).sum(), params_LP)
        model.evaluation_losses(params_LP, x, y)

    for _ in range(2):  # the model may keep what the next step trips over
        captured(step, x.device)()
    if not all(map(torch.equal, before, buffers(model))):
        return "it changes its buffers while it trains"
    module = models.fresh(task.build, task.experiment.seed, "init", task.data.transform.dtype)
    module.load_state_dict(model.layout.state(row_P))
    return ""


def buffers(model: LaneModel) -> list[Tensor]:
    """Copies of a model's buffers."""
    return [value.clone() for module in (model.module, model.eval_module) for value in module.buffers()]
