"""Joining a cluster: what cannot be had is said in one sentence before anything is loaded, and nothing is left."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress

import pytest
from sampler_requests import processes_of, wait_for_their_end
from spawned import PYTHON, variables_of

from sojourn.backends.ray.backend import Ray
from sojourn.backends.ray.cluster import Cluster, Needs, _require_answer, _start, code_digest, require_same_code
from sojourn.backends.ray.sampler_engines import Samplers
from sojourn.config.registry import build
from sojourn.errors import ConfigError, MissingExtraError
from sojourn.models.spec import Model

ONE = Needs(what="samplers", count=1, cpus=1, gpus=0)
RECIPE = """
name = "scaled"
model = { name = "tiny:layers=1,hidden=64", dtype = "fp32" }
env = { name = "toy", rooms = 2, side_rooms = 0, doors = 0, decoys = 0, choices = true }
agent = { name = "plain", choices = true }
backend = { name = "ray", threads = 1, max_context = 1024, samplers = { replicas = 2 } }
evaluation = { tasks = 4 }
[[stages]]
name = "rl"
steps = 2000
groups = { name = "slots", width = 2, size = 4 }
estimator = { name = "grpo" }
losses = [{ name = "ppo" }]
"""


def test_more_than_the_cluster_has_is_refused(cluster):
    needs = [Needs(what="samplers", count=3, cpus=40, gpus=0), ONE]
    with pytest.raises(
        ConfigError, match=r"needs 121 CPUs \(3 x 40 for samplers, 1 x 1 for samplers\), but the cluster"
    ):
        Cluster.join("", needs)
    with pytest.raises(ConfigError, match=r"needs 2 GPUs \(2 x 1 for samplers\), but the cluster has 0: add nodes"):
        Cluster.join("", [Needs(what="samplers", count=2, cpus=1, gpus=1)])


def test_what_others_hold_is_waited_for_and_then_refused(cluster, monkeypatch):
    monkeypatch.setattr("sojourn.backends.ray.cluster.RESERVE_TIMEOUT_S", 0.5)
    held = Cluster.join("", [Needs(what="samplers", count=1, cpus=24, gpus=0)]).hold()
    try:
        with pytest.raises(ConfigError, match=r"had no room for 1 actors within 0 s \(1 x 24 for samplers; free are"):
            Cluster.join("", [Needs(what="samplers", count=1, cpus=24, gpus=0)])
    finally:
        held.release()
    deadline = time.monotonic() + 30
    while cluster.available_resources().get("CPU", 0) < 24:
        assert time.monotonic() < deadline, "places are given back"
        time.sleep(0.1)
    Cluster.join("", [Needs(what="samplers", count=1, cpus=24, gpus=0)]).hold().release()


def joined(address: str) -> str:
    """Returns what a process says that joins the cluster at an address."""
    code = f"""
from sojourn.backends.ray.cluster import Cluster
Cluster.join({address!r}, [])
print("joined")
"""
    done = subprocess.run([*PYTHON, "-c", code], env=variables_of(), capture_output=True, text=True, timeout=90)
    return done.stdout + done.stderr


@pytest.mark.parametrize("address", ["127.0.0.1:1", "localhost:1"])
def test_an_address_where_nobody_answers_is_refused(address):
    assert f"backend.address = '{address}': nobody answers there" in joined(address)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_an_address_where_something_else_answers_is_refused(answer, monkeypatch):
    """Ray itself waits there for minutes."""
    monkeypatch.setattr("sojourn.backends.ray.cluster.CONNECT_TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def serve() -> None:
            connection, _ = server.accept()
            with connection, suppress(ConnectionError):
                connection.recv(100)
                connection.sendall(answer)
                connection.recv(100)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(ConfigError, match=rf"address = '{address}': what answers there is not Ray: expected"):
            _require_answer(address)
        thread.join()


@pytest.mark.parametrize(("said", "attempts"), [("it timed out during startup", 3), ("no space left", 1)])
def test_a_start_that_takes_ray_too_long_is_tried_again(said, attempts):
    class Slow:
        begun = 0

        def init(self, **settings: object) -> None:
            self.begun += 1
            raise RuntimeError(said)

    slow = Slow()
    with pytest.raises(ConfigError, match=f"no Ray cluster on this machine could be joined .{said}"):
        _start(slow, "")
    assert slow.begun == attempts


def test_the_address_of_a_cluster_is_joined(cluster):
    assert joined(cluster.get_runtime_context().gcs_address).splitlines()[-1] == "joined"


def test_an_address_of_another_form_is_refused():
    with pytest.raises(ConfigError, match=r"address.*host:port, auto, or nothing"):
        build("backend", {"name": "ray", "address": "my cluster"})


def test_without_ray_the_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"needs the package 'ray', which is not installed: pip install"):
        Ray().check(Model(name="tiny"))


def test_a_node_with_other_code_is_told():
    require_same_code({"sampler 0": code_digest()})
    with pytest.raises(ConfigError, match=r"sampler 1: the nodes have another version of Sojourn's code"):
        require_same_code({"sampler 0": code_digest(), "sampler 1": "0123"})


def test_samplers_of_a_part_of_a_core_have_a_place(cluster):
    backend = Ray(samplers=Samplers(replicas=3, cpus=0.5))
    held = Cluster.join("", [backend.needs["samplers"]]).hold()
    assert held.places[0].group.bundle_count == 3
    held.release()


def test_a_driver_that_is_killed_leaves_nothing_running(tmp_path):
    (tmp_path / "recipe.toml").write_text(RECIPE)
    own = tempfile.mkdtemp(dir="/tmp")  # Ray's sockets need a short path
    environment = variables_of({"RAY_TMPDIR": own, "PYTHONPATH": os.pathsep.join(sys.path)})
    code = "import ray_actors; from sojourn.cli import main; main()"
    command = [*PYTHON, "-c", code, "train", str(tmp_path / "recipe.toml"), "--out", str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment) as driver:
        metrics, deadline = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 240
        while not (metrics.exists() and metrics.stat().st_size):
            assert driver.poll() is None, "it trains until it is killed"
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert len(processes_of(own)) > 3
        driver.send_signal(signal.SIGKILL)
    wait_for_their_end(own)
