"""Model definitions of other packages, built from small configs: trained alike by all engines, or one client at a time.

Nothing is downloaded. `.ci/run` installs the packages for this file alone: pip install 'cpfl[zoo]'.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.engines.test_zoo import SETTINGS, Notes
from tests.zoo import CLASSES, LENGTH, MASK, RNG, TOKENS, WORDS, Change, Y
from torch import nn
from torch.nn.utils.parametrize import register_parametrization

import cpfl

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers", reason="its models: pip install 'cpfl[zoo]'")
nets = pytest.importorskip("monai.networks.nets", reason="its models: pip install 'cpfl[zoo]'")

COUNT = 60
LABELS = Y[:COUNT]
IDS = TOKENS[:COUNT]
MASKED = {"input_ids": IDS, "attention_mask": MASK[:COUNT].astype(np.int64)}
IMAGES = (RNG.normal(size=(COUNT, 3, 16, 16)) + LABELS[:, None, None, None]).astype("float32")
VOLUMES = (RNG.normal(size=(COUNT, 1, 8, 8, 8)) + LABELS[:, None, None, None, None]).astype("float32")

OUTPUTS = {"num_labels": CLASSES}
TEXT = {
    **OUTPUTS, "vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1,
    "max_position_embeddings": LENGTH + 2,
}  # fmt: skip
SIZE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
CALM = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def published(name: str, task: str = "SequenceClassification", **config: Any) -> Callable[[], nn.Module]:
    """A model of transformers by the name of its family."""

    def build() -> nn.Module:
        settings = getattr(transformers, f"{name}Config")(**config)
        model: nn.Module = getattr(transformers, f"{name}For{task}")(settings)
        return model

    return build


def tuned() -> nn.Module:
    """BERT with LoRA: its head and changes of queries and values are trained."""
    model = published("Bert", **TEXT, **SIZE, **CALM)().requires_grad_(False)
    model.get_submodule("classifier").requires_grad_(True)
    for name, part in list(model.named_modules()):
        if name.endswith(("query", "value")):
            assert isinstance(part, nn.Linear)
            register_parametrization(part, "weight", Change(part.weight))
    return model


# A check of masks looks at numbers; "eager" attention of GPT-2 and LLaMA does without it.
ALONE = "attempting to use a Tensor in some data-dependent control flow"
DRAWS = "draws random numbers of its own"
EAGER = {"attn_implementation": "eager"}
SMALL_GPT = {"n_embd": 16, "n_layer": 1, "n_head": 2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
SMALL_NET: dict[str, Any] = {"init_features": 8, "growth_rate": 4, "block_config": (1, 1), "bn_size": 2}
DISTIL = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 16, "dropout": 0.0, "attention_dropout": 0.0}
# The model, its inputs, and the words with which lanes decline; empty: they train it.
MODELS: dict[str, tuple[Callable[[], nn.Module], Any, str]] = {
    "bert": (published("Bert", **TEXT, **SIZE, **CALM), IDS, ""),
    "bert, masked": (published("Bert", **TEXT, **SIZE, **CALM), MASKED, ALONE),
    "bert with dropout": (published("Bert", **TEXT, **SIZE), MASKED, DRAWS),
    "bert with lora": (tuned, IDS, ""),
    "distilbert": (published("DistilBert", **TEXT, **DISTIL, seq_classif_dropout=0.0), MASKED, ALONE),
    "gpt2": (published("GPT2", **TEXT, **SMALL_GPT), MASKED, ALONE),
    "gpt2, eager": (published("GPT2", **TEXT, **SMALL_GPT, **EAGER), MASKED, ""),
    "llama, eager": (published("Llama", **TEXT, **SIZE, **EAGER), MASKED, ""),
    "vit": (
        published("ViT", "ImageClassification", image_size=16, patch_size=4, **OUTPUTS, **SIZE, **CALM),
        IMAGES,
        "",
    ),
    "convnext": (
        published("ConvNext", "ImageClassification", hidden_sizes=[8, 8], depths=[1, 1], num_stages=2, **OUTPUTS),
        IMAGES,
        "",
    ),
    "resnet of transformers": (
        published("ResNet", "ImageClassification", embedding_size=8, hidden_sizes=[8], depths=[1], **OUTPUTS),
        IMAGES,
        "",
    ),
    "densenet of monai": (lambda: nets.DenseNet(2, 3, CLASSES, **SMALL_NET), IMAGES, ""),
    "densenet, instance norm": (lambda: nets.DenseNet(2, 3, CLASSES, **SMALL_NET, norm="instance"), IMAGES, ""),
    "resnet of volumes": (
        lambda: nets.ResNet(
            "basic", [1, 1, 1, 1], [4, 4, 4, 4], spatial_dims=3, n_input_channels=1, num_classes=CLASSES, conv1_t_size=3
        ),
        VOLUMES,
        "",
    ),
    "classifier of monai": (lambda: nets.Classifier((3, 16, 16), CLASSES, (4, 4), (2, 2)), IMAGES, ""),
    "fully connected": (lambda: nets.FullyConnectedNet(3 * 256, CLASSES, [8]), IMAGES.reshape(COUNT, -1), ""),
}  # fmt: skip


def part(x: Any, rows: slice) -> Any:
    return {name: values[rows] for name, values in x.items()} if isinstance(x, dict) else x[rows]


def trained(model: Any, x: Any, engine: str, folder: Path, **settings: Any) -> tuple[cpfl.Run, list[str]]:
    notes = Notes()
    train, test, public = (part(x, rows) for rows in (slice(36), slice(36, 48), slice(48, None)))
    run = cpfl.run(
        cpfl.Experiment(), settings={**SETTINGS, **settings}, model=model, train=(train, LABELS[:36]),
        test=(test, LABELS[36:48]), public=public, out=folder / engine, engine=engine, device="cpu", callback=notes,
    )  # fmt: skip
    return run, notes.texts


@pytest.mark.parametrize("name", MODELS)
def test_engines_train_it_alike(name: str, tmp_path: Path) -> None:
    build, x, declined = MODELS[name]
    runs = {engine: trained(build, x, engine, tmp_path) for engine in ("reference", "workers", "lanes")}
    plain, _ = runs["reference"]
    for run, _ in runs.values():
        for ours, theirs in zip(run.rounds, plain.rounds, strict=True):
            for key in ("loss", "validation"):
                assert ours[key] == pytest.approx(theirs[key], rel=0, abs=1e-10)
        for key, value in plain.model.items():
            torch.testing.assert_close(run.model[key], value, rtol=0, atol=1e-6)  # Adam divides by small gradients
    in_lanes, notes = runs["lanes"]
    assert in_lanes.summary["engine"] == ("reference" if declined else "lanes")
    assert bool(declined) == any("cannot train in lanes" in note and declined in note for note in notes)


def test_what_does_not_fit_is_refused_in_a_sentence(tmp_path: Path) -> None:
    small = lambda: nets.EfficientNetBN("efficientnet-b0", pretrained=False, in_channels=3, num_classes=CLASSES)  # noqa: E731
    for engine in ("reference", "workers", "lanes"):
        with pytest.raises(cpfl.CpflError, match=r"does not take samples of shape \(3, 16, 16\)"):
            trained(small, IMAGES, engine, tmp_path)
        assert not list(tmp_path.iterdir())


def test_training_starts_from_the_file_that_transformers_writes(tmp_path: Path) -> None:
    build = published("Bert", **TEXT, **SIZE, **CALM)
    model: Any = build()
    model.save_pretrained(tmp_path / "pretrained")
    file = tmp_path / "pretrained" / "model.safetensors"
    run, _ = trained(build, IDS, "reference", tmp_path, **{"model.start": str(file)})
    start, saved = load_file(run.path / "models" / "start.safetensors"), load_file(file)
    assert all(torch.equal(start[name], value.double()) for name, value in saved.items())


def test_a_bert_with_lora_sends_less(tmp_path: Path) -> None:
    model = tuned()
    run, _ = trained(model, IDS, "reference", tmp_path, **{"model.start": "given"})
    size = 4 * sum(value.numel() for value in model.parameters() if value.requires_grad)
    assert all(record["bytes"] == 2 * size * len(record["participants"]) for record in run.rounds)
    assert size < sum(value.nbytes for value in model.parameters()) / 10
    for name, value in model.state_dict().items():
        assert torch.equal(run.model[name], value.double()) == (not model.get_parameter(name).requires_grad)
