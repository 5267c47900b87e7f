"""Nodes of a Ray cluster that come and go. Oracle: the hashes of the local engine's run."""

import pytest
from shard_setup import hashes, started, task

from labelwise.shards import make_engine, predict_shards
from labelwise.shards.ray_cluster import require_ray, worker_environment

pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own, by the dozen

NODE = {"object_store_memory": 1 << 27}


QUICK = {  # settings of Ray: a killed node is noticed in two seconds, nobody starts cold workers
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "400",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
}


@pytest.fixture
def head(worker_python, monkeypatch):
    """A cluster that this process has joined: its head has no core."""
    ray = require_ray()
    from ray.cluster_utils import Cluster

    for name, value in QUICK.items():
        monkeypatch.setenv(name, value)
    plain = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
    wanted = NODE | plain | {"num_cpus": 0}
    cluster = started(lambda: Cluster(initialize_head=True, head_node_args=wanted))
    try:
        ray.init(
            address=cluster.address,
            log_to_driver=False,
            logging_level="error",
            runtime_env=worker_environment() | {"py_executable": worker_python},
        )
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_nodes_come_and_go(places, head, tmp_path):
    """After two shards a node joins the cluster, and the one that worked is removed."""
    first = started(lambda: head.add_node(num_cpus=1, **NODE))
    engine = make_engine("ray", 1)

    class Moving:
        def run(self, work, shards):
            for number, record in enumerate(engine.run(work, shards)):
                yield record
                if number == 1:
                    started(lambda: head.add_node(num_cpus=1, **NODE))
                    head.remove_node(first, allow_graceful=False)

    given = task(places / "model", tmp_path / "moved")
    outcome = predict_shards(given, [str(places / "photos")], Moving(), shard_rows=5)
    assert (outcome.rows, outcome.failed) == (40, 2)
    assert hashes(tmp_path / "moved") == hashes(places / "local")
