"""Whether lanes can train a model: two lanes of a few samples do what the engine does, on its device."""

import torch
from torch import Tensor, nn

from cpfl import models
from cpfl.engines.lanes.model import LaneModel
from cpfl.engines.lanes.step import captured
from cpfl.errors import first_line
from cpfl.models.adapter import Inputs, mapped
from cpfl.task.task import Task

LANES, SAMPLES = 2, 4
ROUNDING = {"float64": 1e-9, "float32": 1e-3, "tf32": 0.03, "bf16": 0.2}  # relative to the largest gradient


def why_not_lanes(task: Task, device: torch.device) -> str:
    """The reason why a model cannot train in lanes; empty: it can."""
    data, seed = task.data, task.experiment.seed
    x, y = data.inputs(SAMPLES), torch.as_tensor(data.train.y)[:SAMPLES]
    try:
        with torch.random.fork_rng(devices=[]):
            module = models.fresh(task.build, seed, "init", data.transform.dtype)
            return alone(module, x) or in_lanes(task, mapped(lambda each: each.to(device), x), y.to(device))
    except Exception as error:  # a model, and vmap, report what they cannot do in many ways
        return first_line(error) or type(error).__name__


def alone(module: nn.Module, x: Inputs) -> str:
    """What a model does that clients side by side cannot have."""
    for layer in module.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            return f"{type(layer).__name__} looks at a batch as a whole"
    for training in (True, False):
        module.train(training)
        with torch.no_grad():
            state = torch.get_rng_state()
            module(mapped(lambda each: torch.cat([each, each]), x))
            if not torch.equal(state, torch.get_rng_state()):
                return "it draws random numbers of its own, as dropout does"
        if models.looks_at_batches(module, x):
            return "it looks at a batch as a whole, as BatchNorm does"
    return ""


def in_lanes(task: Task, x: Inputs, y: Tensor) -> str:
    """What does not work in lanes: steps, evaluations, and the way from a row back to a model."""
    model = LaneModel(task, y.device)
    row_P = model.layout.row(task.start, y.device)
    params_LP = row_P.repeat(LANES, 1).requires_grad_()
    x_L = mapped(lambda each: torch.stack([each] * LANES), x)
    y_L, before, gradients_LP = torch.stack([y] * LANES), buffers(model), torch.zeros_like(params_LP)

    def step() -> None:
        (found_LP,) = torch.autograd.grad(model.losses(params_LP, x_L, y_L).sum(), params_LP)
        gradients_LP.copy_(found_LP)
        model.evaluation_losses(params_LP, x_L, y_L)

    for _ in range(2):  # the model may keep what the next step trips over
        captured(step, y.device)()
    if not all(map(torch.equal, before, buffers(model))):
        return "it changes its buffers while it trains"
    module = models.fresh(task.build, task.experiment.seed, "init", task.data.transform.dtype).to(y.device).train()
    module.load_state_dict(model.layout.state(row_P))
    loss = nn.functional.cross_entropy(module(x), y, reduction="sum")
    own = models.trained(module)
    alone = torch.autograd.grad(loss, list(own.values()), allow_unused=True, materialize_grads=True)
    expected_P = model.layout.row(dict(zip(own, alone, strict=True)), y.device)
    rounding = ROUNDING[task.experiment.precision] * expected_P.abs().max()
    if not torch.allclose(gradients_LP, expected_P.expand_as(gradients_LP), rtol=0, atol=float(rounding)):
        return "its gradients are others there"
    return ""


def buffers(model: LaneModel) -> list[Tensor]:
    """Copies of a model's buffers."""
    return [value.clone() for module in (model.module, model.eval_module) for value in module.buffers()]
