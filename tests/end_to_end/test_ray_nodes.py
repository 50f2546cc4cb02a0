"""A node of a cluster that is lost while a run uses it changes nothing of the run."""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from spawned import PYTHON, variables_of
from test_ray_run import RAY, RECIPE, assert_same, train

import sojourn
from sojourn.backends.ray.cluster import SLOW_START

NODE = {"num_cpus": 2, "object_store_memory": 100_000_000}
HEAD = {**NODE, "num_cpus": 1, "include_dashboard": False}


def add(nodes: Any, attempts: int = 3) -> Any:
    """Adds a node, again where Ray has not waited long enough for it on a busy machine."""
    try:
        return nodes.add_node(**NODE)
    except Exception as error:
        if attempts == 1 or SLOW_START not in str(error):
            raise
        return add(nodes, attempts - 1)


async def lose_a_node(folder: Path) -> None:
    """Trains on three nodes, none of which has room for all, any two of which have; kills one that is used, but not the
    driver's, after the first step of RL."""
    import ray
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args=HEAD)
    others = [add(nodes), add(nodes)]
    training = asyncio.create_task(train(folder, *RAY, f"backend.address={nodes.address}"))
    metrics = folder / "metrics.jsonl"
    while not (metrics.exists() and '"stage": "rl"' in metrics.read_text()):
        await asyncio.sleep(0.05)
        if training.done():
            training.result()
    [group] = [one for one in ray.util.placement_group_table().values() if one["state"] == "CREATED"]
    places = Counter(group["bundles_to_node_id"].values())
    victim = max(others, key=lambda node: places[node.node_id])
    await asyncio.to_thread(nodes.remove_node, victim, allow_graceful=False)
    assert not training.done(), "it trained when the node was killed"
    print("killed", flush=True)
    await training
    ray.shutdown()
    nodes.shutdown()


def test_a_node_that_is_killed_changes_nothing(tmp_path):
    pytest.importorskip("ray")
    from ray_actors import VARIABLES

    (tmp_path / "recipe.toml").write_text(RECIPE)
    plain = sojourn.train(tmp_path / "recipe.toml", out=tmp_path / "plain", progress=False).path
    own = tempfile.mkdtemp(dir="/tmp")  # Ray's sockets need a short path
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = variables_of({**VARIABLES, "RAY_TMPDIR": own, "PYTHONPATH": paths})
    code = f"""
import asyncio
from pathlib import Path
import ray_actors
from test_ray_nodes import lose_a_node
asyncio.run(lose_a_node(Path({str(tmp_path / "run")!r})))
"""
    done = subprocess.run(
        [*PYTHON, "-c", code], env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "killed" in done.stdout
    assert_same(tmp_path / "run", plain)
