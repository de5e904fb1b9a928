"""What a node does with a letter: trains and judges on its own data, and takes its part in masked sums.

Every letter has a process of its own, so nothing is kept but the secret of a running sum, which never leaves the node.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from numpy.typing import NDArray

from cpfl import models
from cpfl.data.federated import FederatedData, as_samples
from cpfl.data.samples import Samples
from cpfl.data.split import Clients, hold_out
from cpfl.data.transform import Transform
from cpfl.devices import Fleet
from cpfl.engines.flower import letters
from cpfl.engines.flower.letters import ARRAYS, CONFIG, REPORT, Task
from cpfl.engines.reference import ReferenceEngine
from cpfl.errors import DataError, PrivacyError
from cpfl.experiment import Experiment
from cpfl.federation.session import Work
from cpfl.privacy.counts import own_noise
from cpfl.privacy.masked_sum import Member
from cpfl.problem import OwnModel, Problem, own_factory

SUM = "cpfl.sum"  # where a node keeps its part in a running sum
SMALLEST = 3  # the smallest cohort in which a node hides, unless its own configuration says otherwise

LocalData = Callable[[Context], Any]
"""A user's function: the node's own (inputs, labels)."""


def enrol(message: Message, context: Context, data: LocalData) -> RecordDict:
    """How much this node holds, and public keys for a sum."""
    samples = _samples(data(context))
    member = Member()
    _keep(context, member)
    mask_key, letter_key = member.keys()
    told: dict[str, Any] = {
        "client": int(context.node_config.get("client", -1)),
        "samples": len(samples),
        "smallest": int(context.node_config.get("smallest", SMALLEST)),
        "mask key": mask_key,
        "letter key": letter_key,
    }
    return letters.answer(ConfigRecord(told))


def shares(message: Message, context: Context) -> RecordDict:
    """Letters to the others of the cohort, sealed."""
    asked, member = message.content.config_records[REPORT], _kept(context)
    masks: Any = asked["mask keys"]
    sealing: Any = asked["letter keys"]
    who: Any = asked["who"]
    roster = {int(n): (bytes(m), bytes(s)) for n, m, s in zip(who, masks, sealing, strict=True)}
    smallest = int(context.node_config.get("smallest", SMALLEST))
    dealt = member.shares(int(asked["me"]), roster, smallest)  # type: ignore[arg-type]
    _keep(context, member)
    return letters.answer(letters.numbered(dealt))


def masked(message: Message, context: Context, data: LocalData) -> RecordDict:
    """Its label counts under masks."""
    asked, member = message.content.config_records[REPORT], _kept(context)
    values = _label_counts(asked, context, data, len(member.roster))
    hidden = member.masked(values, letters.by_number(asked))
    _keep(context, member)
    return letters.answer(ConfigRecord({"values": hidden.astype("<u4").tobytes()}))


def reveal(message: Message, context: Context) -> RecordDict:
    """Shares of others' secrets, one of each."""
    asked, member = message.content.config_records[REPORT], _kept(context)
    sent: Any = asked["sent"]
    given = member.reveal(int(n) for n in sent)
    _keep(context, member)
    record = letters.numbered({**given.seeds, **given.keys})
    record["gone"] = list(given.keys)
    return letters.answer(record)


def counts(message: Message, context: Context, data: LocalData) -> RecordDict:
    """Its label counts as they are, if its own configuration says that it agrees to that."""
    if int(context.node_config.get("smallest", SMALLEST)) > 1:
        raise PrivacyError("this node tells its label counts in a cohort only")
    values = _label_counts(message.content.config_records[REPORT], context, data, 1)
    return letters.answer(ConfigRecord({"values": values.astype("<u4").tobytes()}))


def train(message: Message, context: Context, model: OwnModel, data: LocalData) -> RecordDict:
    """Judge the cohort's model, train from it, or both."""
    config = message.content.config_records[CONFIG]
    task = Task.read(config)
    device = torch.device(str(context.node_config.get("device", "cpu")))
    engine = ReferenceEngine(_problem(config, model, data(context)), device)
    arrived = message.content.array_records[ARRAYS]
    start, form = letters.state(arrived), letters.packed if letters.is_packed(arrived) else letters.arrays
    report: dict[str, Any] = {}
    if task.judge:
        value = engine.judge(task.client, Work(task.cohort, task.judge, [task.client], start))
        if value is not None:
            report["validation"] = value
    if not task.train:
        return letters.answer(ConfigRecord(report))
    began = time.perf_counter()
    if config.get("proximal-mu"):
        engine.pull_back(float(config["proximal-mu"]), start)  # type: ignore[arg-type]
    state, result = engine.train(task.client, Work(task.cohort, task.train, [task.client], start))
    report |= {"steps": result.steps, "seconds": time.perf_counter() - began}
    return letters.trained(form(state), result.samples, result.loss, report)


def _problem(config: ConfigRecord, model: OwnModel, given: Any) -> Problem:
    """A problem in which this node's client holds all there is."""
    experiment, samples = letters.experiment_of(config), _samples(given)
    client, classes = int(config["cpfl.client"]), int(config["cpfl.classes"])  # type: ignore[arg-type]
    build = own_factory(model)
    dtype = getattr(torch, experiment.numbers)
    transform = Transform(experiment.data.mean, experiment.data.std, dtype)
    data = _alone(experiment, client, samples, classes, transform)
    start = models.fresh(build, experiment.seed, "init", dtype)
    models.check(start, transform(torch.as_tensor(samples.x[:2])), classes)
    nobody = np.zeros(0)
    none = np.zeros((0, classes), np.int64)
    return Problem(experiment, data, build, build, Fleet(nobody, nobody), [], models.state_of(start), 0, none)


def _alone(experiment: Experiment, client: int, samples: Samples, classes: int, transform: Transform) -> FederatedData:
    assert samples.y is not None
    if samples.y.min() < 0 or samples.y.max() >= classes:
        raise DataError(f"a label of this node is {samples.y.max()}: they go from 0 to {classes - 1}")
    clients = _clients(experiment, client, len(samples))
    augmented = experiment.data.augment != "none"
    return FederatedData(samples, samples, samples, classes, clients, transform, transform, augmented)


def _clients(experiment: Experiment, client: int, samples: int) -> Clients:
    starts = np.zeros(client + 2, np.int64)
    starts[-1] = samples
    return Clients(np.arange(samples), starts, hold_out(starts, experiment))


def _label_counts(asked: ConfigRecord, context: Context, data: LocalData, members: int) -> NDArray[np.int64]:
    experiment, samples = letters.experiment_of(asked), _samples(data(context))
    client, classes = int(asked["cpfl.client"]), int(asked["cpfl.classes"])  # type: ignore[arg-type]
    transform = Transform((), (), torch.float32)
    values = _alone(experiment, client, samples, classes, transform).counts[client]
    return np.asarray(values + own_noise(experiment.privacy, members, classes, random.SystemRandom()))


def _samples(given: Any) -> Samples:
    if not isinstance(given, tuple) or len(given) != 2:
        raise DataError("the function for local data gives a tuple (inputs, labels)")
    samples = as_samples(*given)
    if len(samples) == 0:
        raise DataError("this node holds no samples")
    return samples


def _keep(context: Context, member: Member) -> None:
    context.state[SUM] = ConfigRecord({"member": member.dump()})


def _kept(context: Context) -> Member:
    if SUM not in context.state:
        raise PrivacyError("this node has no part in a running sum")
    return Member.load(bytes(context.state[SUM]["member"]))  # type: ignore[arg-type]
