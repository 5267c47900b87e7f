"""Other people's files: read to the last bit, or refused with the row and the way out."""

import csv
import itertools
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pyarrow import csv as arrow_csv
from sample_scores import NAMES, sample
from scipy.special import expit, logit
from search_setup import LABELS, picture, save_model
from typed import must_run, refused, run

from labelwise.errors import CheckpointError, DataError, LabelwiseError, SettingsError
from labelwise.links import Sigmoid, Softmax
from labelwise.predictions import Predictions
from labelwise.scores import read_scores
from labelwise.scores.aggregating import aggregate, aggregate_labels
from labelwise.scores.fitted import save_probabilities
from labelwise.scores.run import held_out_of, share_shift

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


# Units from photos. Oracles: all outcomes enumerated, Bayes' rule, and worlds of known truth.


def one_unit(p, how, shares):
    return aggregate(np.log(p), np.log1p(-p), np.zeros(len(p), np.int64), 1, how, shares)[0]


@pytest.mark.parametrize("how", ["any", "most"])
@pytest.mark.parametrize("photos", [1, 2, 5, 6])
def test_the_chance_of_a_unit_is_that_of_all_outcomes(how, photos):
    p = np.random.default_rng(photos).random((photos, 3))
    found = one_unit(p, how, np.full(3, 0.5))
    expected = np.zeros(3)
    for outcome in itertools.product((0, 1), repeat=photos):
        chances = np.where(np.array(outcome)[:, None], p, 1 - p).prod(0)
        expected += chances * (sum(outcome) > (photos / 2 if how == "most" else 0))
    assert expit(found) == pytest.approx(expected)


def test_evidence_adds_up_as_bayes_says():
    rng = np.random.default_rng(0)
    share, likes = 0.2, rng.random((4, 2))  # P(what photo i shows | present), P(... | absent)
    p = share * likes[:, 0] / (share * likes[:, 0] + (1 - share) * likes[:, 1])
    yes, no = share * likes[:, 0].prod(), (1 - share) * likes[:, 1].prod()
    found = one_unit(p[:, None], "evidence", np.array([share]))
    assert expit(found[0]) == pytest.approx(yes / (yes + no))


def test_many_photos_have_nearly_the_exact_law():
    p = np.random.default_rng(0).random((401, 1)) * 0.2 + 0.41
    large = expit(one_unit(p, "most", np.array([0.5]))[0])
    law = np.array([1.0])
    for q in p[:, 0]:
        law = np.convolve(law, [1 - q, q])
    assert large == pytest.approx(law[201:].sum(), abs=1e-3)


def test_certain_photos_stay_finite():
    p = np.array([[1.0], [0.0], [1e-300]])
    with np.errstate(divide="ignore"):
        log_p, log_q = np.log(p), np.log1p(-p)
    for how in ("any", "most", "evidence"):
        found = aggregate(log_p, log_q, np.arange(3), 3, how, np.array([0.5]))
        assert np.isfinite(found).all()
        assert found[0, 0] > 100 > -100 > found[1, 0]


def test_the_truth_of_a_unit_knows_what_is_unknown():
    nan = np.nan
    labels = np.array([[1, 0, 0, 1], [0, 0, nan, 1], [nan, 0, 0, nan]])
    unit = np.zeros(3, np.int64)
    np.testing.assert_array_equal(aggregate_labels(labels, unit, 1, "any")[0], [1, 0, nan, 1])
    np.testing.assert_array_equal(aggregate_labels(labels, unit, 1, "most")[0], [nan, 0, 0, 1])


@pytest.fixture
def shots(tmp_path):
    rng = np.random.default_rng(1)
    with (tmp_path / "shots.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "split", "site", "burst", "time", "score:fox", "label:fox"])
        for row in range(600):
            burst = row // 3
            told = int(rng.random() < 0.3)
            where = ("val" if burst % 2 else "test"), f"s{burst % 5}", burst
            moment = f"2024-0{burst % 4 + 1}-01T06:00:00"
            table.writerow([row, *where, moment, 2 * told - 1 + rng.normal(), told])
    return tmp_path / "shots.csv"


def test_bursts_become_a_table_that_every_verb_for_scores_reads(shots, tmp_path):
    out = tmp_path / "bursts.csv"
    by = ("--by", "burst", "--by", "site")
    result = must_run("data", "convert", shots, "--scores", "logits", *by, "-o", out)
    assert "600 photos in 200 units by burst, site, with their labels" in result.stdout
    with out.open() as file:
        rows = {row["burst"]: row for row in csv.DictReader(file)}
    with shots.open() as file:
        photos = [row for row in csv.DictReader(file) if row["burst"] == "7"]
    p = expit(np.array([float(row["score:fox"]) for row in photos]))
    assert float(rows["7"]["score:fox"]) == pytest.approx(logit(1 - np.prod(1 - p)), abs=1e-4)
    assert float(rows["7"]["label:fox"]) == max(int(row["label:fox"]) for row in photos)
    assert (rows["7"]["site"], rows["7"]["split"], rows["7"]["photos"]) == ("s2", "val", "3")
    apart = ("--fit-on", "val", "--report-on", "test")
    must_run(
        "calibrate",
        "--calibrator",
        "none",
        out,
        "--scores",
        "logits",
        *apart,
        "--rule",
        "best-f",
        "--by",
        "site",
    )
    must_run("count", out, "--scores", "logits", "--by", "site")
    by = ("--by", "site", "--by", "month", "--by", "split", "-o", tmp_path / "months.parquet")
    result = must_run("data", "convert", shots, "--scores", "logits", *by)
    assert "20 units by site, month, split" in result.stdout


@pytest.mark.parametrize(
    ("by", "sentence"),
    [
        ("site", "'s0' is in the splits 'test' and 'val'; divide the photos by unit"),
        ("group", "there is no column 'group'"),
    ],
)
def test_units_that_cannot_be_meant(shots, tmp_path, by, sentence):
    result = run(
        "data", "convert", shots, "--scores", "logits", "--by", by, "-o", tmp_path / "x.csv"
    )
    assert sentence in str(result.exception)
    assert not (tmp_path / "x.csv").exists()


# Shares of labels among new photos. Oracles: exact probabilities, the formula of one photo.

BEFORE = np.array([0.1, 0.4, 0.3, 0.2])


def photos(seed, shares, count=4000):
    """Return logits that are exact at the shares BEFORE, of photos with other shares."""
    random = np.random.default_rng(seed)
    truth = random.random((count, 4)) < shares
    return 2 * random.normal(np.where(truth, 2.0, 0.0)) - 2 + logit(BEFORE), truth


def predictions(logits, truth, observed=None):
    names = [f"{row}.jpg" for row in range(len(logits))]
    arrays = (torch.from_numpy(logits).float(), torch.from_numpy(truth).float())
    return Predictions(names, *arrays, observed, LABELS, "test", Sigmoid())


def log_loss(p, truth):
    return -np.log(np.where(truth, p, 1 - p)).mean()


def test_adapted_probabilities_are_nearly_as_good_as_the_exact_ones():
    shares = np.array([0.3, 0.4, 0.3, 0.2])
    logits, truth = photos(1, shares)
    shift = share_shift(predictions(*photos(0, BEFORE)), Sigmoid(), logits)
    assert [one.label for one in shift.moved] == ["beach"]
    adapted = shift.adapted()(logits)
    exact = expit(logits - logit(BEFORE) + logit(shares))
    as_it_is, best = log_loss(expit(logits[:, 0]), truth[:, 0]), log_loss(exact[:, 0], truth[:, 0])
    assert log_loss(adapted[:, 0], truth[:, 0]) - best < 0.1 * (as_it_is - best)
    assert adapted[:, 1:] == pytest.approx(expit(logits[:, 1:]), abs=1e-5)  # these did not move
    share = shift.shares[0]
    assert share.low <= truth[:, 0].mean() <= share.high
    known = shift.known[0]
    odds = known.slope * logits[5, 0] + known.offset + logit(share.now)
    assert adapted[5, 0] == pytest.approx(expit(odds), rel=1e-4)


def test_labels_that_nobody_or_everybody_carries_are_left_as_they_are():
    logits, truth = photos(0, BEFORE, 500)
    truth[:, 1], truth[:, 2] = False, True
    observed = torch.ones(truth.shape, dtype=torch.bool)
    observed[:, 3] = False
    held_out = predictions(logits, truth, observed)
    shift = share_shift(held_out, Sigmoid(), logits)
    assert [one is None for one in shift.shares] == [False, True, True, True]
    assert "nothing was adapted" in shift.sentence()
    assert shift.adapted()(logits) == pytest.approx(expit(logits), abs=1e-5)


def test_no_link_no_photo_and_no_held_out_photos_are_refused(tmp_path):
    held_out = predictions(*photos(0, BEFORE, 100))
    with pytest.raises(DataError, match="calibrate it first"):
        share_shift(held_out, None, held_out.logits)
    with pytest.raises(DataError, match="at least one photo"):
        share_shift(held_out, Sigmoid(), held_out.logits[:0])
    folder = save_model(tmp_path / "run")
    (folder / "predictions" / "test.parquet").unlink()
    with pytest.raises(DataError, match="has no predictions of held-out photos"):
        held_out_of(folder)


def test_predict_shows_the_shares_of_labels(tmp_path):
    """The run says dog of pictures far more often than of held-out photos."""
    run = save_model(tmp_path / "run")
    for number in range(30):
        picture(tmp_path / "photos" / f"{number}.png", number)
    out = tmp_path / "all.jsonl"
    said = must_run("predict", run, tmp_path / "photos", "--frequencies", "-o", out).output
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    probs = np.array([[row["probs"][name] for name in LABELS] for row in rows])
    shift = share_shift(held_out_of(run), Sigmoid(), torch.from_numpy(logit(probs)))
    assert "look as the held-out ones did, and only are more or fewer" in said
    for one in shift.shares:
        line = next(line for line in said.splitlines() if one.label in line.split()[:1])
        assert {f"{one.before:.1%}", f"{one.now:.1%}"} <= set(line.split())
    assert "--adapt-shares does not apply" in refused("evaluate", run, "--adapt-shares")
    shards = ("--frequencies", "-o", f"{tmp_path}/shards/")
    assert "not for shards" in refused("predict", run, tmp_path / "photos", *shards)
