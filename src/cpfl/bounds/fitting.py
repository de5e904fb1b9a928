"""A model like the run's own, trained in one place: Adam from the weights that cohorts start from.

Domain classifiers and joint models are trained so: they are hypotheses of the run's class H.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from cpfl import models
from cpfl.distillation.ensemble import Precision, to_device
from cpfl.distillation.student import Adam
from cpfl.engines.client_training import called
from cpfl.models.adapter import Inputs
from cpfl.task.task import Task

LR = 0.001


def fit(
    task: Task,
    precision: Precision,
    batches: Iterable[tuple[Inputs, Tensor]],
    loss: Callable[[Tensor, Tensor], Tensor],
    purpose: str,
    *address: int,
) -> nn.Module:
    """The trained model, in evaluation mode.

    Parameters
    ----------
    batches
        Inputs and labels of every step.
    loss
        A scalar, from the model's answers and the labels.
    purpose, address
        Where what the model draws by itself is seeded, such as dropout.
    """
    seed, dtype = task.experiment.seed, task.data.transform.dtype
    module = models.fresh(task.build, seed, "init", dtype)
    module.load_state_dict(task.start)
    module = to_device(module, task, precision).train()
    optimizer = Adam(models.trained(module).values(), LR)
    with torch.random.fork_rng():
        models.seed_torch(seed, purpose, *address)
        for inputs, y in batches:
            with models.arithmetic(*precision):
                answers = called(module, inputs)
            value = loss(answers.to(dtype), y)
            optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return module.eval()
