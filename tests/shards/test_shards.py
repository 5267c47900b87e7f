"""Shards of scores: every row once, whatever the input, whatever dies on the way."""

import hashlib
import json
import os
import random
import signal
import time
from dataclasses import replace
from multiprocessing import util

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typed
from quick_processes import QUICK
from shard_setup import (
    Counting,
    Large,
    answers,
    hashes,
    picture,
    task,
    write_model,
    write_parquet,
    write_photos,
    write_tar,
)

from labelwise.errors import DataError, LabelwiseError, SettingsError
from labelwise.learn.predictor import Predictor
from labelwise.shards import LocalEngine, predict_shards, storage_at
from labelwise.shards.engine import ATTEMPTS, LostShardError
from labelwise.shards.inputs import StoredImages, find_rows

COUNT = 60


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp("photos"), COUNT)


def run(model, photos, out, workers=1, rows=7):
    return predict_shards(task(model, out), [str(photos)], LocalEngine(workers), shard_rows=rows)


@pytest.fixture(scope="module")
def whole(model, photos, tmp_path_factory):
    """The shards of a run that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole") / "out"
    run(model, photos, out)
    return out


def test_every_row_comes_out_once_scored_or_failed_with_its_reason(model, photos, whole):
    lines = [json.loads(line) for line in (whole / "_manifest.jsonl").read_text().splitlines()]
    assert [line["shard"] for line in lines] == [f"part-{n:05d}.parquet" for n in range(9)]
    assert [sum(line[name] for line in lines) for name in ("rows", "failed")] == [COUNT, 3]
    for line in lines:
        content = (whole / line["shard"]).read_bytes()
        assert line["hash"] == "sha256:" + hashlib.sha256(content).hexdigest()
    found = answers(whole)
    paths = sorted(str(path) for path in photos.rglob("*.png"))
    assert sorted(row["path"] for row in found) == paths
    failed = [row for row in found if row["error"]]
    assert [row["path"][-7:] for row in failed] == ["027.png", "007.png", "047.png"]
    assert all(row["path"] in row["error"] and row["probs"] is None for row in failed)
    good = [row for row in found if not row["error"]]
    scored = Predictor.load(model).predict([row["path"] for row in good], batch_size=1)
    np.testing.assert_allclose([row["probs"] for row in good], scored.probs, atol=1e-6)
    np.testing.assert_allclose([row["logits"] for row in good], scored.logits, atol=1e-5)
    assert [tuple(row["labels"]) for row in good] == scored.labels


def test_other_tools_read_shards_with_failed_rows(whole):
    """Oracle: DuckDB. Where a row has none, lists of a fixed size are refused by pyarrow 21."""
    schema = pq.read_schema(whole / "part-00000.parquet")
    assert schema.field("probs").type == schema.field("logits").type == pa.list_(pa.float32())
    query = f"select path, probs, logits from '{whole}/part-*.parquet' order by path"
    ours = [(row["path"], row["probs"], row["logits"]) for row in answers(whole)]
    assert duckdb.sql(query).fetchall() == sorted(ours, key=lambda row: row[0])


def in_tar(count):
    """Return pictures, with a note beside each."""
    names = [f"a/{number:03d}" for number in range(count)]
    pictures = [(f"{name}.png", picture(number)) for number, name in enumerate(names)]
    return pictures + [(f"{name}.txt", b"") for name in names]


def kinds(folder):
    write_photos(folder / "tree", 12)
    yield folder / "tree"
    yield write_tar(folder / "shard.tar", in_tar(12))
    yield write_parquet(folder / "plain.parquet", 12)
    yield write_parquet(folder / "nested.parquet", 12, nested=True)
    names = [f"tree/day {n % 3}/{n:03d}.png" for n in range(12)]
    (folder / "list.csv").write_text("path,note\n" + "".join(f'"{name}",x\n' for name in names))
    yield folder / "list.csv"
    lines = [json.dumps({"file_name": f"file://{folder}/{name}"}) for name in names]
    (folder / "list.jsonl").write_text("\n".join(lines))
    yield folder / "list.jsonl"


def test_each_kind_of_input_holds_the_same_pictures(tmp_path):
    expected = sorted(picture(number) for number in range(12))
    for place in kinds(tmp_path):
        rows = list(find_rows([str(place)]))
        images = StoredImages(rows)
        assert sorted(images.content(row) for row in range(len(rows))) == expected, place
        assert len(set(images.ids)) == 12
    both = tmp_path / "both"  # a folder of shards, with a table that holds no pictures
    both.mkdir()
    write_tar(both / "a.tar", in_tar(5))
    write_parquet(both / "b.parquet", 5)
    (both / "labels.csv").write_text("path\nx.png\n")
    assert len(list(find_rows([f"file://{both}"]))) == 10


def test_what_is_missing_fails_by_row_and_what_is_no_input_at_once(tmp_path):
    (tmp_path / "list.csv").write_text("path\nnone.png\n")
    (row,) = find_rows([str(tmp_path / "list.csv")])
    with pytest.raises(LabelwiseError, match=r"none\.png: the image cannot be opened"):
        StoredImages([row]).content(0)
    (tmp_path / "bad.tar").write_text("no tar at all")
    (tmp_path / "empty").mkdir()
    for name, told in (
        ("nowhere", "neither a folder nor a file"),
        ("empty", "there are no images in the folder"),
        ("bad.tar", "not an uncompressed tar"),
    ):
        with pytest.raises(DataError, match=told):
            next(find_rows([str(tmp_path / name)]))


def live(model, photos, out):
    """Run in a fork, which costs no start; return its process id."""
    child = os.fork()
    if child == 0:
        try:
            run(model, photos, out)
            os._exit(0)
        finally:
            os._exit(1)
    return child


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_killed_at_random_moments_it_goes_on_to_the_same_bytes(model, photos, whole, tmp_path):
    chance, out = random.Random(5), tmp_path / "out"
    for kills in range(60):
        child = live(model, photos, out)
        time.sleep(chance.uniform(0, 0.02 + 0.1 * kills))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            break
    assert kills > 0
    run(model, photos, out)
    assert hashes(out) == hashes(whole)
    left = {path.name for path in out.iterdir()} ^ {path.name for path in whole.iterdir()}
    assert all(name.endswith(".partial") for name in left)


def test_a_shard_that_is_damaged_or_gone_is_scored_again(model, photos, whole, tmp_path):
    out = tmp_path / "out"
    run(model, photos, out)
    (out / "part-00003.parquet").unlink()
    (out / "part-00004.parquet").write_bytes(b"short")
    assert run(model, photos, out).resumed == 7
    assert hashes(out) == hashes(whole)
    assert (out / "part-00004.parquet").read_bytes() == (whole / "part-00004.parquet").read_bytes()


def test_another_question_is_refused(model, photos, whole, tmp_path):
    with pytest.raises(SettingsError, match="was started with shard_rows 7, got 8"):
        run(model, photos, whole, rows=8)
    with pytest.raises(SettingsError, match="was started with inputs"):
        run(model, tmp_path, whole)
    by_gpu = replace(task(model, whole), decode="cuda")
    with pytest.raises(SettingsError, match="was started with decode 'cpu', got 'cuda'"):
        predict_shards(by_gpu, [str(photos)], LocalEngine(), shard_rows=7)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(SettingsError, match=r"holds other files, such as notes\.txt"):
        run(model, photos, tmp_path)


def test_the_shard_of_a_worker_that_dies_is_given_to_another(tmp_path, monkeypatch):
    monkeypatch.setattr("labelwise.shards.engine.SPAWN", QUICK)
    work, done = Counting(tmp_path, deadly={1: 1, 7: 9}), []
    with pytest.raises(LostShardError, match="3 workers died over shard 7;"):
        done.extend(LocalEngine(2).run(work, iter([*range(5), 7])))
    assert sorted(done) == [*range(5)]
    assert len(list(tmp_path.glob("[0-6]-*"))) == 6
    assert len(list(tmp_path.glob("7-*"))) == ATTEMPTS


def test_a_worker_that_dies_before_it_has_its_task_is_replaced(monkeypatch):
    """It was written to a pipe that nobody read any more, and the command waited for ever."""
    spawn, killed = util.spawnv_passfds, []

    def deadly(path, arguments, descriptors):
        child = spawn(path, arguments, descriptors)
        if b"resource_tracker" not in os.fsencode(arguments[-1]) and not killed:
            os.kill(child, signal.SIGKILL)
            killed.append(child)
        return child

    monkeypatch.setattr(util, "spawnv_passfds", deadly)
    found = list(LocalEngine(2).run(Large(), range(1)))
    assert len(killed) == 1
    assert found == [(0, 1 << 20)]


def test_two_processes_write_the_bytes_of_one(model, photos, whole, tmp_path, monkeypatch):
    monkeypatch.setattr("labelwise.shards.engine.SPAWN", QUICK)
    out = tmp_path / "out"
    shards = ("--shard-rows", "7", "--batch-size", "4", "--workers", "2")
    done = typed.run("predict", model, photos, "-o", f"{out}/", *shards)
    assert done.exit_code == 1
    assert "57 of 60 images predicted, in 9 shards" in done.stdout
    assert "3 of 60 images could not be read" in done.stderr
    assert hashes(out) == hashes(whole)


def test_options_of_shards_need_shards(model, photos):
    told = typed.refused("predict", model, photos, "--workers", "2")
    assert "--workers does not apply: it is for shards, with -o a folder" in told
    told = typed.refused("predict", model, "s3://bucket/photos")
    assert "s3://bucket/photos is scored into shards" in told


def test_places(tmp_path):
    storage = storage_at(f"file://{tmp_path}/with%20space")
    storage.write("a/b.txt", b"hello")
    assert storage.read("a/b.txt", 1, 3) == b"ell"
    assert list(storage.files()) == ["a/b.txt"]
    assert storage.size("a/c.txt") is None
    with pytest.raises(DataError, match="nowhere://x cannot be opened"):
        storage_at("nowhere://x")
