"""The work done by pfl-research; several processes are started with torchrun."""

from __future__ import annotations

import functools
import os
import time
from typing import Any

import numpy as np
import torch
import works
from torch import Tensor, nn

WORDS = works.arguments(__doc__, "processes, as torchrun started them")
RANK = int(os.environ.get("RANK", "0"))
os.environ["PFL_PYTORCH_DEVICE"] = WORDS.device
if WORDS.device == "cpu":
    torch.set_num_threads(1)
elif WORDS.count > 1:
    # pfl gives every process a GPU of its own and talks over NCCL, which allows nothing else. Sharing one GPU is
    # better for it here, and gloo can do that.
    os.environ["LOCAL_RANK"] = "0"
    start_group = torch.distributed.init_process_group
    torch.distributed.init_process_group = lambda backend, **more: start_group("gloo", **more)

import pfl  # noqa: E402  (reads its device and joins the other processes when it is imported)
from pfl.aggregate.simulate import SimulatedBackend  # noqa: E402
from pfl.algorithm import FederatedAveraging, NNAlgorithmParams  # noqa: E402
from pfl.callback.base import TrainingProcessCallback  # noqa: E402
from pfl.data.federated_dataset import FederatedDataset  # noqa: E402
from pfl.data.pytorch import PyTorchTensorDataset  # noqa: E402
from pfl.data.sampling import get_user_sampler  # noqa: E402
from pfl.hyperparam import NNTrainHyperParams  # noqa: E402
from pfl.metrics import Metrics, Weighted  # noqa: E402
from pfl.model.pytorch import PyTorchModel  # noqa: E402


class Trained(nn.Module):
    """A model with the two methods that pfl asks for; counts the samples that it is trained on."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.seen = net, 0

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.seen += len(x)
        return nn.functional.cross_entropy(self.net(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(nn.functional.cross_entropy(self.net(x), y, reduction="sum").item(), len(x))}


class Rounds(TrainingProcessCallback):
    """Records every round, and the samples that all processes trained in it."""

    def __init__(self, report: works.Report, net: nn.Module) -> None:
        self._report, self._net = report, net

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        counted = torch.tensor(model.pytorch_model.seen)
        model.pytorch_model.seen = 0
        if WORDS.count > 1:
            torch.distributed.all_reduce(counted)
        if WORDS.device == "cuda":
            torch.cuda.synchronize()
        self._report.ended(time.perf_counter(), int(counted))
        if central_iteration + 1 == WORDS.evaluate:
            self._report.evaluated = {name: value.detach().clone() for name, value in self._net.state_dict().items()}
        return False, Metrics()


def main() -> None:
    works.set_arithmetic(WORDS.precision)
    np.random.seed(works.SEED)  # all processes must draw alike: pfl keeps them in step by that
    x, y, rows = works.load(WORDS.arrays)
    x, y = x.to(WORDS.device), y.to(WORDS.device)  # so no batch has to travel
    users = [PyTorchTensorDataset((x[part], y[part]), user_id=str(k)) for k, part in enumerate(rows)]
    sizes = {k: len(part) for k, part in enumerate(rows)}
    data = FederatedDataset(
        users.__getitem__,  # kept, and with them their batches: pfl neither shuffles nor gathers again
        get_user_sampler("minimize_reuse", range(len(users))),
        sizes if len(set(sizes.values())) > 1 else None,
    )
    net = works.build(WORDS.model).to(WORDS.device)
    model = PyTorchModel(
        model=Trained(net),
        local_optimizer_create=functools.partial(torch.optim.SGD, momentum=works.MOMENTUM),
        central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),  # the plain mean
        amp_dtype=torch.bfloat16 if WORDS.precision == "bf16" else None,
    )
    report = works.Report(WORDS)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=WORDS.rounds,
            evaluation_frequency=WORDS.rounds + 1,  # it evaluates in the first round all the same
            train_cohort_size=len(users),
            val_cohort_size=None,
        ),
        SimulatedBackend(training_data=data, val_data=data),
        model,
        NNTrainHyperParams(local_batch_size=works.BATCH, local_num_epochs=1, local_learning_rate=works.LR),
        callbacks=[Rounds(report, net)],
        send_metrics_to_platform=False,  # it would print them
    )
    if RANK == 0:
        report.write(pfl=pfl.__version__)
    if WORDS.count > 1:
        torch.distributed.barrier()  # one that leaves early takes the others down
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
