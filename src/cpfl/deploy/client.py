"""The half of a Flower app that runs at every node: training, evaluation, and the node's part in masked sums.

Every message has a process of its own. So a node stores nothing but its secret of a running sum.
"""

import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from numpy.typing import NDArray

from cpfl import models
from cpfl.data.federated import FederatedData, labelled, transforms
from cpfl.data.given import as_samples
from cpfl.data.samples import Samples
from cpfl.data.sets import SetReader
from cpfl.data.sources import search_roots
from cpfl.data.split import Clients, hold_out
from cpfl.devices.fleet import Fleet
from cpfl.engines.flower import messages
from cpfl.engines.flower.messages import ARRAYS, CONFIG, EXAMPLES, METRICS, PACKED, REPORT
from cpfl.engines.reference import ReferenceEngine
from cpfl.errors import DataError, ModelError, PrivacyError
from cpfl.federation.session import RoundRequest
from cpfl.models.adapter import adapted
from cpfl.models.layout import Layout
from cpfl.models.start import AS_GIVEN, FRESH, initial
from cpfl.objectives.base import objective as objective_of
from cpfl.privacy.label_counts import HIDDEN, client_noise
from cpfl.privacy.masked_sum import MaskedSumClient
from cpfl.settings import Experiment
from cpfl.task.task import Task, UserModel, model_factory, start_file

MEMBER = "cpfl.member"  # where a node stores its secret of a running sum
MIN_CLIENTS = 3  # the smallest cohort in which a node reveals its label counts, unless its configuration says otherwise

LocalData = Callable[[Context], Any]
"""A user's function: the node's own (inputs, labels), torch Dataset, Hugging Face dataset or frame."""


def client_app(model: UserModel, data: LocalData, mods: list[Mod] | None = None) -> ClientApp:
    """A node that trains `model` on what `data(context)` returns: (inputs, labels), which never leave it."""
    app = ClientApp(mods=mods)

    def register(step: Callable[..., dict[str, Any]]) -> None:
        @app.query(step.__name__)
        def answer(message: Message, context: Context) -> Message:
            if step is not enrol and MEMBER not in context.state:
                raise PrivacyError("this node has no part in a running sum")
            stored: Any = context.state.get(MEMBER)
            member = MaskedSumClient() if step is enrol else MaskedSumClient.load(bytes(stored["member"]))
            request = message.content.config_records[REPORT]
            report = step(member, request, context, lambda: _samples(data(context)))
            context.state[MEMBER] = ConfigRecord({"member": member.dump()})
            return Message(messages.answer(report), reply_to=message)

    for step in (enrol, shares, masked, reveal, counts):
        register(step)

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        return Message(train(message.content, context, model, data), reply_to=message)

    return app


def enrol(member: MaskedSumClient, request: Any, context: Context, samples: Callable[[], Samples]) -> dict[str, Any]:
    """The number of this node's samples, and its public keys for a sum."""
    mask_key, share_key = member.keys()
    return {
        "client": int(context.node_config.get("client", -1)),
        "samples": len(samples()),
        "min_clients": _min_clients(context),
        "mask key": mask_key,
        "share key": share_key,
    }


def shares(member: MaskedSumClient, request: Any, context: Context, _: object) -> dict[str, Any]:
    """Encrypted shares for the other members of the cohort."""
    keys = zip(map(bytes, request["mask keys"]), map(bytes, request["share keys"]), strict=True)
    roster = dict(zip(map(int, request["members"]), keys, strict=True))
    return messages.numbered(member.shares(int(request["member"]), roster, _min_clients(context)))


def masked(member: MaskedSumClient, request: Any, context: Context, samples: Callable[[], Samples]) -> dict[str, Any]:
    """This node's label counts under masks."""
    values = member.masked(_label_counts(request, samples(), len(member.roster)), messages.by_number(request))
    return {"values": values.astype("<u4").tobytes()}


def reveal(member: MaskedSumClient, request: Any, *_: object) -> dict[str, Any]:
    """One share of the secret of every member."""
    revealed = member.reveal(int(number) for number in request["senders"])
    return {**messages.numbered({**revealed.seeds, **revealed.keys}), "dropped": list(revealed.keys)}


def counts(_: object, request: Any, context: Context, samples: Callable[[], Samples]) -> dict[str, Any]:
    """This node's label counts without masks, if its own configuration agrees."""
    if _min_clients(context) > 1:
        raise PrivacyError("this node reveals its label counts in a cohort only")
    return {"values": _label_counts(request, samples(), 1).astype("<u4").tobytes()}


def train(content: RecordDict, context: Context, model: UserModel, data: LocalData) -> RecordDict:
    """Evaluate the cohort's model, train from it, or both."""
    config: Any = content.config_records[CONFIG]
    experiment, classes, client = messages.read_context(config)
    cohort, training, evaluation = (int(config[f"cpfl.{key}"]) for key in ("cohort", "train", "evaluate"))
    received, samples = content.array_records[ARRAYS], _labelled(experiment, _samples(data(context)), classes)
    clients = _clients(experiment, client, samples)
    own = _with_own_start(experiment, str(context.node_config.get("start", "")))
    task = known_task(own, model, samples, samples, samples, classes, clients, at_node=True)
    engine = ReferenceEngine(task, torch.device(str(context.node_config.get("device", "cpu"))))
    layout = task.layout()
    if config["cpfl.frozen"] != messages.frozen_checksum(layout):
        raise ModelError(
            "the frozen parameters of this node's model are not those of the server's: checksums differ; both need the "
            "same weights (model.start) or the same seed, and the same torch"
        )
    start, report = layout.received(messages.state(received)), dict[str, Any]()
    if evaluation:
        value = engine.evaluate(client, RoundRequest(cohort, evaluation, [client], start))
        report |= {} if value is None else {"validation": value}
    if not training:
        return messages.answer(report)
    began = time.perf_counter()
    if config.get("proximal-mu"):
        engine.pull_back(float(config["proximal-mu"]), start)
    state, result = engine.train(client, RoundRequest(cohort, training, [client], start))
    report |= {"steps": result.steps, "seconds": time.perf_counter() - began}
    sent = layout.sent(state)
    reply = messages.packed(sent) if PACKED in received else messages.arrays(sent)
    metrics = MetricRecord({EXAMPLES: result.samples, "loss": result.loss})
    return RecordDict({ARRAYS: reply, METRICS: metrics, **messages.answer(report)})


def _with_own_start(experiment: Experiment, file: str) -> Experiment:
    """The experiment with this node's file of initial weights, if it has one."""
    if not file:
        return experiment
    return experiment.model_copy(update={"model": experiment.model.model_copy(update={"start": file})})


def known_task(
    experiment: Experiment,
    model: UserModel,
    train: Samples,
    test: Samples,
    public: Samples,
    classes: int,
    own: Clients,
    at_node: bool = False,  # to it weights come with messages, all but the frozen ones
) -> Task:
    """A task as one machine knows it: its own samples, no cohorts, no label counts and no speeds."""
    transform, public_transform = transforms(experiment, public)
    augmented = experiment.data.augment != "none"
    objective = objective_of(experiment.model)
    data = FederatedData(train, test, public, objective, classes, own, transform, public_transform, augmented)
    x = data.inputs(2)
    build = adapted(model_factory(experiment.model, model, train.shape, data.outputs), x)
    chosen, seed, dtype = experiment.model, experiment.seed, transform.dtype
    from_file = chosen.start not in (FRESH, AS_GIVEN)
    if at_node and from_file and not Layout.from_module(models.fresh(build, seed, "init", dtype)).frozen:
        chosen = chosen.model_copy(update={"start": FRESH})
    file = start_file(chosen, search_roots(None))
    build, start, size = initial(build, chosen, seed, x, data.answer, dtype, file)
    fleet = Fleet(np.ones(experiment.clients), np.ones(experiment.clients))  # not used: real rounds are measured
    hidden = np.full((experiment.cohorts, classes), HIDDEN)
    return Task(experiment, data, build, build, fleet, [], start, size, hidden)


def _labelled(experiment: Experiment, samples: Samples, classes: int) -> Samples:
    """This node's samples with labels as the objective takes them, if they fit the run's number of classes."""
    objective = objective_of(experiment.model)
    found = labelled(objective, samples, "node's", experiment)
    assert found.y is not None
    objective.classes({"node's": found.y}, classes)
    return found


def _clients(experiment: Experiment, client: int, samples: Samples) -> Clients:
    """All samples are this client's; those with lower numbers hold none."""
    starts = np.zeros(client + 2, np.int64)
    starts[-1] = len(samples)
    return Clients(np.arange(len(samples)), starts, hold_out(starts, experiment))


def _label_counts(request: ConfigRecord, samples: Samples, members: int) -> NDArray[np.int64]:
    experiment, classes, client = messages.read_context(request)
    objective, samples = objective_of(experiment.model), _labelled(experiment, samples, classes)
    assert samples.y is not None
    own = _clients(experiment, client, samples)
    values = own.label_counts(objective, samples.y, classes, np.array([client]))[0]
    sensitivity = objective.sensitivity(samples.y.shape[1:])
    return np.asarray(values + client_noise(experiment.privacy, members, classes, random.SystemRandom(), sensitivity))


def _samples(given: Any) -> Samples:
    try:
        part = SetReader().read(given)
    except DataError as error:
        raise DataError(f"the function for local data: {error}") from None
    samples = as_samples(part.x, part.y)
    if len(samples) == 0:
        raise DataError("this node holds no samples")
    return samples


def _min_clients(context: Context) -> int:
    return int(context.node_config.get("min_clients", MIN_CLIENTS))
