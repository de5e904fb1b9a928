"""A problem with a cluster ends with one sentence and exit code 2, before anything is written."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.nodes import STARTED, Nodes, python, said
from tests.cluster.test_user_files import written
from tests.conftest import Command

import cpfl as package
from cpfl.deploy.local_fleet import free_port

pytest.importorskip("ray", reason="a cluster needs Ray: pip install 'cpfl[ray]'")

# The program as a user calls it, again and again in one process: imports take longer than all else. A line of words in,
# a line with exit code and complaint out.
AGAIN = """
import contextlib, io, json, sys, types
from torch import nn
import cpfl.cli

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))

sys.modules["only_here"] = types.ModuleType("only_here")  # no node can import it
sys.modules["only_here"].Net = Net
Net.__module__ = "only_here"
for line in sys.stdin:
    sys.argv, err, code = ["cpfl", *json.loads(line)], io.StringIO(), 0
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
            cpfl.cli.main()
    except SystemExit as ended:
        code = ended.code
    print(json.dumps([code, err.getvalue()]), flush=True)
"""
Refused = Callable[..., str]


@pytest.fixture(scope="module")
def refused(cluster: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The one sentence with which a run on the cluster is refused."""
    out = tmp_path_factory.mktemp("refused") / "run"
    process = python(AGAIN)
    STARTED.remove(process)  # it ends after the last test, not after the first

    def ask(*words: str | Path) -> str:
        options = ["--engine", "ray", "--address", cluster.address, "--out", out]
        print(json.dumps(["run", "digits", *map(str, [*words, *options])]), file=process.stdin, flush=True)
        code, text = json.loads(process.stdout.readline())
        assert code == 2, text
        assert not out.exists()
        (line,) = text.strip().splitlines()
        return str(line)

    with contextlib.closing(process.stdin), contextlib.closing(process.stdout):
        yield ask
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engine", "workers", "--address", "auto"], "go with engine = ray, not with workers"),
        (["--engine", "ray", "--address", "ray://head:10001"], "is a Ray client's address: host:port"),
        (["--engine", "ray", "--address", "head"], "address = head is not an address: host:port"),
        (["--engine", "ray", "--gpu-share", "1.5"], "gpu_share = 1.5 is not allowed: at least 0.0001"),
        (["--engine", "ray", "--gpu-share", "0.00005"], "gpu_share = 5e-05 is not allowed: at least 0.0001"),
        (["--engine", "ray", "--gpu-share", "nan"], "gpu_share = nan is not allowed: at least 0.0001"),
        (["--engine", "ray", "--device", "cuda:1"], "device = cuda:1 does not go with engine = ray: auto, cpu, cuda"),
        (["--engine", "ray", "--device", "mps"], "device = mps does not go with engine = ray: auto, cpu, cuda"),
    ],
)
def test_checks_that_need_no_cluster(cpfl_command: Command, tmp_path: Path, words: list[str], said: str) -> None:
    answer = cpfl_command("run", "digits", *words, "--out", tmp_path / "run")
    assert answer.code == 2
    assert said in answer.err
    assert not (tmp_path / "run").exists()


def test_no_cluster_at_the_address(cpfl_command: Command, tmp_path: Path) -> None:
    port = free_port()
    answer = cpfl_command("run", "digits", "--engine", "ray", "--address", f"127.0.0.1:{port}", "--out", "run")
    assert answer.code == 2
    (text,) = answer.err.strip().splitlines()
    assert f"there is no Ray cluster at address = 127.0.0.1:{port}" in text
    assert not (tmp_path / "run").exists()


# A process that is connected to the cluster already names it, or another one.
REACHED = """
import json, sys, warnings
warnings.simplefilter("ignore")
import ray
from cpfl.engines.ray import ClusterConfig, cluster
from cpfl.errors import ClusterError

ray.init(address=sys.argv[1], log_to_driver=False)
port = sys.argv[1].partition(":")[2]
for address in (sys.argv[1], f"localhost:{port}", "auto", "", f"192.0.2.1:{port}", "127.0.0.1:1"):
    try:
        with cluster.connection(ClusterConfig(address)):
            pass
        print(json.dumps([address, ray.is_initialized()]))
    except ClusterError as error:
        print(json.dumps([str(error), ray.is_initialized()]))
"""


@pytest.mark.cluster
def test_another_cluster_than_the_one_in_use(cluster: Nodes) -> None:
    *same, (elsewhere, _), (nowhere, _) = said(python(REACHED, cluster.address))
    assert [connected for _, connected in same] == [True] * 4
    assert [address for address, _ in same[2:]] == ["auto", ""]
    in_use = f"this process uses the Ray cluster at {cluster.address} already, not address = "
    assert elsewhere.startswith(f"{in_use}192.0.2.1:")
    assert nowhere == f"{in_use}127.0.0.1:1: say that one"


@pytest.mark.cluster
def test_a_cluster_that_lacks_what_is_wanted(refused: Refused, cluster: Nodes, tmp_path: Path) -> None:
    text = refused("--workers", "9")
    assert "has 2 CPUs: 9 workers, each with a CPU, do not fit there; allowed: workers = 1 to 2" in text
    text = refused("--device", "cuda")
    assert f"device = cuda asks for GPUs, and the Ray cluster at {cluster.address} has none that Ray knows of" in text
    assert "does not see node_data" in refused("--node-data", tmp_path / "nowhere")


@pytest.mark.cluster
def test_gpus_that_are_too_few_or_of_no_use(refused: Refused, cluster: Nodes) -> None:
    """A node claims two GPUs and five CPUs; torch finds no GPU there."""
    node = cluster.add(cpus=5, gpus=2)
    try:
        text = refused("--gpu-share", "0.2", "--workers", "6")
        assert "has 7 CPUs and 2 GPUs: 6 workers, each with 0.2 GPU and a CPU of one node, do not fit there" in text
        assert text.endswith("allowed: workers = 1 to 5")
        assert "allowed: workers = 1 to 2" in refused("--gpu-share", "0.6", "--workers", "3")
        assert "cannot use there: install a torch for them on all nodes, or set device = cpu" in refused()
        assert "allowed: workers = 1 to 7" in refused("--device", "cpu", "--workers", "8")
    finally:
        cluster.dismiss(node)


@pytest.mark.cluster
def test_nodes_with_other_data_than_the_driver(refused: Refused, tmp_path: Path) -> None:
    driver, nodes = written(tmp_path / "driver"), written(tmp_path / "nodes")
    shutil.copyfile(nodes / "mine/test-00000-of-00001.parquet", nodes / "mine/train-00000-of-00001.parquet")
    text = refused("--set", "data.train=mine", "--data", driver, "--node-data", nodes)
    assert f"the train data in node_data = {nodes} are not the driver's: checksums differ" in text


@pytest.mark.cluster
def test_a_model_that_only_the_driver_has(refused: Refused, tmp_path: Path) -> None:
    named = ["--set", "model.name=only_here:Net"]
    text = refused(*named)
    assert "a worker of the Ray cluster cannot load the experiment (No module named 'only_here')" in text
    text = refused(*named, "--node-data", tmp_path)
    assert "model.name = 'only_here:Net' cannot be loaded: No module named 'only_here'" in text


@pytest.mark.cluster
def test_other_versions_on_a_node(refused: Refused, cluster: Nodes, tmp_path: Path) -> None:
    """A node that has other packages than the driver, then cpfl in the same version with one more line."""
    node = cluster.add(PYTHONPATH=str(tmp_path))
    try:
        for name in ("cpfl", "torch", "numpy"):
            about = tmp_path / f"{name}-0.0.1.dist-info"
            about.mkdir()
            (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.0.1\n")
            text = refused()
            assert f" has {name} 0.0.1, this driver has " in text
            assert text.endswith("install the same on all nodes")
            shutil.rmtree(about)
        source = Path(package.__file__).parent
        shutil.copytree(source, tmp_path / "cpfl", ignore=shutil.ignore_patterns("__pycache__"))
        with (tmp_path / "cpfl" / "errors.py").open("a") as file:
            file.write("# another line\n")
        assert "with other code than this driver's: install the same on all nodes" in refused()
    finally:
        cluster.dismiss(node)
