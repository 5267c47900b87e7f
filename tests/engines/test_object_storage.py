"""Buckets through a real S3 protocol server on the loopback address, with faults injected.

Oracle: the hashes of a run over the same bucket without faults.
"""

import json

import pytest
from bucket_setup import served_bucket
from shard_setup import picture, task, write_model

from labelwise import storage as storage_module
from labelwise.engines import LocalEngine, StorageError, predict_shards, storage_at

pytestmark = pytest.mark.filterwarnings("ignore")  # of boto3 and moto
COUNT = 30


@pytest.fixture(scope="module")
def bucket():
    with served_bucket() as made:
        for number in range(COUNT):
            made.put(f"in/{number % 3}/{number:03d}.png", picture(number))
        yield made.app, made.client, made.place


def run(tmp_path, place, out):
    model = write_model(tmp_path / "model")
    return predict_shards(task(model, place(out)), [place("in")], LocalEngine(), shard_rows=5)


def manifest(client, out):
    text = client.get_object(Bucket="photos", Key=f"{out}/_manifest.jsonl")["Body"].read()
    return {line["shard"]: line["hash"] for line in map(json.loads, text.splitlines())}


def keys(client, out):
    found = client.list_objects_v2(Bucket="photos", Prefix=f"{out}/")["Contents"]
    return sorted(one["Key"][len(out) + 1 :] for one in found)


def test_faults_change_nothing_but_the_time(bucket, tmp_path):
    app, client, place = bucket
    whole = run(tmp_path, place, "whole")
    assert (whole.rows, whole.failed) == (COUNT, 2)
    app.share = 0.15
    try:
        harmed = run(tmp_path, place, "harmed")
    finally:
        app.share = 0.0
    assert app.faults > 10
    assert (harmed.rows, harmed.failed) == (COUNT, 2)
    assert manifest(client, "harmed") == manifest(client, "whole")
    assert keys(client, "harmed") == keys(client, "whole")


def test_an_outage_stops_the_run_and_fails_no_picture(bucket, tmp_path, monkeypatch):
    """A server that stops answering half-way; the next run goes on and ends as if it had not."""
    app, client, place = bucket
    monkeypatch.setattr(storage_module, "ATTEMPTS", 1)  # the client itself tries for seconds
    model = write_model(tmp_path / "model")

    class Failing:
        def run(self, work, shards):
            for number, record in enumerate(LocalEngine().run(work, shards)):
                yield record
                app.down = number == 1

    given = task(model, place("out"))
    try:
        with pytest.raises(StorageError, match="run the same command again to go on"):
            predict_shards(given, [place("in")], Failing(), shard_rows=5)
    finally:
        app.down = False
    assert "_SUCCESS" not in keys(client, "out")
    assert run(tmp_path, place, "out").failed == 2
    assert "_SUCCESS" in keys(client, "out")
    assert manifest(client, "out") == manifest(client, "whole")


def test_a_missing_key_is_a_failed_row_and_a_missing_bucket_an_error(bucket):
    _, _, place = bucket
    storage = storage_at(place("in"))
    assert storage.size("0/000.png") == len(picture(0))
    assert storage.size("none.png") is None
    with pytest.raises(FileNotFoundError):
        storage.read("none.png")
