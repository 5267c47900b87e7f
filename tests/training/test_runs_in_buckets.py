"""Runs kept in a bucket (a real S3 server on loopback). Oracle: the run in a folder, to the bit."""

import json
import random
import re
import shutil
import sys

import pytest
from bucket_setup import served_bucket
from tiny_run import Hearing, tiny_settings, tiny_table
from typed import must_run

from labelwise import load_run
from labelwise.base import storage as storage_module
from labelwise.base.storage import ObjectStorage, StorageError
from labelwise.errors import CheckpointError, LabelwiseError, SettingsError
from labelwise.models.run_folder import RunFolder, fetched_run
from labelwise.training import trained
from labelwise.training.run import train

pytestmark = pytest.mark.filterwarnings("ignore")  # of boto3 and moto
SETTINGS = {"method": "bce", "recipe.ema": 0.9, "recipe.epochs": 2}
SETTINGS |= {"recipe.log_steps": 4, "recipe.save_seconds": 0}  # a checkpoint in each epoch


@pytest.fixture(scope="module")
def bucket():
    with served_bucket() as made:
        yield made


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run left alone, in a folder."""
    folder = tmp_path_factory.mktemp("local") / "run"
    train(tiny_settings(**SETTINGS), folder, table=tiny_table())
    return folder


@pytest.fixture(autouse=True)
def apart(tmp_path, monkeypatch):
    """Keep copies of runs in this test's own folders."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()


def train_in(place, watch=None, fresh=False, **flags):
    given = {"table": tiny_table(), "watch": watch, "fresh": fresh}
    with RunFolder.working_in(place) as run:
        return train(tiny_settings(**SETTINGS, **flags), run, **given)


def keys(bucket, prefix):
    found = bucket.client.list_objects_v2(Bucket="photos", Prefix=f"{prefix}/")
    return sorted(one["Key"][len(prefix) + 1 :] for one in found.get("Contents", ()))


def content(bucket, prefix, name):
    return bucket.client.get_object(Bucket="photos", Key=f"{prefix}/{name}")["Body"].read()


def without_times(text):
    return re.sub(rb'"(images_per_second|seconds)": [^,}]*', b"", text)


def assert_equal(bucket, prefix, whole):
    """Compare every file of the run in the bucket with the folder's."""
    names = {name for name in keys(bucket, prefix) if name[-1:] not in ("", "/")} - {".writer"}
    there = {path.relative_to(whole).as_posix() for path in whole.rglob("*") if path.is_file()}
    assert all("checkpoint" in name for name in names ^ there)
    timed = ("settings.yaml", "state.json", "state.safetensors")  # numbers follow from stops
    for name in (name for name in names if not name.endswith(timed)):
        mine, other = content(bucket, prefix, name), (whole / name).read_bytes()
        assert without_times(mine) == without_times(other), name


def killed_before(monkeypatch, place):
    """Have the process end, as by a kill, before it sends a file, by its number or its name."""
    upload, sent = ObjectStorage.upload, []

    def deadly(storage, name, path):
        if place in (len(sent) + 1, name):
            raise SystemExit(f"killed before {name}")
        sent.append(name)
        upload(storage, name, path)

    monkeypatch.setattr(ObjectStorage, "upload", deadly)
    return sent


def test_a_run_in_a_bucket_is_the_run_in_a_folder(bucket, whole, tmp_path, monkeypatch):
    """Also where the server answers 500 now and then."""
    before = bucket.app.faults
    with monkeypatch.context() as patch:
        patch.setattr(bucket.app, "share", 0.1)
        done = train_in(bucket.place("plain"))
    assert bucket.app.faults > before
    assert not done.was_finished
    assert_equal(bucket, "plain", whole)
    states = [name for name in keys(bucket, "plain") if name.endswith("state.json")]
    assert (
        len(states) == 1
    )  # a finished run keeps one; test_an_outage...: an unfinished one keeps two
    assert not [name for name in keys(bucket, "plain") if "partial" in name]
    assert not any((tmp_path / "temporary").iterdir())
    again = train_in(bucket.place("plain"))
    assert again.was_finished
    assert again.evaluation == done.evaluation


# The first is in the middle of the first checkpoint.
@pytest.mark.parametrize(
    ("place", "words"), [(3, "epoch 1/2"), ("evaluation.json", "fitting the calibrator")]
)
def test_a_kill_between_two_files_leaves_a_checkpoint_to_go_on_from(
    bucket, whole, monkeypatch, place, words
):
    prefix = f"killed-{place}"
    with monkeypatch.context() as patch:
        sent = killed_before(patch, place)
        with pytest.raises(SystemExit):
            train_in(bucket.place(prefix))
    assert sent[0] == "settings.yaml"
    hearing = Hearing()
    train_in(bucket.place(prefix), hearing)
    assert hearing.messages[0].startswith(words)
    assert_equal(bucket, prefix, whole)


def test_an_outage_and_a_torn_upload_do_not_stop_a_run_and_a_damaged_file_is_left_out(
    bucket, whole, monkeypatch
):
    upload, torn = ObjectStorage.upload, []

    def failing(storage, name, path):
        if name.endswith("state.safetensors") and not torn:
            torn.append(name)
            bucket.put(f"torn/{name}", path.read_bytes()[:-100])
            raise StorageError("s3://photos could not be reached")
        if name == "evaluation.json":
            raise SystemExit("killed")
        upload(storage, name, path)

    hearing = Hearing()
    with monkeypatch.context() as patch:
        patch.setattr(ObjectStorage, "upload", failing)
        with pytest.raises(SystemExit):
            train_in(bucket.place("torn"), hearing)
    assert "the checkpoint was not sent, the next one will be" in " ".join(hearing.messages)
    last = [name for name in keys(bucket, "torn") if name.endswith("state.safetensors")][-1]
    assert last != torn[0]
    bucket.put(f"torn/{last}", content(bucket, "torn", last)[:-100])
    hearing = Hearing()
    train_in(bucket.place("torn"), hearing)
    assert any("going on from the checkpoint before it" in text for text in hearing.messages)
    assert_equal(bucket, "torn", whole)


def test_what_could_not_be_sent_at_the_end_is_kept_and_can_be_gone_on_with(
    bucket, whole, monkeypatch, tmp_path
):
    def unreachable(storage, name, path):
        raise StorageError("s3://photos could not be reached")

    finish = trained.finish

    def cut_off(*given):
        monkeypatch.setattr(ObjectStorage, "upload", unreachable)
        return finish(*given)

    monkeypatch.setattr(trained, "finish", cut_off)
    with (
        pytest.warns(UserWarning, match="keeps what could not be sent to s3://photos/cut;?"),
        pytest.raises(StorageError, match="could not be reached"),
    ):
        train_in(bucket.place("cut"))
    (kept,) = (tmp_path / "temporary").glob("*/cut")
    assert train(tiny_settings(**SETTINGS), kept, table=tiny_table()).was_finished
    for name in ("model.safetensors", "predictions/test.parquet", "evaluation.json"):
        assert (kept / name).read_bytes() == (whole / name).read_bytes()


def test_the_last_one_to_begin_writes(bucket):
    """Two machines that train one run: the first notices before it writes again."""
    with RunFolder.working_in(bucket.place("two")) as first:
        first.path.mkdir()
        first.claim()
        first.settings_path.write_text("a: 1")
        first.publish()
        with RunFolder.working_in(bucket.place("two")) as second:
            second.fetch()
            assert second.settings == {"a": 1}
            second.claim()
            first.settings_path.write_text("a: 2")
            with pytest.raises(LabelwiseError, match="another command writes to s3://photos/two"):
                first.publish()
            second.publish()
    assert content(bucket, "two", "settings.yaml") == b"a: 1"


def test_other_settings_are_refused_fresh_ones_start_over_and_another_rule_only_finishes_again(
    bucket, whole, monkeypatch, tmp_path
):
    place = bucket.place("changed")
    shutil.copytree(whole, tmp_path / "local")
    bucket.put("changed/notes.txt", b"mine")
    bucket.put("changed/checkpoint/00000099/state.json", b"of an earlier run")
    train_in(place, fresh=True)
    assert "checkpoint/00000099/state.json" not in keys(bucket, "changed")
    writer = content(bucket, "changed", ".writer")
    with pytest.raises(SettingsError, match=r"s3://photos/changed was started with other settings"):
        train_in(place, seed=7)
    assert content(bucket, "changed", ".writer") == writer  # whoever trains there goes on
    with monkeypatch.context() as patch:  # killed before the settings that say so are there
        killed_before(patch, "settings.yaml")
        with pytest.raises(SystemExit):
            train_in(place, rule="top-2")
    done = train_in(place, rule="top-2")
    assert done.was_finished
    assert "2" in done.evaluation.sets.rule
    again = tiny_settings(**SETTINGS, rule="top-2"), tmp_path / "local"
    with monkeypatch.context() as patch:  # killed before the figures of a folder are there
        patch.setattr(trained, "finish_again", lambda training: sys.exit())
        with pytest.raises(SystemExit):
            train(*again, table=tiny_table())
    train(*again, table=tiny_table())
    bucket.remove("changed/notes.txt")
    assert_equal(bucket, "changed", tmp_path / "local")


def test_a_run_is_read_from_its_bucket_and_fetched_once(bucket, whole, monkeypatch):
    for path in whole.rglob("*"):
        if path.is_file():
            bucket.put(f"read/{path.relative_to(whole).as_posix()}", path.read_bytes())
    read, download = [], ObjectStorage.download

    def counted(storage, name, *rest):
        read.append(name)
        download(storage, name, *rest)

    monkeypatch.setattr(ObjectStorage, "download", counted)
    sources = (bucket.place("read"), bucket.place("read"), whole)
    figures = [json.loads(must_run("evaluate", one, "--json").stdout) for one in sources]
    assert figures[0] == figures[1] == figures[2]
    assert len(read) == len(set(read))
    assert not [name for name in read if name.startswith("checkpoint")]
    assert load_run(bucket.place("read")).evaluation == RunFolder(whole).evaluation
    with pytest.raises(CheckpointError, match=r"s3://photos/nothing holds no run"):
        fetched_run(bucket.place("nothing"))
    hearing, started = Hearing(), tiny_settings(**SETTINGS, start=bucket.place("read"))
    train(started, whole.parent / "started", table=tiny_table(), watch=hearing)
    assert any(text.startswith("starting from s3://photos/read") for text in hearing.messages)


def test_a_large_file_is_sent_and_fetched_in_pieces(bucket, tmp_path, monkeypatch):
    """Oracle: its bytes."""
    monkeypatch.setattr(storage_module, "PIECE", 1 << 20)
    made = random.Random(3).randbytes((11 << 20) + 5)
    (tmp_path / "large").write_bytes(made)
    storage = storage_module.storage_at(bucket.place("pieces"))
    storage.upload("large", tmp_path / "large")
    assert storage.size("large") == len(made)
    storage.download("large", tmp_path / "back", len(made))
    assert (tmp_path / "back").read_bytes() == made
    with pytest.raises(StorageError, match="changed while it was read"):
        storage.download("large", tmp_path / "other", len(made) + 1)
    assert not (tmp_path / "other").exists()
