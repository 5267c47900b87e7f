"""``labelwise calibrate`` with few labels. Oracle: the probabilities that labels were drawn by."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.special import expit
from typed import must_run, run

from labelwise.errors import DataError
from labelwise.scores import read_scores
from labelwise.scores.embeddings import read_cosines, read_texts


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def write_world(folder, seed, rows, known, of_labels, slope, offset, **texts):
    """Write photos, texts and a few labels; return cosines and the probabilities they came from.

    ``of_labels`` has the texts of each label.
    """
    rng = np.random.default_rng(seed)
    photos, prompts = rng.normal(size=(rows, 16)), rng.normal(size=(4, 16))
    np.savez(folder / "photos.npz", embeddings=photos, ids=np.arange(rows).astype(str))
    np.savez(folder / "texts.npz", embeddings=prompts, **texts)
    means = unit(np.stack([unit(prompts)[own].mean(0) for own in of_labels.values()]))
    cosines = unit(photos) @ means.T
    truth = expit(slope * cosines + offset)
    labels = (rng.random(truth.shape) < truth)[:known].astype(float)
    ids = np.arange(known).astype(str)
    np.savez(folder / "few.npz", labels=labels, names=list(of_labels), ids=ids)
    return cosines, truth


def columns_of(path, mark, names):
    """Return columns MARK:NAME as a matrix, rows in the order of their ids."""
    table = pq.read_table(path)
    order = np.argsort([int(name) for name in table["id"].to_pylist()])
    return np.stack([table[f"{mark}:{name}"].to_numpy()[order] for name in names], 1)


def test_from_embeddings_to_probabilities_of_all_rows(tmp_path):
    names, of_labels = ["dog", "cat", "car", "dog"], {"dog": [0, 3], "cat": [1], "car": [2]}
    cosines, truth = write_world(tmp_path, 0, 800, 60, of_labels, 8, -1, names=names)
    raw = read_cosines(tmp_path / "photos.npz", read_texts(tmp_path / "texts.npz"))
    assert raw.names == ("dog", "cat", "car")
    np.testing.assert_allclose(raw.scores, cosines, atol=1e-5)
    call = ["calibrate", tmp_path / "photos.npz", "--texts", tmp_path / "texts.npz"]
    call += ["--labels", tmp_path / "few.npz", "-o", tmp_path / "out"]
    assert "60 of 800 rows labelled" in must_run(*call).output
    out = tmp_path / "out" / "intervals.parquet"
    low, middle, high = (columns_of(out, mark, of_labels) for mark in ("low", "score", "high"))
    assert len(low) == 800
    assert ((low < high) & (middle > 0) & (middle < 1)).all()
    assert (np.abs(middle - truth).mean(0) < 0.12).all()
    done = run(*call, "--scores", "logits")
    assert "leave out --scores" in str(done.exception)


def test_broken_embeddings_are_refused_and_a_scale_without_bias_gives_no_logits(tmp_path):
    np.savez(tmp_path / "a.npz", embeddings=np.zeros((2, 3)), names=["x", "y"])
    with pytest.raises(DataError, match="row 1 is all zeros"):
        read_texts(tmp_path / "a.npz")
    np.savez(tmp_path / "c.npz", embeddings=np.ones((2, 4)), ids=["a", "b"])
    np.savez(tmp_path / "d.npz", embeddings=np.ones((2, 3)), names=["x", "y"])
    with pytest.raises(DataError, match="must have one length, got 4 and 3"):
        read_cosines(tmp_path / "c.npz", read_texts(tmp_path / "d.npz"))
    prompted(tmp_path, logit_scale=100.0)
    (tmp_path / "p.csv").write_text('label,prompt\ncat,a cat\ncar,"a car, parked"\n')
    texts = read_texts(tmp_path / "texts.npz", tmp_path / "p.csv")
    assert not texts.gives_logits
    assert np.abs(read_cosines(tmp_path / "photos.npz", texts).scores).max() <= 1


PROMPTS = ["a photo of a dog.", "a car, parked", "a cat", "a drawing of a dog"]


def prompted(folder, **more):
    """Write files in the conventions of SigLIP, whose probabilities are the truth; return it."""
    of_labels = {"cat": [2], "dog": [0, 3]}
    return write_world(folder, 1, 600, 30, of_labels, 9, -1.5, prompts=PROMPTS, **more)[1]


def test_prompts_and_the_numbers_of_siglip_make_logits(tmp_path):
    truth = prompted(tmp_path, logit_scale=np.float32(9), logit_bias=np.array([-1.5]))
    lines = "label\tprompt\ncat\ta cat\ndog\ta drawing of a dog\n\ndog\ta photo of a dog.\n"
    (tmp_path / "prompts.tsv").write_text(lines)
    texts = read_texts(tmp_path / "texts.npz", tmp_path / "prompts.tsv")
    table = read_scores(tmp_path / "photos.npz", None, labels=tmp_path / "few.npz", texts=texts)
    assert table.predictions.link is not None
    assert table.unlabelled is not None
    probs = table.predictions.link(table.unlabelled.astype(np.float64))
    np.testing.assert_allclose(probs, truth[30:], atol=1e-5)
    given = {"--texts": "texts.npz", "--prompts": "prompts.tsv", "--labels": "few.npz", "-o": "out"}
    options = [word for name, file in given.items() for word in (name, tmp_path / file)]
    must_run("calibrate", tmp_path / "photos.npz", *options)
    found = columns_of(tmp_path / "out" / "intervals.parquet", "score", ("cat", "dog"))
    # 30 labels move a link that was right from the start by little.
    assert np.abs(found - truth).mean() < 0.05
    written = read_texts(tmp_path / "texts.npz", tmp_path / "out" / "prompts.csv")
    assert written.prompts == texts.prompts == (
        ("cat", "a cat"), ("dog", "a drawing of a dog"), ("dog", "a photo of a dog.")
    )  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "more", "sentence"),
    [
        ("", {}, "p.csv: the table is empty"),
        ("label,prompt\n", {}, "there are no prompts"),
        ("label,prompt\ncar,a car, parked\n", {}, "line 2: car,a car, parked"),
        ("label,prompt\ncat,a cat\ndog,a dgo\n", {}, "row 2: .* has no embedding of 'a dgo'"),
        (None, {"logit_scale": -1.0}, "logit_scale must be positive, got -1"),
        (None, {"logit_scale": [1.0, 2.0]}, "logit_scale must be one number"),
        (None, {"logit_bias": -10.0}, "logit_bias needs a logit_scale"),
        (None, {}, "no array 'names', the label of each text; or say with --prompts"),
    ],
)
def test_bad_texts_get_one_sentence(tmp_path, lines, more, sentence):
    names = {"names": ["a", "b", "c", "d"]} if more else {}
    prompted(tmp_path, **more, **names)
    (tmp_path / "p.csv").write_text(lines or "")
    with pytest.raises(DataError, match=sentence):
        read_texts(tmp_path / "texts.npz", None if lines is None else tmp_path / "p.csv")
