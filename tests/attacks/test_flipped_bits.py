"""Disks that flip bits, are full or may only be read: a sentence that names it, or no change.

Held, for the latter two, to a small file system in memory, where this process may mount one.
"""

import json
import os
import random
import re
import shutil
import sqlite3
import subprocess
import tempfile
from contextlib import closing, contextmanager, suppress

import numpy as np
import pytest
from search_setup import picture, save_model
from web_setup import encoded, running

from labelwise.base.files import append_whole
from labelwise.base.progress import Silent
from labelwise.calibration.auto import link_to_spec
from labelwise.decide import promise_tags
from labelwise.errors import CheckpointError, LabelwiseError
from labelwise.models import ModelSpec
from labelwise.photos import Index, likeness_of, update_index
from labelwise.photos.database import VERSION
from labelwise.photos.filters import near_copies
from labelwise.photos.shift import evidence_of
from labelwise.photos.store import Store
from labelwise.predictions import Predictions

LARGE = "labelwise.photos.index.KEPT_FROM"  # rows from which files keep probabilities
MADE_ANEW = ("cache/", "likeness.json")  # from the other files, where they are damaged


@pytest.fixture(scope="module", autouse=True)
def kept_probabilities():
    """Let this small index keep in files what a large one keeps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LARGE, 1)
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """An index with corrections, a taxonomy and a full cache, and its answers."""
    home = tmp_path_factory.mktemp("flips")
    model = save_model(home / "model")
    for number in range(9):
        picture(home / "photos" / f"{number}.png", number)
    (home / "tree.csv").write_text("child,parent\ndog,pet\ncat,pet\n")
    folder = home / "photos.index"
    update_index(folder, [home / "photos"], model=model, taxonomy=home / "tree.csv", watch=Silent())
    with Index(folder) as index:
        index.correct(2, {"dog": "present", "cat": "absent"}, who="Anna")
    return home, answers(folder)


def answers(folder):
    """Return all that an index says: probabilities, a promise, what it asks for, likenesses."""
    with Index(folder) as index:
        probs = np.stack([index.odds(k).log_p for k in range(4)])
        promise = promise_tags(evidence_of(index), level=0.7, confidence=0.9)
        near = index.embeddings.nearest(index.store.embeddings()[0], 5)
        said = [(one.row, one.label, one.state) for one in index.store.corrections()]
        other = (index.taxonomy.parents, index.embeddings.projection.numbers.tobytes())
        looks = (index.store.looks().tobytes(), near_copies(index), likeness_of(index))
        return probs.tobytes(), repr((promise, near, said, other, looks))


def outcome(say, *given):
    """Return what is said, or the sentence that says why there is nothing."""
    try:
        return say(*given), None
    except LabelwiseError as error:
        return None, str(error)


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place // 8] ^= 1 << place % 8
    path.write_bytes(data)


def test_a_flipped_bit_never_changes_an_answer_silently(made, tmp_path):
    home, expected = made
    refused, kinds, folder = set(), set(), home / "photos.index"
    files = sorted(str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file())
    files = [name for name in files if not name.startswith("photos.sqlite")]
    assert {name.partition("/")[0] for name in files} == {
        *("answers.jsonl", "cache", "embeddings", "held-out.parquet", "index.json", "model.json"),
        *("likeness.json", "looks", "projection.npy", "scores", "taxonomy.csv"),
    }
    for name in files:
        draw = random.Random(name)
        size = 8 * (home / "photos.index" / name).stat().st_size
        kind = re.sub(r"-\w*\d\w*", "", name)  # without the number of its label and its hash
        places = [draw.randrange(size)]
        places += [] if kind in kinds else [0, size - 1]
        kinds.add(kind)
        for place in places:
            folder = shutil.copytree(home / "photos.index", tmp_path / "damaged.index")
            if name.startswith(("scores", "embeddings", "looks")):
                shutil.rmtree(folder / "cache")  # else they are not read
            flip(folder / name, place)
            found, sentence = outcome(answers, folder)
            if sentence is None:
                assert found == expected, f"bit {place} of {name}"
                assert name.startswith(MADE_ANEW), f"bit {place} of {name} was not noticed"
            else:
                assert name.rpartition("/")[2] in sentence
                refused.add(name)
            shutil.rmtree(folder)
    assert len(refused) >= 6
    assert len(kinds) >= 20


def test_damaged_pages_of_the_database_are_a_sentence(made, tmp_path):
    draw, folder, sentences = random.Random(1), tmp_path / "damaged.index", 0
    for _ in range(8):
        shutil.copytree(made[0] / "photos.index", folder)
        data = bytearray((folder / "photos.sqlite").read_bytes())
        start = draw.randrange(len(data) // 512) * 512
        data[start : start + 512] = draw.randbytes(512)
        (folder / "photos.sqlite").write_bytes(data)
        _, sentence = outcome(answers, folder)
        assert sentence is None or "index" in sentence
        sentences += sentence is not None
        shutil.rmtree(folder)
    assert sentences


def test_a_damaged_file_is_made_anew_by_the_way_out_that_is_named(made, tmp_path):
    folder = shutil.copytree(made[0] / "photos.index", tmp_path / "damaged.index")
    for name in ("scores/000000000000.parquet", "model.json"):
        flip(folder / name, 8 * 300)
        shutil.rmtree(folder / "cache", ignore_errors=True)
        with pytest.raises(CheckpointError, match="labelwise index --rebuild --model RUN -o"):
            answers(folder)
        update_index(folder, model=made[0] / "model", rebuild=True, watch=Silent())
        assert answers(folder)[0] == made[1][0]


def test_what_is_of_another_version_or_was_changed_says_what_to_do(tmp_path, made):
    Store.create(tmp_path, ("a",)).close()
    with closing(sqlite3.connect(tmp_path / "photos.sqlite")) as database, database:
        database.execute(f"PRAGMA user_version = {VERSION + 1}")
    with pytest.raises(CheckpointError, match="another version of labelwise"):
        Store(tmp_path, ("a",))
    path = tmp_path / "model.json"
    facts = json.loads((made[0] / "model" / "model.json").read_text())
    facts["rule"]["value"] = 0.75
    path.write_text(json.dumps(facts))
    with pytest.raises(CheckpointError, match="its entry sha256, which may be left out"):
        ModelSpec.load(path)
    del facts["sha256"]
    path.write_text(json.dumps(facts))
    assert ModelSpec.load(path).rule == {"kind": "threshold", "value": 0.75}


def stated(run):
    """Return all that the files of a model say from which probabilities and figures are made."""
    kept, spec = (
        Predictions.load(run / "predictions/test.parquet"),
        ModelSpec.load(run / "model.json"),
    )
    link = None if kept.link is None else link_to_spec(kept.link)
    numbers = (np.asarray(kept.logits).tobytes(), np.asarray(kept.labels).tobytes(), link)
    return spec.model_dump(), numbers, list(kept.ids), kept.names, kept.split


def test_a_flipped_bit_of_a_model_changes_nothing_silently(made):
    """In each number of its description, anywhere in it, and in what the held-out photos got."""
    run = made[0] / "model"
    whole, draw = stated(run), random.Random(5)
    for name, count, least in (("model.json", 30, 30), ("predictions/test.parquet", 40, 20)):
        path = run / name
        content = path.read_bytes()
        places = [draw.randrange(8 * len(content)) for _ in range(count)]
        if name == "model.json":
            digits = [found.start() for found in re.finditer(rb"(?<=\.)\d", content)]
            assert len(digits) >= 7  # mean, spread and threshold
            places += [8 * at for at in digits]
        refused = 0
        for place in places:
            flip(path, place)
            found, sentence = outcome(stated, run)
            assert path.name in sentence if sentence else found == whole, f"bit {place} of {name}"
            refused += sentence is not None
            path.write_bytes(content)
        assert refused >= least


@contextmanager
def mounted(place, size):
    """Yield a file system in memory of so many bytes; tests are skipped where none can be made."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this process may not mount a file system")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def fill(place):
    """Write until nothing more fits."""
    with (place / "filler").open("wb", buffering=0) as stream:
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    stream.write(b"x" * size)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    home = tmp_path_factory.mktemp("library")
    model = save_model(home / "model")
    for number in range(6):
        picture(home / "photos" / f"{number}.png", number)
    update_index(home / "photos.index", [home / "photos"], model=model, watch=Silent())
    return home


@pytest.fixture(params=["read only", "full"])
def closed(request, library, tmp_path):
    """Return a function that yields a disk with the index, to which nothing can be written."""

    @contextmanager
    def made(cache=True):
        with mounted(tmp_path / f"disk {cache}", 4 << 20) as disk:
            shutil.copytree(library / "photos.index", disk / "photos.index")
            if not cache:
                shutil.rmtree(disk / "photos.index" / "cache", ignore_errors=True)
            if request.param == "full":
                fill(disk)
            else:
                subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
            yield disk

    return made


def test_search_needs_to_write_nothing(library, closed, warm_commands):
    search = ["search", "photos.index", "dog, -beach", "--paths-only"]
    expected = warm_commands.run(search, library)
    assert (expected.returncode, expected.stdout.count("\n")) == (0, 6)
    for cache in (True, False):
        with closed(cache) as disk:
            done = warm_commands.run(search, disk)
            assert (done.returncode, done.stderr) == (0, expected.stderr)
            assert done.stdout == expected.stdout


def test_index_and_label_say_that_nothing_can_be_written(library, closed, warm_commands):
    picture(library / "more" / "new.png", 77)
    photos, photo = str(library / "photos"), str(library / "photos" / "0.png")
    with closed() as disk:
        for command in (
            ["index", str(library / "more"), "-o", "photos.index"],
            ["index", photos, "--model", str(library / "model"), "-o", "new.index"],
            ["label", "photos.index", photo, "dog"],
        ):
            done = warm_commands.run(command, disk)
            assert (done.returncode, done.stderr.count("\n")) == (1, 1), (command, done.stderr)
            assert "should not happen" not in done.stderr
            assert any(word in done.stderr for word in ("full", "read", "space")), done.stderr
    assert os.path.exists(photo)


def test_bodies_that_the_disk_does_not_take_are_refused_and_let_go(library, tmp_path, monkeypatch):
    """The answer was a mistake of the server, and the bytes counted as kept for ever."""
    with mounted(tmp_path / "disk", 1 << 20) as disk:
        monkeypatch.setattr(tempfile, "tempdir", str(disk))
        fill(disk)
        with running(library / "model", decoders=0) as server:
            for content in (encoded(size=(700, 700)), encoded(size=(900, 900))):
                answer = server.upload(("a.png", content))
                assert "has no room for the bodies" in server.problem(answer, 503)
            (disk / "filler").unlink()
            assert server.upload(("a.png", encoded()))[0] == 200


def test_a_file_is_appended_to_as_a_whole_or_not_at_all(tmp_path):
    """The last page of the file has room for a part of what comes."""
    with mounted(tmp_path / "disk", 1 << 16) as disk:
        with (disk / "lines").open("ab", buffering=0) as stream:
            append_whole(stream, b"first\n")
            fill(disk)
            with pytest.raises(OSError, match="No space left"):
                append_whole(stream, b"x" * 10_000 + b"\n", durable=True)
            append_whole(stream, b"second\n")
        assert (disk / "lines").read_bytes() == b"first\nsecond\n"
