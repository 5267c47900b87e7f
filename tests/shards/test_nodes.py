"""Nodes of a Ray cluster that come and go while it predicts.

Oracle: the hashes of a run of the local engine over the same pictures.
"""

import os
from contextlib import contextmanager
from dataclasses import replace

import pytest
from shard_setup import hashes, started, task

from labelwise.shards import predict_shards
from labelwise.shards.engine import make_engine
from labelwise.shards.ray_cluster import RayDecoding, require_ray, worker_environment

pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own, by the dozen


NODE = {"object_store_memory": 1 << 27}


class Seeing:
    """Scores as ``inner`` does, and notes which GPUs each worker may use."""

    def __init__(self, inner, marks):
        self.inner, self.marks = inner, marks

    def start(self):
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "none")
        (self.marks / f"worker-{os.getpid()}").write_text(seen)
        return self.inner.start()


@contextmanager
def cluster_of(**head):
    """A cluster that this process has joined, of one node so far."""
    ray = require_ray()
    from ray.cluster_utils import Cluster

    plain = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
    cluster = started(lambda: Cluster(initialize_head=True, head_node_args=NODE | plain | head))
    try:
        ray.init(
            address=cluster.address,
            log_to_driver=False,
            logging_level="error",
            runtime_env=worker_environment(),
        )
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


class Moving:
    """An engine; after two shards a node joins the cluster, and the one before it is killed."""

    def __init__(self, engine, cluster, first, second, marks):
        self.engine, self.cluster, self.first, self.second = engine, cluster, first, second
        self.marks = marks

    def run(self, work, shards):
        for number, record in enumerate(self.engine.run(Seeing(work, self.marks), shards)):
            yield record
            if number == 1:
                started(lambda: self.cluster.add_node(**self.second, **NODE))
                self.cluster.remove_node(self.first, allow_graceful=False)


def test_nodes_with_cores_decode_for_one_with_a_gpu_and_come_and_go(places, tmp_path):
    """The head has a GPU by name, and no core: whoever decodes is on another node.

    Then the same where workers decode by themselves: one that waits for a core gets that of the
    node which joins. All are started by the interpreter that Ray chooses by itself.
    """
    photos = [str(places / "photos")]
    with cluster_of(num_cpus=0, num_gpus=1) as cluster:
        first = started(lambda: cluster.add_node(num_cpus=2, **NODE))
        engine = make_engine("ray", 1, "cuda", decoders=2)
        assert (engine.workers, engine.gpus) == (2, 0.5)  # one computes while the other waits
        given = replace(task(places / "model", tmp_path / "fed"), reader=RayDecoding(ahead=2))
        moving = Moving(engine, cluster, first, {"num_cpus": 2}, tmp_path)
        outcome = predict_shards(given, photos, moving, shard_rows=5)
        assert (outcome.rows, outcome.failed) == (40, 2)
        assert hashes(tmp_path / "fed") == hashes(places / "local")
        assert {mark.read_text() for mark in tmp_path.glob("worker-*")} == {"0"}  # of its GPU

        (second,) = (node for node in cluster.worker_nodes)
        alone = task(places / "model", tmp_path / "alone")
        moving = Moving(make_engine("ray", 3), cluster, second, {"num_cpus": 1}, tmp_path)
        outcome = predict_shards(alone, photos, moving, shard_rows=5)
        assert (outcome.rows, outcome.failed) == (40, 2)
        assert hashes(tmp_path / "alone") == hashes(places / "local")
