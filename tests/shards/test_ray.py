"""The Ray engine: the bytes of the local one, also when workers die.

Oracle: the hashes of a run of the local engine over the same pictures.
"""

import os
import signal

import numpy as np
import pytest
import torch
from shard_setup import answers, hashes, task

from labelwise.errors import LabelwiseError, SettingsError
from labelwise.pictures import Transform
from labelwise.shards import LocalEngine, ShardRecord, make_engine, predict_shards, ray_cluster
from labelwise.shards import ray_cluster as ray_decoding
from labelwise.shards.inputs import InputRow, StoredImages
from labelwise.shards.ray_cluster import RayDecoding, RayEngine
from labelwise.shards.scoring_task import cluster_decoding

pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own, by the dozen


class Deadly:
    """Scores as ``inner`` does; some shards kill their worker the first time."""

    def __init__(self, inner, marks, deadly=()):
        self.inner, self.marks, self.deadly = inner, marks, deadly

    def start(self):
        work = (
            self.inner.start() if self.inner else lambda shard: ShardRecord(str(shard), 1, 0, 1, "")
        )

        def run(shard):
            before = len(list(self.marks.glob(f"{shard}-*")))
            (self.marks / f"{shard}-{before}").touch()
            if shard in self.deadly and not before:
                os.kill(os.getpid(), signal.SIGKILL)
            return work(shard)

        return run


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
    assert (outcome.resumed, outcome.rows, outcome.failed) == (3, 40, 2)
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


def test_workers_are_not_promised_gpus_that_the_cluster_has_not(cluster, tmp_path):
    with pytest.raises(SettingsError, match="each worker needs 1 GPU, the cluster has 0"):
        list(make_engine("ray", 1, "cuda").run(Deadly(None, tmp_path), range(1)))
    with pytest.raises(SettingsError, match="give --device cuda, not cuda:1"):
        make_engine("ray", 1, "cuda:1")


class Killing(Transform):
    """Ends the process that scales a picture."""

    def resize(self, image):
        os.kill(os.getpid(), signal.SIGKILL)


class InAGraph(Transform):
    """Resizes by a file that is on this machine alone."""

    is_plain = False


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
        read([row], InAGraph(16))


def test_decoders_are_refused_where_they_do_not_apply(places, tmp_path):
    with pytest.raises(SettingsError, match="add --engine ray"):
        cluster_decoding(places / "model", "local", 1, "cpu", 4)
    with pytest.raises(SettingsError, match="decodes on the worker's GPU, --decoders on cores"):
        cluster_decoding(places / "model", "ray", 1, "cuda", 4)
    with pytest.raises(SettingsError, match="an exported file scales pictures by itself"):
        cluster_decoding(tmp_path / "model.onnx", "ray", 1, "cpu", 4)
    assert cluster_decoding(places / "model", "ray", 2, "cpu", 5) == RayDecoding(ahead=4)
