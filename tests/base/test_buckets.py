"""Photos and data in a bucket (a real S3 server on loopback). Oracle: the same in folders."""

import io
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bucket_setup import served_bucket
from open_indexes import open_index
from patience import PATIENCE
from PIL import Image
from search_setup import picture, save_model
from tiny_run import Hearing
from typed import must_run, refused
from web_setup import running

from labelwise.base.progress import Silent
from labelwise.base.storage import ObjectStorage, StorageError
from labelwise.errors import DataError
from labelwise.photos import update_index
from labelwise.tables import load
from labelwise.training.run import train
from labelwise.training.settings import read_settings

pytestmark = pytest.mark.filterwarnings("ignore")  # of boto3 and moto


@pytest.fixture(scope="module")
def bucket():
    with served_bucket() as made:
        yield made


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def library(bucket, model, tmp_path, request):
    """Nine photos in the bucket and on this disk; bring the index of either up to date."""
    prefix = request.node.name
    for number in range(9):
        name = ("", "2023/", "2024/may day/")[number % 3] + f"{number}.png"
        path = picture(tmp_path / "photos" / name, number)
        bucket.put(f"{prefix}/{name}", path.read_bytes())
    bucket.put(f"{prefix}/.hidden.png", b"not looked at")
    bucket.put(f"{prefix}/@eaDir/small.png", b"not looked at")
    bucket.put(f"{prefix}/2023/list.txt", b"not looked at")

    def update(*roots, folder="bucket.index"):
        chosen = roots or [bucket.place(f"{prefix}/")]
        return update_index(tmp_path / folder, chosen, model=model, watch=Silent())

    update.prefix, update.folder = prefix, tmp_path / "bucket.index"
    return update


def counts(changes):
    return {name: value for name, value in vars(changes).items() if value}


def by_hash(folder):
    """Return the logits of each photo of an index, by the hash of its content."""
    store = open_index(folder).store
    columns = np.stack([store.column(k) for k in range(len(store.labels))], axis=1)
    return {one.hash: columns[row] for row, one in store.contents_of(range(store.rows)).items()}


def test_a_bucket_is_indexed_as_a_folder_and_looked_at_again_for_nothing(
    bucket, library, tmp_path, monkeypatch
):
    assert counts(library()) == {"new": 9}
    library(tmp_path / "photos", folder="disk.index")
    found, expected = by_hash(library.folder), by_hash(tmp_path / "disk.index")
    assert found.keys() == expected.keys()
    for digest, logits in expected.items():
        np.testing.assert_allclose(found[digest], logits, atol=1e-5)
    with monkeypatch.context() as patch:
        patch.setattr("labelwise.photos.ingest._read", None)
        assert counts(library()) == {"unchanged": 9}
    bucket.put(f"{library.prefix}/2023/1.png", picture(tmp_path / "new.png", 77).read_bytes())
    bucket.put(f"{library.prefix}/2023/copy.png", (tmp_path / "photos/0.png").read_bytes())
    bucket.put(f"{library.prefix}/2023/broken.png", b"no picture")
    bucket.remove(f"{library.prefix}/3.png")
    again = counts(library())
    assert again == {"unchanged": 7, "changed": 1, "copied": 1, "failed": 1, "missing": 1}


def test_photos_of_a_bucket_are_found_shown_and_corrected(bucket, library, tmp_path):
    library()
    page, table = tmp_path / "page.html", tmp_path / "corrections.csv"
    shown = must_run("search", library.folder, "dog", "--html", page, "--paths-only").stdout
    assert f"s3://photos/{library.prefix}/2024/may day/2.png" in shown.split("\n")
    assert page.read_text().count("data:image/jpeg") == 9
    address = f"s3://photos/{library.prefix}/2023/1.png"
    like = must_run("search", library.folder, "--like", address, "--paths-only").stdout
    assert len(like.split()) >= 8
    must_run("label", library.folder, address, "--", "dog", "-cat")
    must_run("label", library.folder, "--out", table)
    assert address in table.read_text()
    expected = (tmp_path / "photos/2023/1.png").read_bytes()
    assert load(table).images.content(0) == expected  # it is read from the bucket
    said = refused("tag", library.folder, "--xmp")
    assert "side-cars are written beside photos on a disk" in said
    bucket.put(f"{library.prefix}/2023/1.png", b"other bytes")
    assert open_index(library.folder).picture(open_index(library.folder).row_of(address)) is None


def test_photos_of_a_bucket_are_served_and_a_slow_one_holds_up_no_search(
    bucket, library, model, tmp_path, monkeypatch
):
    library()
    library(tmp_path / "photos", folder="disk.index")
    asked, answers = threading.Event(), threading.Event()
    store = bucket.app.app

    def slow(environ, start_response):
        asked.set()
        answers.wait(PATIENCE)
        return store(environ, start_response)

    def unanswered(*_):
        raise StorageError("secret://place: not reached")

    with running(model, tmp_path / "disk.index") as disk, running(model, library.folder) as client:
        found, expected = (
            [hit["id"] for hit in one.get("/api/v1/search?q=dog")["hits"]] for one in (client, disk)
        )
        assert found == expected
        first, second, third = (f"/api/v1/photos/{name}" for name in expected[:3])
        shown, stored = (one.send("GET", f"{first}/thumbnail")[2] for one in (client, disk))
        assert shown == stored
        assert client.put(f"{first}/labels", {"labels": {"dog": "absent"}})[0] == 200
        assert client.get(first)["labels"][-1]["corrected"] == "absent"
        monkeypatch.setattr(bucket.app, "app", slow)
        with ThreadPoolExecutor(1) as other:
            waiting = other.submit(client.send, "GET", f"{second}/thumbnail")
            assert asked.wait(PATIENCE)
            assert len(client.get("/api/v1/search?q=cat")["hits"]) == 9
            assert not waiting.done()
            answers.set()
            assert waiting.result()[0] == 200
        monkeypatch.setattr(ObjectStorage, "read", unanswered)  # which takes it half a minute
        reason = client.problem(client.send("GET", f"{third}/thumbnail"), 503)
        assert reason == "the storage of the photos does not answer; try again later"


def test_a_bucket_that_is_empty_gone_or_does_not_answer_deletes_nothing(
    bucket, library, monkeypatch
):
    library()
    listed = bucket.client.list_objects_v2(Bucket="photos", Prefix=f"{library.prefix}/")
    for one in listed["Contents"]:
        bucket.remove(one["Key"])
    changes = library()
    assert "is its address right? Nothing was changed" in changes.refused[0]
    folders = ObjectStorage.folders

    def cut_short(storage, *skipped):
        yield next(folders(storage, *skipped))
        raise StorageError("the bucket could not be reached")

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStorage, "folders", cut_short)
        changes = library()
    assert changes.refused == ["the bucket could not be reached. Nothing was changed"]
    assert changes.missing == 0
    assert not len(open_index(library.folder).store.dead_rows())
    with pytest.raises(DataError, match="holds no files"):
        library(bucket.place("nothing"), folder="other.index")
    with pytest.raises(DataError, match=r"s3://...@photos: an index keeps the address"):
        library("s3://key:secret@photos/x", folder="other.index")


def test_an_outage_while_photos_are_read_fails_none_of_them(bucket, library, monkeypatch):
    read = ObjectStorage.read

    def out_of_reach(storage, name, *more):
        if name == "2023/4.png":
            raise StorageError("the bucket could not be reached")
        return read(storage, name, *more)

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStorage, "read", out_of_reach)
        with pytest.raises(StorageError, match="could not be reached"):
            library()
    assert counts(library()) == {"unchanged": 8, "new": 1}


def test_a_model_in_a_bucket_answers_as_on_a_disk(bucket, library, model, tmp_path, monkeypatch):
    """Oracle: the answers of the model's folder. An index names its model by the URI."""
    for path in filter(Path.is_file, model.rglob("*")):
        name = path.relative_to(model).as_posix()
        bucket.put(f"models/{model.name}/{name}", path.read_bytes())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place, photos, answers = bucket.place(f"models/{model.name}"), tmp_path / "photos", []
    for named in (place, model):
        must_run("predict", named, photos, "-o", tmp_path / "a.csv")
        answers.append((tmp_path / "a.csv").read_text())
    assert answers[0] == answers[1]
    must_run("index", bucket.place(library.prefix), "-m", place, "-o", tmp_path / "b.index")
    assert "9 unchanged" in must_run("index", "-o", tmp_path / "b.index").stdout
    assert open_index(tmp_path / "b.index").facts.model == place
    library()
    found, expected = by_hash(tmp_path / "b.index"), by_hash(library.folder)
    assert found.keys() == expected.keys()
    assert all((found[digest] == logits).all() for digest, logits in expected.items())


def write_parquet(path, numbers):
    """Write images of one colour, which is their label."""
    rows = []
    for number in numbers:
        label = number % 3
        pixels = np.full((18, 18, 3), 20, np.uint8)
        pixels[..., label] = 60 + number
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "PNG")
        rows.append({"image": stream.getvalue(), "labels": [("red", "green", "blue")[label]]})
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=6)
    return path.read_bytes()


def test_training_streams_from_a_bucket_as_from_a_disk(bucket, tmp_path, monkeypatch):
    """The weights of both are equal to the bit; one is stopped in an epoch and goes on."""
    (tmp_path / "in").mkdir()
    for name, numbers in (("train-0", range(24)), ("train-1", range(24, 48)), ("val-0", range(60))):
        file = f"{name}.parquet"
        bucket.put(f"shards/{file}", write_parquet(tmp_path / "in" / file, numbers))
    monkeypatch.setattr("labelwise.training.loader.CPU_LIMIT", 0)
    flags = {"method": "softmax", "image_size": 16, "batch_size": 12, "calibrate": "none"}
    flags |= {"hardware.accelerator": "cpu", "recipe.epochs": 2, "recipe.log_steps": 1}
    flags |= {"recipe.save_seconds": 0, "backbone": "small-cnn"}
    train(read_settings(None, flags | {"data": f"file://{tmp_path}/in"}), tmp_path / "disk")
    streamed = read_settings(None, flags | {"data": bucket.place("shards")})
    looks, stop = count(1), partial(signal.raise_signal, signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(Silent, "look", lambda *_: stop() if next(looks) == 6 else None)
        with pytest.raises(KeyboardInterrupt):
            train(streamed, tmp_path / "bucket")
    assert not (tmp_path / "bucket" / "model.safetensors").exists()
    hearing = Hearing()
    train(streamed, tmp_path / "bucket", watch=hearing)
    assert "going on from epoch 2, batch 3" in hearing.messages
    files = [tmp_path / name / "model.safetensors" for name in ("disk", "bucket")]
    assert files[0].read_bytes() == files[1].read_bytes()
