"""The Ray engine: the bytes of the local one, also when workers and nodes die.

Oracle: the hashes of a run of the local engine over the same pictures.
"""

import os
import signal

import pytest
from shard_setup import answers, hashes, task, write_model, write_photos

from labelwise.cli.predict import make_engine
from labelwise.errors import LabelwiseError, SettingsError
from labelwise.shards import LocalEngine, ShardRecord, predict_shards, ray_cluster
from labelwise.shards.engine import LostShardError
from labelwise.shards.ray_cluster import RayEngine, joined, require_ray, worker_environment

pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own, by the dozen
COUNT = 40


class Deadly:
    """Scores as ``inner`` does; some shards kill their worker the first time, or fail."""

    def __init__(self, inner, marks, deadly=(), times=1, wrong=()):
        self.inner, self.marks, self.deadly = inner, marks, deadly
        self.times, self.wrong = times, wrong

    def start(self):
        work = (
            self.inner.start() if self.inner else lambda shard: ShardRecord(str(shard), 1, 0, 1, "")
        )

        def run(shard):
            if shard in self.wrong:
                raise LabelwiseError(f"shard {shard} cannot be done")
            before = len(list(self.marks.glob(f"{shard}-*")))
            (self.marks / f"{shard}-{before}").touch()
            if shard in self.deadly and before < self.times:
                os.kill(os.getpid(), signal.SIGKILL)
            return work(shard)

        return run


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A model, pictures, and what the local engine makes of them."""
    folder = tmp_path_factory.mktemp("ray")
    write_model(folder / "model")
    write_photos(folder / "photos", COUNT)
    local = task(folder / "model", folder / "local")
    predict_shards(local, [str(folder / "photos")], LocalEngine(), shard_rows=5)
    return folder


@pytest.fixture(scope="module")
def cluster():
    with joined(2):
        yield


def test_a_worker_that_dies_leaves_the_bytes_of_the_local_engine(places, cluster, tmp_path):
    """One engine begins, its driver stops half-way; the other goes on; a worker dies."""
    out, photos = tmp_path / "out", [str(places / "photos")]
    given = task(places / "model", out)

    class Stopping:
        def run(self, work, shards):
            for number, record in enumerate(LocalEngine().run(work, shards)):
                yield record
                if number == 2:
                    raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict_shards(given, photos, Stopping(), shard_rows=5)

    class Harmed:
        def run(self, work, shards):
            return RayEngine(2).run(Deadly(work, tmp_path, deadly=(4,)), shards)

    outcome = predict_shards(given, photos, Harmed(), shard_rows=5)
    assert (outcome.resumed, outcome.rows, outcome.failed) == (3, COUNT, 2)
    assert hashes(out) == hashes(places / "local")
    assert answers(out) == answers(places / "local")
    assert len(list(tmp_path.glob("[0-9]-*"))) == 5 + 1


def test_workers_that_fit_nowhere_are_told_in_one_sentence(cluster, tmp_path, monkeypatch):
    """Ray itself refuses them: they must run on a node that is not there."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nowhere = NodeAffinitySchedulingStrategy("ab" * 28, soft=False)
    monkeypatch.setattr(ray_cluster, "SCHEDULING", nowhere)
    with pytest.raises(LabelwiseError, match="no worker could be started on the cluster"):
        list(RayEngine(1).run(Deadly(None, tmp_path), [0]))


def test_a_deadly_shard_and_a_failing_one_are_named(cluster, tmp_path):
    with pytest.raises(LostShardError, match="3 workers died over shard 0"):
        list(RayEngine(1).run(Deadly(None, tmp_path, deadly=(0,), times=9), range(1)))
    with pytest.raises(LabelwiseError, match="shard 1 cannot be done"):
        list(RayEngine(1).run(Deadly(None, tmp_path, wrong=(1,)), range(1, 2)))


def test_workers_are_not_promised_gpus_that_the_cluster_has_not(cluster, tmp_path):
    with pytest.raises(SettingsError, match="each worker needs 1 GPU, the cluster has 0"):
        list(make_engine("ray", 1, "cuda").run(Deadly(None, tmp_path), range(1)))
    with pytest.raises(SettingsError, match="give --device cuda, not cuda:1"):
        make_engine("ray", 1, "cuda:1")


class Seeing:
    """Scores as ``inner`` does, and notes which GPUs each worker may use."""

    def __init__(self, inner, marks):
        self.inner, self.marks = inner, marks

    def start(self):
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "none")
        (self.marks / f"worker-{os.getpid()}").write_text(seen)
        return self.inner.start()


def test_a_node_that_dies_is_survived(places, tmp_path):
    """Two nodes with a GPU each, by name; one is killed as soon as both have begun."""
    ray = require_ray()
    from ray.cluster_utils import Cluster

    ray.shutdown()
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "num_gpus": 1, "object_store_memory": 1 << 27},
    )
    second = cluster.add_node(num_cpus=1, num_gpus=1, object_store_memory=1 << 27)
    ray.init(
        address=cluster.address,
        log_to_driver=False,
        logging_level="error",
        runtime_env=worker_environment(),
    )
    try:
        cluster.wait_for_nodes()
        out = tmp_path / "out"

        class Losing:
            def run(self, work, shards):
                engine = make_engine("ray", 2, "cuda")
                for number, record in enumerate(engine.run(Seeing(work, tmp_path), shards)):
                    yield record
                    if number == 1:
                        cluster.remove_node(second, allow_graceful=False)

        given = task(places / "model", out)
        outcome = predict_shards(given, [str(places / "photos")], Losing(), shard_rows=5)
        assert (outcome.rows, outcome.failed) == (COUNT, 2)
        assert hashes(out) == hashes(places / "local")
        assert {mark.read_text() for mark in tmp_path.glob("worker-*")} == {"0"}
    finally:
        ray.shutdown()
        cluster.shutdown()
