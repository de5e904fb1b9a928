"""Workers train on the device that was asked for, in whichever setting."""

from __future__ import annotations

import pytest
import torch

from cpfl.engines.ray import ClusterConfig, resolve_cluster
from cpfl.errors import SettingError

pytest.importorskip("ray")


def test_the_device_is_merged_into_the_cluster_config() -> None:
    assert resolve_cluster(None, "cpu") == ClusterConfig(device="cpu")
    assert resolve_cluster(ClusterConfig("head:6379", 0.5), "cpu") == ClusterConfig("head:6379", 0.5, "cpu")
    assert resolve_cluster(ClusterConfig("head:6379", device="cpu"), "auto").device == "cpu"
    with pytest.raises(SettingError, match="device = cuda and a cluster with device = cpu: say one of them"):
        resolve_cluster(ClusterConfig("head:6379", device="cpu"), "cuda")


def test_a_worker_without_a_gpu_share_uses_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from cpfl.engines.ray.worker import Worker

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    assert Worker("cpu")._device == torch.device("cpu")
    assert Worker("cuda")._device == torch.device("cuda")
