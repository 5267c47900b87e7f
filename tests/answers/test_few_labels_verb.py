"""``labelwise calibrate`` with few labels. Oracle: the probabilities that labels were drawn by."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.special import expit
from typed import must_run, run

from labelwise.errors import DataError
from labelwise.scores import read_scores
from labelwise.scores.embeddings import read_cosines, read_texts

NAMES = ["dog", "cat", "car"]


def files(folder):
    rng = np.random.default_rng(0)
    photos, texts = rng.normal(size=(800, 16)), rng.normal(size=(4, 16))
    np.savez(folder / "photos.npz", embeddings=photos, ids=np.arange(800).astype(str))
    np.savez(folder / "texts.npz", embeddings=texts, names=["dog", "cat", "car", "dog"])
    unit = texts / np.linalg.norm(texts, axis=1, keepdims=True)
    means = np.stack([unit[0] + unit[3], 2 * unit[1], 2 * unit[2]]) / 2
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    cosines = photos / np.linalg.norm(photos, axis=1, keepdims=True) @ means.T
    truth = expit(8 * cosines - 1)
    labels = (rng.random(truth.shape) < truth)[:60].astype(float)
    np.savez(folder / "few.npz", labels=labels, names=NAMES, ids=np.arange(60).astype(str))
    return cosines, truth


def test_from_embeddings_to_probabilities_of_all_rows(tmp_path):
    cosines, truth = files(tmp_path)
    raw = read_cosines(tmp_path / "photos.npz", read_texts(tmp_path / "texts.npz"))
    assert raw.names == ("dog", "cat", "car")
    np.testing.assert_allclose(raw.scores, cosines, atol=1e-5)
    call = ["calibrate", tmp_path / "photos.npz", "--texts", tmp_path / "texts.npz"]
    call += ["--labels", tmp_path / "few.npz", "-o", tmp_path / "out"]
    done = must_run(*call)
    assert "60 of 800 rows labelled" in done.output
    table = pq.read_table(tmp_path / "out" / "intervals.parquet")
    assert set(table["id"].to_pylist()) == {str(row) for row in range(800)}
    order = np.argsort([int(name) for name in table["id"].to_pylist()])
    for column, name in enumerate(NAMES):
        low, middle, high = (
            table[f"{mark}:{name}"].to_numpy()[order] for mark in ("low", "score", "high")
        )
        assert ((low < high) & (middle > 0) & (middle < 1)).all()
        assert np.abs(middle - truth[:, column]).mean() < 0.12
    done = run(*call, "--scores", "logits")
    assert "leave out --scores" in str(done.exception)


def test_broken_embeddings_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", embeddings=np.zeros((2, 3)), names=["x", "y"])
    with pytest.raises(DataError, match="row 1 is all zeros"):
        read_texts(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", embeddings=np.ones((2, 3)))
    with pytest.raises(DataError, match="no array 'names'"):
        read_texts(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", embeddings=np.ones((2, 4)), ids=["a", "b"])
    np.savez(tmp_path / "d.npz", embeddings=np.ones((2, 3)), names=["x", "y"])
    with pytest.raises(DataError, match="must have one length, got 4 and 3"):
        read_cosines(tmp_path / "c.npz", read_texts(tmp_path / "d.npz"))


PROMPTS = ["a photo of a dog.", "a car, parked", "a cat", "a drawing of a dog"]


def prompted(folder, **more):
    """Write files in the conventions of SigLIP, whose probabilities are the truth; return it."""
    rng = np.random.default_rng(1)
    photos, texts = rng.normal(size=(600, 16)), rng.normal(size=(4, 16))
    np.savez(folder / "photos.npz", embeddings=photos, ids=np.arange(600).astype(str))
    np.savez(folder / "texts.npz", embeddings=texts, prompts=PROMPTS, **more)
    unit = texts / np.linalg.norm(texts, axis=1, keepdims=True)
    means = np.stack([unit[2], unit[0] + unit[3]])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    truth = expit(9 * (photos / np.linalg.norm(photos, axis=1, keepdims=True) @ means.T) - 1.5)
    labels = (rng.random(truth.shape) < truth)[:30].astype(float)
    np.savez(folder / "few.npz", labels=labels, names=["cat", "dog"], ids=np.arange(30).astype(str))
    return truth


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
    call = ["calibrate", "photos.npz", "--texts", "texts.npz", "--prompts", "prompts.tsv"]
    call += ["--labels", "few.npz", "-o", "out"]
    must_run(*[str(tmp_path / word) if "." in word or word == "out" else word for word in call])
    table = pq.read_table(tmp_path / "out" / "intervals.parquet")
    order = np.argsort([int(name) for name in table["id"].to_pylist()])
    found = np.stack([table[f"score:{name}"].to_numpy()[order] for name in ("cat", "dog")], 1)
    # 30 labels move a link that was right from the start by little.
    assert np.abs(found - truth).mean() < 0.05
    written = read_texts(tmp_path / "texts.npz", tmp_path / "out" / "prompts.csv")
    assert written.prompts == texts.prompts == (
        ("cat", "a cat"), ("dog", "a drawing of a dog"), ("dog", "a photo of a dog.")
    )  # fmt: skip


def test_a_scale_without_bias_is_clips_and_gives_no_logits(tmp_path):
    prompted(tmp_path, logit_scale=100.0)
    (tmp_path / "p.csv").write_text('label,prompt\ncat,a cat\ncar,"a car, parked"\n')
    texts = read_texts(tmp_path / "texts.npz", tmp_path / "p.csv")
    assert not texts.gives_logits
    assert np.abs(read_cosines(tmp_path / "photos.npz", texts).scores).max() <= 1


@pytest.mark.parametrize(
    ("lines", "more", "sentence"),
    [
        ("", {}, "line 1: the columns must be label and prompt, got"),
        ("label,prompt\n", {}, "there are no prompts"),
        ("label,prompt\ncar,a car, parked\n", {}, "line 2: a line must be a label and one text"),
        ("label,prompt\ncat,a cat\ndog,a dgo\n", {}, "line 3: .* has no embedding of 'a dgo'"),
        (None, {"logit_scale": -1.0}, "logit_scale must be positive, got -1"),
        (None, {"logit_scale": [1.0, 2.0]}, "logit_scale must be one number"),
        (None, {"logit_bias": -10.0}, "logit_bias needs a logit_scale"),
        (None, {}, "no array 'names', the label of each text; or say with --prompts"),
    ],
)
def test_bad_texts_get_one_sentence(tmp_path, lines, more, sentence):
    names = {"names": ["a", "b", "c", "d"]} if more else {}
    prompted(tmp_path, **more, **names)
    prompts = None if lines is None else tmp_path / "p.csv"
    if prompts is not None:
        prompts.write_text(lines)
    with pytest.raises(DataError, match=sentence):
        read_texts(tmp_path / "texts.npz", prompts)
