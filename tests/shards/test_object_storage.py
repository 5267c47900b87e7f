"""Buckets through a real S3 server, with faults. Oracle: the hashes of a run without faults."""

import json
from types import SimpleNamespace

import pyarrow.fs
import pytest
from bucket_setup import served_bucket
from pyarrow.fs import AwsStandardS3RetryStrategy, FileSystem, S3FileSystem
from shard_setup import picture, task, write_model

from labelwise.base import storage as storage_module
from labelwise.errors import DataError
from labelwise.shards import LocalEngine, StorageError, predict_shards, storage_at
from labelwise.shards.evaluation_task import KnownLabels
from labelwise.shards.inputs import find_rows

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


def keys(client, out):
    found = client.list_objects_v2(Bucket="photos", Prefix=f"{out}/")["Contents"]
    return sorted(one["Key"][len(out) + 1 :] for one in found)


def stored(client, out):
    """Return the hashes of the shards by the manifest, and the names of all files."""
    text = client.get_object(Bucket="photos", Key=f"{out}/_manifest.jsonl")["Body"].read()
    lines = map(json.loads, text.splitlines())
    return {line["shard"]: line["hash"] for line in lines}, keys(client, out)


@pytest.fixture
def impatient(bucket, monkeypatch):
    """Let pyarrow's client ask once: it tries for 20 seconds by itself, and we try again anyway."""
    from_uri, once = FileSystem.from_uri, AwsStandardS3RetryStrategy(max_attempts=1)

    def opened(uri):
        filesystem, path = from_uri(uri)
        server = bucket[2]("").partition("endpoint_override=")[2].partition("&")[0]
        options = {"endpoint_override": server, "scheme": "http", "region": filesystem.region}
        return S3FileSystem(retry_strategy=once, **options), path

    monkeypatch.setattr(pyarrow.fs, "FileSystem", SimpleNamespace(from_uri=opened))
    monkeypatch.setattr(storage_module, "FIRST_PAUSE", 0)


def test_faults_change_nothing_but_the_time(bucket, tmp_path, monkeypatch):
    app, client, place = bucket
    monkeypatch.setattr(storage_module, "FIRST_PAUSE", 0)
    whole = run(tmp_path, place, "whole")
    assert (whole.rows, whole.failed) == (COUNT, 2)
    monkeypatch.setattr(app, "share", 0.15)
    harmed = run(tmp_path, place, "harmed")
    monkeypatch.undo()
    assert app.faults > 10
    assert (harmed.rows, harmed.failed) == (COUNT, 2)
    assert stored(client, "harmed") == stored(client, "whole")


def test_an_outage_stops_the_run_and_fails_no_picture(bucket, impatient, tmp_path, monkeypatch):
    """A server that stops answering half-way; the next run goes on and ends as if it had not."""
    app, client, place = bucket
    monkeypatch.setattr(storage_module, "ATTEMPTS", 2)

    class Failing:
        def run(self, work, shards):
            for number, record in enumerate(LocalEngine().run(work, shards)):
                yield record
                app.down = number == 1

    given = task(write_model(tmp_path / "model"), place("out"))
    with pytest.raises(StorageError, match="run the same command again to go on"):
        predict_shards(given, [place("in")], Failing(), shard_rows=5)
    app.down = False
    assert "_SUCCESS" not in keys(client, "out")
    assert run(tmp_path, place, "out").failed == 2
    assert stored(client, "out") == stored(client, "whole")


def test_a_missing_key_is_a_failed_row_and_a_missing_bucket_an_error(bucket):
    _, _, place = bucket
    storage = storage_at(place("in"))
    assert storage.size("0/000.png") == len(picture(0))
    assert storage.size("none.png") is None
    with pytest.raises(FileNotFoundError):
        storage.read("none.png")
    with pytest.raises(DataError, match=r"s3://...@photos: addresses .* must hold no password"):
        storage_at("s3://key:secret@photos/in")
    storage_at(place("may day/ü")).write("a.png", b"x")
    assert storage_at(place("may%20day")).size("ü/a.png") == 1


def test_files_of_a_bucket_are_found_with_the_options_of_their_uri(bucket, tmp_path, monkeypatch):
    """Oracle: the same rows by the folder they are in. No environment names the server."""
    _, client, place = bucket
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    table = "path,labels\n" + "".join(f"../in/{n % 3}/{n:03d}.png,dog\n" for n in range(6))
    client.put_object(Bucket="photos", Key="tables/six.csv", Body=table.encode())
    rows = list(find_rows([place("tables/six.csv"), place("in/0/003.png")]))
    assert [storage_at(row.root).read(row.file.decode()) for row in rows] == [
        picture(number) for number in (*range(6), 3)
    ]
    assert rows[-1].id == "s3://photos/in/0/003.png"
    stored = KnownLabels.read(place("tables/six.csv"), ("dog",))
    assert (stored.find(["s3://photos/tables/../in/0/003.png", "nothing"]) >= 0).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("AccessDenied", "access is denied; check the credentials and the permissions"),
        ("ExpiredToken", "the credentials are not accepted; renew them"),
        ("NoSuchBucket", "there is no such bucket; is its address right"),
    ],
)
def test_what_is_refused_is_not_asked_for_again(bucket, monkeypatch, code, told):
    """Oracle: the number of requests."""
    app, _, place = bucket
    asked = []

    def refuse(environ, start_response):
        asked.append(environ["PATH_INFO"])
        body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
        headers = [("Content-Length", str(len(body))), ("Content-Type", "application/xml")]
        start_response("403 Forbidden", headers)
        return [body]

    storage = storage_at(place("in"))
    monkeypatch.setattr(app, "app", refuse)
    with pytest.raises(StorageError, match=f"^s3://photos/in: {told}"):
        storage.write("x.png", b"x")
    if code == "NoSuchBucket":
        assert list(storage.files()) == []
    else:
        with pytest.raises(StorageError, match=f"^s3://photos/in: {told}"):
            list(storage.files())
    assert len(asked) <= 4
