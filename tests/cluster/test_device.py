"""The device that was asked for is the one that workers train on, however it was said."""

from __future__ import annotations

import pytest
import torch

from cpfl.engines.ray.place import Place, settled
from cpfl.errors import SettingError

pytest.importorskip("ray")


def test_the_device_goes_with_the_cluster() -> None:
    assert settled(None, "cpu") == Place(device="cpu")
    assert settled(Place("head:6379", 0.5), "cpu") == Place("head:6379", 0.5, "cpu")
    assert settled(Place("head:6379", device="cpu"), "auto").device == "cpu"
    with pytest.raises(SettingError, match="device = cuda and a cluster with device = cpu: say one of them"):
        settled(Place("head:6379", device="cpu"), "cuda")


def test_a_worker_leaves_a_gpu_alone_that_it_was_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    from cpfl.engines.ray.worker import Worker

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    assert Worker("cpu")._device == torch.device("cpu")
    assert Worker("cuda")._device == torch.device("cuda")
