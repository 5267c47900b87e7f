"""A flipped bit in any file of an index or of a model: an error that names it, or no change."""

import json
import random
import re
import shutil
import sqlite3
from contextlib import closing

import numpy as np
import pytest
from search_setup import picture, save_model

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
from labelwise.system.progress import Silent

LARGE = "labelwise.photos.index.KEPT_FROM"  # rows from which files keep probabilities
MADE_ANEW = ("cache/", "likeness.json")  # from the other files, where they are damaged


@pytest.fixture(scope="module", autouse=True)
def kept_probabilities():
    """Let this small index keep in files what a large one keeps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LARGE, 1)
        yield


@pytest.fixture
def folder(made, tmp_path):
    """A copy of the index, to be damaged."""
    return shutil.copytree(made[0] / "photos.index", tmp_path / "damaged.index")


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


def outcome(folder):
    """Return the answers of an index, or the sentence that says why there are none."""
    try:
        return answers(folder), None
    except LabelwiseError as error:
        return None, str(error)


def hashed_files(folder):
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith("photos.sqlite")
    )


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place // 8] ^= 1 << place % 8
    path.write_bytes(data)


def test_a_flipped_bit_never_changes_an_answer_silently(made, tmp_path):
    home, expected = made
    refused, kinds, files = set(), set(), hashed_files(home / "photos.index")
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
            folder = tmp_path / "damaged.index"
            shutil.copytree(home / "photos.index", folder)
            if name.startswith(("scores", "embeddings", "looks")):
                shutil.rmtree(folder / "cache")  # else they are not read
            flip(folder / name, place)
            found, sentence = outcome(folder)
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
        _, sentence = outcome(folder)
        assert sentence is None or "index" in sentence
        sentences += sentence is not None
        shutil.rmtree(folder)
    assert sentences


def test_a_damaged_file_is_made_anew_by_the_way_out_that_is_named(made, folder):
    home, expected = made
    for name in ("scores/000000000000.parquet", "model.json"):
        flip(folder / name, 8 * 300)
        shutil.rmtree(folder / "cache", ignore_errors=True)
        with pytest.raises(CheckpointError, match="labelwise index --rebuild --model RUN -o"):
            answers(folder)
        update_index(folder, model=home / "model", rebuild=True, watch=Silent())
        assert answers(folder)[0] == expected[0]


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
    kept = Predictions.load(run / "predictions" / "test.parquet")
    numbers = (
        np.asarray(kept.logits).tobytes(),
        np.asarray(kept.labels).tobytes(),
        None if kept.link is None else link_to_spec(kept.link),
    )
    spec = ModelSpec.load(run / "model.json")
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
            try:
                found, sentence = stated(run), ""
            except CheckpointError as error:
                found, sentence = whole, str(error)
                refused += 1
            assert found == whole, f"bit {place} of {name}"
            assert path.name in sentence or not sentence
            path.write_bytes(content)
        assert refused >= least
