"""Whether lanes can train a model: two lanes of a few samples do what the engine does, on its device."""

import copy

import torch
from torch import Tensor, nn
from torch.func import functional_call

from cpfl import models
from cpfl.engines.lanes.graphs import captured
from cpfl.engines.lanes.model import LaneModel
from cpfl.errors import ModelError, first_line
from cpfl.kernels import batch_norm
from cpfl.models.adapter import Inputs, mapped, part, size
from cpfl.task.task import Task

LANES, SAMPLES = 2, 4
ROUNDING = {
    "float64": 1e-9,
    "float32": 1e-3,
    "auto": 0.03,
    "tf32": 0.03,
    "bf16": 0.2,
}  # relative to the largest gradient


def why_not_lanes(task: Task, device: torch.device) -> str:
    """The reason why a model cannot train in lanes; empty: it can."""
    data, seed = task.data, task.experiment.seed
    x, y = data.inputs(SAMPLES), torch.as_tensor(data.train.y)[:SAMPLES]
    try:
        with torch.random.fork_rng(devices=[]):
            module = models.fresh(task.build, seed, "init", data.transform.dtype)
            ages = task.experiment.federation.mixes_ages
            if ages and batch_norm.supported(module):
                return f"running statistics of BatchNorm have no age there, which federation.{ages} counts"
            return alone(module, x) or in_lanes(task, mapped(lambda each: each.to(device), x), y.to(device))
    except ModelError as error:
        return first_line(error.__cause__ or error)
    except Exception as error:  # a model, and vmap, report what they cannot do in many ways
        return first_line(error) or type(error).__name__


def alone(module: nn.Module, x: Inputs) -> str:
    """What a model does that clients side by side cannot have."""
    for training in (True, False):
        module.train(training)
        for layer in batch_norm.supported(module).values():  # lanes show it its own batch
            layer.eval()
        how = "training" if training else "evaluation"
        with torch.no_grad():
            state, before = torch.get_rng_state(), [value.clone() for value in module.buffers()]
            module(mapped(lambda each: torch.cat([each, each]), x))
            if not torch.equal(state, torch.get_rng_state()):
                return "it draws random numbers of its own, as dropout does"
            if not all(map(torch.equal, before, module.buffers())):
                return f"it changes its buffers in {how}"
            functional_call(module, models.with_noise(module), (x,))  # if it fails, that is the reason
        if models.looks_at_batches(module, x):
            return f"it looks at a batch as a whole in {how}"
    return "" if masks(module.train(), x) else "its BatchNorm layers get samples in another order than the batch's"


@torch.no_grad()
def masks(module: nn.Module, x: Inputs) -> bool:
    """Whether a batch with an empty row is normalized as one without; `in_lanes` may compare with less precision."""
    masked, filled_B, fewer = copy.deepcopy(module), torch.ones(size(x)), size(x) - 1
    names = batch_norm.mask(masked)
    if not names:
        return True
    filled_B[-1] = 0
    params = models.with_noise(module)
    found = functional_call(masked, params | dict.fromkeys(names, filled_B), (x,))[:fewer]
    expected = functional_call(module, params, (part(x, slice(fewer)),))
    return torch.allclose(found, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


def in_lanes(task: Task, x: Inputs, y: Tensor) -> str:
    """What does not work in lanes: steps, evaluations, and the way from a row back to a model."""
    model = LaneModel(task, y.device)
    row_P = model.layout.row(task.start, y.device)
    params_LP = row_P.repeat(LANES, 1).requires_grad_()
    stats_LQ = model.stats.row(task.start, y.device).repeat(LANES, 1)
    x_L = mapped(lambda each: torch.stack([each] * LANES), x)
    y_L, before, gradients_LP = torch.stack([y] * LANES), buffers(model), torch.zeros_like(params_LP)
    new_LQ, filled_LB = torch.zeros_like(stats_LQ), row_P.new_ones(y_L.shape[:2])
    filled_LB[1:, -1] = 0  # the first lane has a whole batch, the others a shorter one

    def step() -> None:
        losses_LB, found_LQ = model.losses(model.layout.views(params_LP), stats_LQ, x_L, y_L, filled_LB)
        (found_LP,) = torch.autograd.grad((losses_LB * filled_LB).sum(), params_LP)
        gradients_LP.copy_(found_LP)
        new_LQ.copy_(found_LQ)
        model.evaluation_losses(params_LP, found_LQ, x_L, y_L)

    for _ in range(2):  # the model may keep what the next step trips over
        captured(step, y.device)()
    if not all(map(torch.equal, before, buffers(model))):
        return "it changes its buffers in training"
    for lane, filled in enumerate(filled_LB.sum(1).int().tolist()):
        expected = by_itself(task, model, part(x, slice(filled)), y[:filled])
        for found, name in ((gradients_LP[lane], "gradients"), (new_LQ[lane], "running statistics")):
            wanted = expected[name]
            if not torch.isfinite(wanted).all():
                return f"its {name} are not all numbers"
            rounding = ROUNDING[task.experiment.precision] * float(wanted.abs().max()) if len(wanted) else 0.0
            if not torch.allclose(found, wanted, rtol=0, atol=rounding):
                return f"its {name} are others there"
    return ""


def by_itself(task: Task, model: LaneModel, x: Inputs, y: Tensor) -> dict[str, Tensor]:
    """A batch's gradients, and the running statistics after it, as rows, of the same model without lanes."""
    module = models.fresh(task.build, task.experiment.seed, "init", task.data.transform.dtype).to(y.device).train()
    module.load_state_dict(task.start)
    loss = task.data.objective.loss(module(x), y, "sum")
    own = models.trained(module)
    gradients = torch.autograd.grad(loss, list(own.values()), allow_unused=True, materialize_grads=True)
    return {
        "gradients": model.layout.row(dict(zip(own, gradients, strict=True)), y.device),
        "running statistics": model.stats.row(module.state_dict(), y.device),
    }


def buffers(model: LaneModel) -> list[Tensor]:
    """Copies of a model's buffers."""
    return [value.clone() for module in (model.module, model.eval_module) for value in module.buffers()]
