"""Buckets through a real S3 protocol server on the loopback address, with faults injected.

Oracle: the hashes of a run over the same bucket without faults.
"""

import json
import logging
import random
import threading

import boto3
import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from shard_setup import picture, task, write_model
from werkzeug.serving import make_server

from labelwise.engines import LocalEngine, StorageError, predict_shards, storage_at
from labelwise.engines import storage as storage_module

pytestmark = pytest.mark.filterwarnings("ignore")  # of boto3 and moto
COUNT = 30


class Faulty:
    """A server that now and then answers 500 or hangs up, as told by ``share``."""

    def __init__(self, app):
        self.app, self.share, self.faults = app, 0.0, 0
        self.chance, self.down = random.Random(2), False

    def __call__(self, environ, start_response):
        if self.down or self.chance.random() < self.share:
            self.faults += 1
            body = b"<Error><Code>InternalError</Code><Message>injected</Message></Error>"
            start_response("500 Internal Server Error", [("Content-Length", str(len(body)))])
            return [body]
        return self.app(environ, start_response)


@pytest.fixture(scope="module")
def bucket():
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = Faulty(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    address = f"127.0.0.1:{server.server_port}"
    keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=f"http://{address}", **keys)
    client.create_bucket(Bucket="photos")
    for number in range(COUNT):
        client.put_object(
            Bucket="photos", Key=f"in/{number % 3}/{number:03d}.png", Body=picture(number)
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "k")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "s")
        patch.setattr(storage_module, "FIRST_PAUSE", 0.01)
        query = f"?scheme=http&endpoint_override={address}&region=us-east-1"
        yield app, client, lambda name: f"s3://photos/{name}{query}"
    server.shutdown()
    thread.join()
    server.server_close()


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
