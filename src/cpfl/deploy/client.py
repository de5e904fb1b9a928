"""The half of a Flower app that runs at every node: training, evaluation, and the node's part in masked sums.

Every message has a process of its own. So a node stores nothing but its secret of a running sum.
"""

import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from numpy.typing import NDArray

from cpfl import models
from cpfl.data.federated import FederatedData, as_samples
from cpfl.data.samples import Samples
from cpfl.data.split import Clients, hold_out
from cpfl.data.transform import Transform
from cpfl.devices.fleet import Fleet
from cpfl.engines.flower import messages
from cpfl.engines.flower.messages import ARRAYS, CONFIG, REPORT, Instruction
from cpfl.engines.reference import ReferenceEngine
from cpfl.errors import DataError, PrivacyError
from cpfl.federation.session import RoundRequest
from cpfl.privacy.label_counts import client_noise
from cpfl.privacy.masked_sum import MaskedSumClient
from cpfl.settings import Experiment
from cpfl.task.task import Task, UserModel, user_model_factory

MEMBER = "cpfl.member"  # where a node stores its secret of a running sum
MIN_CLIENTS = 3  # the smallest cohort in which a node reveals its label counts, unless its configuration says otherwise

LocalData = Callable[[Context], Any]
"""A user's function: the node's own (inputs, labels)."""


def client_app(model: UserModel, data: LocalData, mods: list[Mod] | None = None) -> ClientApp:
    """A node that trains `model` on what `data(context)` returns: (inputs, labels), which never leave it."""
    app = ClientApp(mods=mods)

    def register(kind: str, reply: Callable[[Any, Context], RecordDict]) -> None:
        @app.query(kind)
        def answer(message: Message, context: Context) -> Message:
            return Message(reply(message.content.config_records[REPORT], context), reply_to=message)

    register("enrol", lambda request, context: enrol(context, _samples(data(context))))
    register("shares", shares)
    register("masked", lambda request, context: masked(request, context, _samples(data(context))))
    register("reveal", reveal)
    register("counts", lambda request, context: counts(request, context, _samples(data(context))))

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        return Message(train(message.content, context, model, data), reply_to=message)

    return app


def enrol(context: Context, samples: Samples) -> RecordDict:
    """The number of this node's samples, and its public keys for a sum."""
    member = MaskedSumClient()
    _store(context, member)
    mask_key, share_key = member.keys()
    report = {
        "client": int(context.node_config.get("client", -1)),
        "samples": len(samples),
        "min_clients": _min_clients(context),
        "mask key": mask_key,
        "share key": share_key,
    }
    return messages.answer(report)


def shares(request: Any, context: Context) -> RecordDict:
    """Encrypted shares for the other members of the cohort."""
    member, numbers = _stored(context), map(int, request["members"])
    keys = zip(map(bytes, request["mask keys"]), map(bytes, request["share keys"]), strict=True)
    dealt = member.shares(int(request["member"]), dict(zip(numbers, keys, strict=True)), _min_clients(context))
    _store(context, member)
    return messages.answer(messages.numbered(dealt))


def masked(request: Any, context: Context, samples: Samples) -> RecordDict:
    """This node's label counts under masks."""
    member = _stored(context)
    values = member.masked(_label_counts(request, samples, len(member.roster)), messages.by_number(request))
    _store(context, member)
    return messages.answer({"values": values.astype("<u4").tobytes()})


def reveal(request: Any, context: Context) -> RecordDict:
    """One share of the secret of every member."""
    member = _stored(context)
    revealed = member.reveal(int(number) for number in request["senders"])
    _store(context, member)
    found = messages.numbered({**revealed.seeds, **revealed.keys})
    return messages.answer({**found, "dropped": list(revealed.keys)})


def counts(request: Any, context: Context, samples: Samples) -> RecordDict:
    """This node's label counts without masks, if its own configuration agrees."""
    if _min_clients(context) > 1:
        raise PrivacyError("this node reveals its label counts in a cohort only")
    return messages.answer({"values": _label_counts(request, samples, 1).astype("<u4").tobytes()})


def train(content: RecordDict, context: Context, model: UserModel, data: LocalData) -> RecordDict:
    """Evaluate the cohort's model, train from it, or both."""
    config: Any = content.config_records[CONFIG]
    instruction, received = Instruction.read(config), content.array_records[ARRAYS]
    device = torch.device(str(context.node_config.get("device", "cpu")))
    engine = ReferenceEngine(_task(config, model, _samples(data(context))), device)
    cohort, client, start = instruction.cohort, instruction.client, messages.state(received)
    report: dict[str, Any] = {}
    if instruction.evaluate:
        value = engine.evaluate(client, RoundRequest(cohort, instruction.evaluate, [client], start))
        if value is not None:
            report["validation"] = value
    if not instruction.train:
        return messages.answer(report)
    began = time.perf_counter()
    if config.get("proximal-mu"):
        engine.pull_back(float(config["proximal-mu"]), start)
    state, result = engine.train(client, RoundRequest(cohort, instruction.train, [client], start))
    report |= {"steps": result.steps, "seconds": time.perf_counter() - began}
    reply = messages.packed(state) if messages.is_packed(received) else messages.arrays(state)
    return messages.trained(reply, result.samples, result.loss, report)


def _task(config: ConfigRecord, model: UserModel, samples: Samples) -> Task:
    """A task in which this node's client holds all samples."""
    experiment, classes, client = messages.read_context(config)
    build, dtype = user_model_factory(model), getattr(torch, experiment.dtype)
    transform = Transform(experiment.data.mean, experiment.data.std, dtype)
    data = _own_data(experiment, client, samples, classes, transform)
    start = models.fresh(build, experiment.seed, "init", dtype)
    models.check(start, transform(torch.as_tensor(samples.x[:2])), classes)
    fleet, no_counts = Fleet(np.zeros(0), np.zeros(0)), np.zeros((0, classes), np.int64)
    return Task(experiment, data, build, build, fleet, [], models.state_of(start), 0, no_counts)


def _own_data(
    experiment: Experiment, client: int, samples: Samples, classes: int, transform: Transform
) -> FederatedData:
    assert samples.y is not None
    if samples.y.min() < 0 or samples.y.max() >= classes:
        raise DataError(f"a label of this node is {samples.y.max()}: they go from 0 to {classes - 1}")
    starts = np.zeros(client + 2, np.int64)
    starts[-1] = len(samples)
    clients = Clients(np.arange(len(samples)), starts, hold_out(starts, experiment))
    augmented = experiment.data.augment != "none"
    return FederatedData(samples, samples, samples, classes, clients, transform, transform, augmented)


def _label_counts(request: ConfigRecord, samples: Samples, members: int) -> NDArray[np.int64]:
    experiment, classes, client = messages.read_context(request)
    values = _own_data(experiment, client, samples, classes, Transform((), (), torch.float32)).counts[client]
    return np.asarray(values + client_noise(experiment.privacy, members, classes, random.SystemRandom()))


def _samples(given: Any) -> Samples:
    if not isinstance(given, tuple) or len(given) != 2:
        raise DataError("the function for local data returns a tuple (inputs, labels)")
    samples = as_samples(*given)
    if len(samples) == 0:
        raise DataError("this node holds no samples")
    return samples


def _min_clients(context: Context) -> int:
    return int(context.node_config.get("min_clients", MIN_CLIENTS))


def _store(context: Context, member: MaskedSumClient) -> None:
    context.state[MEMBER] = ConfigRecord({"member": member.dump()})


def _stored(context: Context) -> MaskedSumClient:
    if MEMBER not in context.state:
        raise PrivacyError("this node has no part in a running sum")
    return MaskedSumClient.load(bytes(context.state[MEMBER]["member"]))  # type: ignore[arg-type]
