"""The Ray engine: the bytes of the local one, also when workers and nodes die.

Oracle: the hashes of a run of the local engine over the same pictures.
"""

import os
import signal
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from shard_setup import answers, hashes, task, write_model, write_photos

from labelwise.cli.engines import cluster_decoding, make_engine
from labelwise.errors import LabelwiseError, SettingsError
from labelwise.pictures import Transform
from labelwise.shards import LocalEngine, ShardRecord, predict_shards, ray_cluster, ray_decoding
from labelwise.shards.engine import LostShardError
from labelwise.shards.inputs import InputRow, StoredImages
from labelwise.shards.ray_cluster import RayEngine, joined, require_ray, worker_environment
from labelwise.shards.ray_decoding import RayDecoding

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


class Killing(Transform):
    """Ends the process that scales a picture."""

    def resize(self, image):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_picture_that_kills_whoever_decodes_it_is_named(places, cluster, monkeypatch):
    monkeypatch.setattr(ray_decoding, "ATTEMPTS", 1)
    photo = next((places / "photos").rglob("000.png"))
    row = InputRow("000.png", str(photo.parent), os.fsencode(photo.name))
    reading = RayDecoding(ahead=1), [np.arange(1)], torch.device("cpu")

    def read(rows, transform):
        decoding, batches, device = reading
        return list(decoding(StoredImages(rows), transform, batches, device))

    (found,) = read([row], Transform(16))
    assert found.values.shape == (1, 3, 16, 16)
    with pytest.raises(LabelwiseError, match=r"2 processes died that decoded 000\.png"):
        read([row], Killing(16))
    with pytest.raises(TypeError, match="only stored pictures and a Transform"):
        next(reading[0](StoredImages([row]), object(), reading[1], reading[2]))


def test_decoders_are_refused_where_they_do_not_apply(places, tmp_path):
    with pytest.raises(SettingsError, match="add --engine ray"):
        cluster_decoding(places / "model", "local", 1, "cpu", 4)
    with pytest.raises(SettingsError, match="decodes on the worker's GPU, --decoders on cores"):
        cluster_decoding(places / "model", "ray", 1, "cuda", 4)
    with pytest.raises(SettingsError, match="an exported file scales pictures by itself"):
        cluster_decoding(tmp_path / "model.onnx", "ray", 1, "cpu", 4)
    assert cluster_decoding(places / "model", "ray", 2, "cpu", 5) == RayDecoding(ahead=4)


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

    ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={**head, "object_store_memory": 1 << 27})
    ray.init(
        address=cluster.address,
        log_to_driver=False,
        logging_level="error",
        runtime_env=worker_environment(),
    )
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_a_node_that_dies_is_survived(places, tmp_path):
    """Two nodes with a GPU each, by name; one is killed as soon as both have begun."""
    with cluster_of(num_cpus=1, num_gpus=1) as cluster:
        second = cluster.add_node(num_cpus=1, num_gpus=1, object_store_memory=1 << 27)
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


class Moving:
    """An engine; after two shards a node joins the cluster, and the one before it is killed."""

    def __init__(self, engine, cluster, first, second):
        self.engine, self.cluster, self.first, self.second = engine, cluster, first, second

    def run(self, work, shards):
        for number, record in enumerate(self.engine.run(work, shards)):
            yield record
            if number == 1:
                self.cluster.add_node(**self.second, object_store_memory=1 << 27)
                self.cluster.wait_for_nodes()
                self.cluster.remove_node(self.first, allow_graceful=False)


def test_nodes_with_cores_decode_for_one_with_a_gpu_and_come_and_go(places, tmp_path):
    """The head has a GPU by name, and no core: whoever decodes is on another node.

    Then the same where workers decode by themselves: one that waits for a core gets that of the
    node which joins.
    """
    photos = [str(places / "photos")]
    with cluster_of(num_cpus=0, num_gpus=1) as cluster:
        first = cluster.add_node(num_cpus=2, object_store_memory=1 << 27)
        cluster.wait_for_nodes()
        engine = make_engine("ray", 1, "cuda", decoders=2)
        assert (engine.workers, engine.gpus) == (2, 0.5)  # one computes while the other waits
        given = replace(task(places / "model", tmp_path / "fed"), reader=RayDecoding(ahead=2))
        moving = Moving(engine, cluster, first, {"num_cpus": 2})
        outcome = predict_shards(given, photos, moving, shard_rows=5)
        assert (outcome.rows, outcome.failed) == (COUNT, 2)
        assert hashes(tmp_path / "fed") == hashes(places / "local")

        (second,) = (node for node in cluster.worker_nodes)
        alone = task(places / "model", tmp_path / "alone")
        moving = Moving(make_engine("ray", 3), cluster, second, {"num_cpus": 1})
        outcome = predict_shards(alone, photos, moving, shard_rows=5)
        assert (outcome.rows, outcome.failed) == (COUNT, 2)
        assert hashes(tmp_path / "alone") == hashes(places / "local")
