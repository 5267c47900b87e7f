"""Other people's files: read to the last bit, or refused with the row and the way out."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv as arrow_csv
from sample_scores import NAMES, sample

from labelwise.errors import CheckpointError, DataError, LabelwiseError, SettingsError
from labelwise.links import Sigmoid, Softmax
from labelwise.scores import read_scores
from labelwise.scores.fitted import save_probabilities

HEADER = "id,score:dog,score:cat,label:dog,label:cat"


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def write_text(path, predictions, delimiter=",", **more):
    """Write scores and labels as text, an empty cell where a label is unknown."""
    columns = {"id": predictions.ids, **more}
    columns |= {f"score:{n}": predictions.logits[:, k] for k, n in enumerate(NAMES)}
    for k, name in enumerate(NAMES):
        mask = None if predictions.observed is None else ~predictions.observed[:, k]
        columns[f"label:{name}"] = pa.array(predictions.labels[:, k], mask=mask)
    options = arrow_csv.WriteOptions(delimiter=delimiter)
    arrow_csv.write_csv(pa.table(columns), path, options)
    return path


def assert_same(table, predictions):
    read = table.predictions
    assert (tuple(read.names), list(read.ids)) == (NAMES, list(predictions.ids))
    assert np.array_equal(read.logits, predictions.logits)
    known = np.ones(read.labels.shape, bool)
    if predictions.observed is not None:
        assert np.array_equal(read.observed, predictions.observed)
        known = predictions.observed
    assert np.array_equal(read.labels[known], predictions.labels[known])


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
@pytest.mark.parametrize("unknown", [0.0, 0.3])
def test_text_is_read_to_the_last_bit(tmp_path, suffix, unknown):
    predictions = sample(40, unknown=unknown)
    path = write_text(tmp_path / f"s{suffix}", predictions, "\t" if suffix == ".tsv" else ",")
    table = read_scores(path, "logits")
    assert_same(table, predictions)
    assert isinstance(table.predictions.link, Sigmoid)


def test_numpy_files_are_read(tmp_path):
    predictions = sample(40, unknown=0.3)
    arrays = {name: getattr(predictions, name) for name in ("labels", "observed", "ids", "names")}
    path, group = tmp_path / "s.npz", np.arange(40) // 2
    np.savez(path, scores=predictions.logits, group=group, **arrays)
    table = read_scores(path, "logits")
    assert_same(table, predictions)
    assert list(table.predictions.group[:3]) == ["0", "0", "1"]
    labels = np.where(predictions.observed, predictions.labels, np.nan)
    np.savez(path, scores=predictions.logits, labels=labels)
    read = read_scores(path, "logits", link="softmax").predictions
    assert np.array_equal(read.observed, predictions.observed)
    assert (read.names[0], type(read.link)) == ("label-0", Softmax)


def test_parquet_columns_are_read_and_null_is_unknown(tmp_path):
    columns = {"id": [1, 2], "score:dog": [0.5, -1.0], "label:dog": pa.array([True, None])}
    pq.write_table(pa.table(columns), tmp_path / "s.parquet")
    predictions = read_scores(tmp_path / "s.parquet", "logits", link="none").predictions
    assert list(predictions.ids) == ["1", "2"]
    assert predictions.observed.tolist() == [[True], [False]]
    assert predictions.link is None


def test_our_own_predictions_say_what_they_are(tmp_path):
    predictions = sample(40, unknown=0.3)
    predictions.save(tmp_path / "test.parquet")
    for kind in (None, "logits"):
        table = read_scores(tmp_path / "test.parquet", kind)
        assert_same(table, predictions)
        assert table.part("test").split == "test"
    for options in ({"kind": "probs"}, {"kind": None, "link": "softmax"}):
        with pytest.raises(SettingsError, match="written by labelwise"):
            read_scores(tmp_path / "test.parquet", **options)


def test_probabilities_are_kept_exactly_even_zero_and_one(tmp_path):
    path = write(tmp_path / "s.csv", f"{HEADER}\na,0,1,0,1\nb,0.3,0.25,1,0\n")
    predictions = read_scores(path, "probs").predictions
    probs = predictions.link(predictions.logits)
    np.testing.assert_allclose(probs, [[0.0, 1.0], [0.3, 0.25]], rtol=1e-15)


def test_labels_may_stand_in_a_second_file_in_any_order(tmp_path):
    scores = write(tmp_path / "s.csv", "id,score:dog,score:cat\na,1,2\nb,3,4\n")
    labels = write(tmp_path / "l.csv", "id,label:cat,label:dog\nc,1,1\nb,1,0\na,,1\n")
    predictions = read_scores(scores, "logits", labels=labels).predictions
    assert predictions.labels.tolist() == [[1, 0], [0, 1]]
    assert predictions.observed.tolist() == [[True, False], [True, True]]


def test_a_byte_order_mark_and_foreign_columns_do_no_harm(tmp_path):
    (tmp_path / "s.csv").write_text(f"note,{HEADER}\nx,{GOOD}\n", encoding="utf-8-sig")
    with pytest.raises(DataError, match="no column"):
        read_scores(write(tmp_path / "t.csv", f"note,{HEADER[3:]}\n"), "logits")
    assert read_scores(tmp_path / "s.csv", "logits").predictions.ids == ["a"]


@pytest.mark.parametrize(
    ("yes", "no", "encoding", "delimiter"),
    [
        ("ja", "nein", "utf-8-sig", ";"),
        ("Oui", "Non", "cp1252", ";"),
        ("sí", "no", "utf-16", "\t"),
        ("WAHR", "FALSCH", "utf-8", ";"),
    ],
)
def test_a_table_of_a_spreadsheet_is_read_as_it_is_meant(tmp_path, yes, no, encoding, delimiter):
    """Oracle: the numbers and labels that the cells were written from."""
    rng = np.random.default_rng(0)
    probs, labels = np.round(rng.random((30, 2)), 3), rng.integers(0, 2, (30, 2))
    head = ["Datei", "score:Bär", "score:dog", "label:Bär", "label:dog"]
    lines = [["Auswertung", *[""] * 4], head]
    for row in range(30):
        numbers = [f"{value:.3f}".replace(".", ",") for value in probs[row]]
        lines.append([f"{row}.jpg", *numbers, *((no, yes)[value] for value in labels[row])])
    lines[6][3] = "?"
    text = "\r\n".join([*map(delimiter.join, lines), 4 * delimiter, ""])
    (tmp_path / "s.csv").write_bytes(text.encode(encoding))
    read = read_scores(tmp_path / "s.csv", "probs").predictions
    known = np.ones((30, 2), bool)
    known[4, 0] = False
    assert (read.names, read.ids[3]) == (("Bär", "dog"), "3.jpg")
    np.testing.assert_allclose(read.link(read.logits), probs, atol=1e-12)
    assert np.array_equal(read.observed, known)
    assert np.array_equal(read.labels[known], labels[known])
    ticks = text.replace(no, "").replace(yes, "x")
    (tmp_path / "s.csv").write_bytes(ticks.encode(encoding))
    with pytest.raises(DataError, match=r"no cell .* says that a label is absent"):
        read_scores(tmp_path / "s.csv", "probs")


def test_splits_are_rows_of_their_own(tmp_path):
    predictions = sample(40)
    path = write_text(tmp_path / "s.csv", predictions, split=["val"] * 30 + ["test"] * 10)
    table = read_scores(path, "logits")
    assert np.array_equal(table.part("test").logits, predictions.logits[30:])
    with pytest.raises(DataError, match="no row has split 'tst'; did you mean 'test'"):
        table.part("tst")


GOOD = "a,1,2,0,1"
BAD = {
    "": "the file is empty",
    f"{HEADER}\n": "the table has no rows",
    f"{HEADER}\n{GOOD}\nb,,2,0,1\n": r"row 2 \(id 'b'\): a score must be a number, got nothing for",
    f"{HEADER}\n{GOOD}\nb,nan,2,0,1\n": r"row 2 \(id 'b'\): a score must be a number",
    f"{HEADER}\n{GOOD}\nb,inf,2,0,1\n": r"row 2 .*: a logit must be finite in 32 bits, got inf",
    f"{HEADER}\n{GOOD}\nb,1e39,2,0,1\n": r"row 2 .*: a logit must be finite in 32 bits, got 1e\+39",
    f"{HEADER}\n{GOOD}\nb,x,2,0,1\n": r"row 2 \(id 'b'\): 'score:dog' must be a number, got 'x'",
    f"{HEADER}\n{GOOD}\nb,1,2,2,1\n": r"row 2 \(id 'b'\): a label is 1, 0, a share .*, got 2 for",
    f"{HEADER}\n{GOOD}\nb,1,2,0,-0.5\n": "got -0.5 for 'cat'",
    f"{HEADER}\n{GOOD}\nb,1,2\n": "cannot be read",
    f"{HEADER}\n{GOOD}\n{GOOD}\n": "id 'a' is there twice",
    f"{HEADER},score:dog\n{GOOD},1\n": "the column 'score:dog' is there twice",
    f"what,{HEADER[3:]}\n{GOOD}\n": "no column 'id'",
    "id,dog,cat\na,1,2\n": "there are no columns 'score:NAME'.* got 'id', 'dog', 'cat'",
    "id,score:dog,label:dig\na,1,1\n": "label 'dog' of .* is missing; did you mean 'dig'",
    "id,score:dog,label:dog,label:cat\na,1,1,1\n": "label 'cat' of .* is missing",
    "id,score:dog\na,1\n": "there are no labels; .*--labels",
    "id,label:dog\na,1\n": "there are no scores",
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_table_gets_one_sentence_that_names_the_file(tmp_path, text):
    path = write(tmp_path / "s.csv", text)
    with pytest.raises(DataError, match=BAD[text]) as error:
        read_scores(path, "logits")
    assert path.name in str(error.value)
    assert "\n" not in str(error.value)


def test_what_the_scores_are_must_be_said(tmp_path):
    path = write(tmp_path / "s.csv", f"{HEADER}\na,0.2,0.9,0,1\nb,0.2,1.2,0,1\n")
    for options, words in (
        (("probs",), r"row 2 .*in \[0, 1\], got 1\.2 .*--scores logits"),
        ((None,), "--scores logits or --scores probs"),
        (("logits", "sigmod"), "unknown link 'sigmod'; did you mean 'sigmoid'"),
        (("probs", "softmax"), "belongs to logits"),
    ):
        with pytest.raises(LabelwiseError, match=words):
            read_scores(path, **dict(zip(("kind", "link"), options, strict=False)))


def test_files_that_are_not_there_or_not_tables(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        read_scores(tmp_path / "s.csv", "logits")
    with pytest.raises(DataError, match=r"must be one of \.csv"):
        read_scores(write(tmp_path / "s.doc", "x"), "logits")
    latin = f"{HEADER},café\n"
    files = {"s.npz": "not a zip", "s.parquet": "not parquet", "latin.csv": latin}
    for name, text in files.items():
        (tmp_path / name).write_bytes(text.encode("latin-1"))
        with pytest.raises((DataError, CheckpointError), match=name):
            read_scores(tmp_path / name, "logits")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(DataError, match="is a folder; give a file"):
        read_scores(tmp_path / "folder.csv", "logits")


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"labels": np.zeros((2, 2))}, "there are no scores"),
        ({"score": np.zeros((2, 2))}, "unknown array 'score'; did you mean 'scores'"),
        ({"scores": np.zeros(3)}, r"scores must be numbers \(N, D\), got float64 \(3,\)"),
        (
            {"scores": np.zeros((2, 2)), "labels": np.zeros((2, 3))},
            r"labels must be numbers \(2, 2\)",
        ),
        (
            {"scores": np.zeros((2, 2)), "names": np.array(["a"])},
            r"names must be texts or integers \(2,\)",
        ),
        ({"scores": np.zeros((2, 2)), "ids": np.array(["a", "a"])}, "id 'a' is there twice"),
        ({"scores": np.zeros((2, 2)), "labels": np.full((2, 2), -1)}, "got -1 for 'label-0'"),
        ({"scores": np.zeros((0, 2)), "labels": np.zeros((0, 2))}, "no rows"),
        (
            {"scores": np.zeros((1, 1)), "names": np.array([{}], object)},
            "numpy text are read, never Python",
        ),
    ],
)
def test_bad_arrays_are_named(tmp_path, arrays, words):
    np.savez(tmp_path / "s.npz", **arrays)
    with pytest.raises(DataError, match=words):
        read_scores(tmp_path / "s.npz", "logits")


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ("id,label:dog\na,1\n", "label 'cat' of .*s.csv is missing"),
        ("id,label:dog,label:cat,label:cow\na,1,1,1\n", "label 'cow' of .*l.csv is missing"),
        ("id,label:dog,label:cat\nb,1,1\n", "no id of .*s.csv is in it, first 'a'"),
        ("id,label:dog,label:cat\nz,1,1\na,1,3\n", r"l.csv: row 2 \(id 'a'\): a label is"),
        ("id,score:dog\na,1\n", "there are no labels"),
    ],
)
def test_a_label_file_that_does_not_match_is_refused(tmp_path, labels, words):
    scores = write(tmp_path / "s.csv", "id,score:dog,score:cat\na,1,2\n")
    with pytest.raises(LabelwiseError, match=words):
        read_scores(scores, "logits", labels=write(tmp_path / "l.csv", labels))


@pytest.mark.parametrize("fixed", [False, True])
def test_answers_of_predict_are_read_whoever_wrote_them(tmp_path, fixed):
    """Earlier versions wrote lists of a fixed size; a shard also has the logits."""
    if fixed and int(pa.__version__.split(".")[0]) < 26:
        pytest.skip("pyarrow before 26 cannot read what it wrote: lists of a fixed size, some null")
    kind = pa.list_(pa.float32(), 2) if fixed else pa.list_(pa.float32())
    probs = pa.array([[0.25, 0.5], None, [0.75, 1.0]], kind)
    columns = {"path": ["a", "b", "c"], "probs": probs, "error": [None, "broken", None]}
    columns |= {} if fixed else {"logits": probs}
    table = pa.table(columns).replace_schema_metadata({"labelwise": '{"names": ["dog", "cat"]}'})
    pq.write_table(table, tmp_path / "answers.parquet")
    write(tmp_path / "labels.csv", "id,label:dog,label:cat\na,1,0\nc,0,1\n")
    read = read_scores(tmp_path / "answers.parquet", None, labels=tmp_path / "labels.csv")
    assert list(read.predictions.ids) == ["a", "c"]
    np.testing.assert_allclose(Sigmoid()(read.predictions.logits), [[0.25, 0.5], [0.75, 1.0]])
    assert read.notes[0].startswith("1 image of")


def test_soft_labels_of_a_score_file_are_kept(tmp_path):
    text = "id,score:dog,label:dog\na,1.0,0.25\nb,2.0,1\nc,-1.0,\nd,0.0,0\n"
    predictions = read_scores(write(tmp_path / "s.csv", text), kind="logits").predictions
    assert predictions.labels[:, 0].tolist() == [0.25, 1.0, 0.0, 0.0]
    assert predictions.observed[:, 0].tolist() == [True, True, False, True]
    save_probabilities(tmp_path / "p.parquet", predictions, Sigmoid())
    again = read_scores(tmp_path / "p.parquet", kind="probs").predictions
    assert again.labels[:, 0].tolist() == [0.25, 1.0, 0.0, 0.0]
