"""Votes to soft labels. Oracles: crowd-kit's steps, slow loops, enumeration, known workers."""

import csv
import itertools
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typed import must_run, refused

from labelwise.errors import DataError, SettingsError
from labelwise.pictures import FileImages
from labelwise.tables import load, open_table
from labelwise.tables.votes import ALL_LABELS, Votes, count_votes, model_workers

RATES = [(0.9, 0.95), (0.8, 0.9), (0.6, 0.7), (0.95, 0.6), (0.85, 0.85)]


def simulated(seed, photos, rates, *, answers=0.9, labels=("dog",)):
    """Return votes of workers with known (sensitivity, specificity)."""
    rng = np.random.default_rng(seed)
    truth = rng.random((photos, len(labels))) < 0.4
    rows = []
    for photo, (worker, (a, b)) in itertools.product(range(photos), enumerate(rates)):
        for column, label in enumerate(labels):
            if rng.random() < answers:
                yes = rng.random() < (a if truth[photo, column] else 1 - b)
                rows.append((f"{photo:04d}", label, f"w{worker}", "yes" if yes else "no"))
    return rows


def by_photo(made):
    return made.shares[np.argsort(list(made.votes.photos))]


def test_the_model_agrees_with_crowd_kit():
    """Golden: crowd-kit 1.4.2, DawidSkene's own E and M steps repeated until they move < 1e-12.

    Its ``initial_error``, strategy "addition", is our prior: 3.2 answers right and 0.8 wrong.
    """
    made = model_workers(Votes.of(simulated(5, 60, RATES)), photos=0)
    found = [0.001788, 0.000758, 0.000758, 0.818665, 0.993786, 0.993354]
    found += [0.001788, 0.999289, 0.995585, 0.264787, 0.000125, 0.0726]
    np.testing.assert_allclose(by_photo(made)[:12, 0], found, atol=3e-6)
    rates = {one.worker: (one.sensitivity, one.specificity) for one in made.records}
    assert rates["w0"] == pytest.approx((0.874466, 0.910888), abs=3e-6)
    assert rates["w3"] == pytest.approx((0.897947, 0.619542), abs=3e-6)


def test_the_formulas_of_the_model_give_its_shares_back():
    """EM ends where the formulas of the docstring, written as loops, return what they are given."""
    rows = simulated(1, 12, RATES[:3], labels=("cat", "dog"), answers=0.8)
    q, s, m = 0.7, 2.0, 1.5
    made = model_workers(Votes.of(rows), right=q, strength=s, photos=m)
    places = itertools.product(made.votes.photos, made.votes.labels)
    shares = dict(zip(places, made.shares.ravel(), strict=True))
    for (photo, label), found in shares.items():
        own = [t for (_, other), t in shares.items() if other == label and not np.isnan(t)]
        pi = (sum(own) + m) / (len(own) + 2 * m)
        odds = np.log(pi / (1 - pi))
        for worker, answer in [row[2:] for row in rows if row[:2] == (photo, label)]:
            mine = [(shares[row[:2]], row[3]) for row in rows if row[1:3] == (label, worker)]
            there, lacking = sum(t for t, _ in mine), sum(1 - t for t, _ in mine)
            a = (sum(t for t, told in mine if told == "yes") + s * q) / (there + s)
            b = (sum(1 - t for t, told in mine if told == "no") + s * q) / (lacking + s)
            odds += np.log(a / (1 - b) if answer == "yes" else (1 - a) / b)
        assert np.isnan(found) or found == pytest.approx(1 / (1 + np.exp(-odds)), abs=3e-6)


ANSWERS = st.sampled_from(["yes", "No", "don't know", "?", "1", "0"])
PLACES = st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 3))


@settings(max_examples=12)
@given(answers=st.dictionaries(PLACES, ANSWERS, min_size=1))
def test_shares_are_shares_and_order_means_nothing(answers):
    rows = [(f"p{p}", "ab"[k], f"w{w}", answer) for (p, k, w), answer in answers.items()]
    for make in (count_votes, model_workers):
        made, other = make(Votes.of(rows)), make(Votes.of(rows[::-1]))
        known = made.shares[~np.isnan(made.shares)]
        assert ((known >= 0) & (known <= 1)).all()
        np.testing.assert_allclose(by_photo(other), by_photo(made), atol=1e-4)
        assert other.votes.labels == made.votes.labels


def test_counts_by_hand():
    told = "a dog ann yes,a dog bob no,a dog cid yes,a cat ann no,b dog bob ?,b cat bob yes"
    rows = [vote.split() for vote in told.split(",")]
    made = count_votes(Votes.of(rows))
    assert made.votes.labels == ("cat", "dog")
    np.testing.assert_allclose(made.shares, [[0, 2 / 3], [1, np.nan]])
    smooth = count_votes(Votes.of(rows), smoothing=0.5, least=2).shares
    np.testing.assert_allclose(smooth, [[np.nan, 2.5 / 4], [np.nan, np.nan]])
    ann = made.records[0]
    assert (ann.worker, ann.label, ann.yes, ann.no) == ("ann", ALL_LABELS, 1, 1)
    # Of the others one says dog and one does not; nobody else was asked about the cat.
    assert (ann.present, ann.absent, ann.sensitivity, ann.specificity) == (0.5, 0.5, 1.0, 0.0)
    bob = next(one for one in made.records if one.worker == "bob" and one.label == ALL_LABELS)
    assert (bob.dont_know, bob.sensitivity, bob.specificity) == (1, 0.0, None)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("photo,label,worker\na,b,c\n", "there must be a column 'answer'"),
        ("photo,label,worker,answer\n", "there are no votes in it"),
        (
            "photo,label,worker,answer\na,b,c,yes\na,b,d,soso\n",
            "line 3: an answer is .*'soso'",
        ),
        ("photo,label,worker,answer\na,b,,yes\n", "line 2: the column 'worker' is empty"),
        ("Path;Tag;Annotator;Vote\na;b;c;y\nx;b;c;y\na;b;c;n\n", "4: 'c' .* 'b' of 'a' .* line 2"),
    ],
)
def test_bad_files_of_votes_get_one_sentence(tmp_path, text, sentence):
    file = tmp_path / ("votes.txt" if ";" in text else "votes.csv")
    file.write_text(text)
    with pytest.raises(DataError, match=sentence):
        Votes.read(file)


def test_a_sheet_of_votes_in_another_language(tmp_path):
    """Oracle: the rows. A photo's column is taken before a running number called id."""
    rows = [
        "id;Foto;Etikett;Bearbeiter;Antwort",
        "7;a.jpg;Bär;Zoë;Ja",
        "8;a.jpg;Bär;Tim;weiß nicht",
    ]
    rows += ["9;b.jpg;Bär;Zoë;nein", ";;;;"]
    (tmp_path / "v.csv").write_bytes("\r\n".join(rows).encode("cp1252"))
    table = open_table(tmp_path / "v.csv")
    votes = table.votes()
    assert (table.holds, list(votes.photos), votes.labels) == (
        "votes",
        ["a.jpg", "b.jpg"],
        ("Bär",),
    )
    assert (votes.workers, votes.answer.tolist()) == (("Zoë", "Tim"), [1, -1, 0])


def test_the_verb_writes_a_table_and_a_report(tmp_path):
    rows = simulated(3, 30, RATES[:3], labels=("cat", "dog"))
    rows += [("0001", "dog", "late", "unknown"), ("9999", "dog", "late", "?")]
    lines = map(",".join, [("path", "label", "worker", "answer"), *rows])
    (tmp_path / "votes.csv").write_text("\n".join(lines))
    words = ("data", "votes", tmp_path / "votes.csv", "-o", tmp_path / "soft.parquet")
    result = must_run(*words, "--report", tmp_path / "workers.csv")
    assert "31 photos, 2 labels" in result.output

    def assert_written(expected):
        table = load(tmp_path / "soft.parquet", check_files=False)
        labels, known = table.targets()
        found = np.where(known, labels, np.nan)[np.argsort(list(table.ids))]
        np.testing.assert_allclose(found, by_photo(expected).astype(np.float32), rtol=1e-6)
        assert np.isnan(found[-1]).all()  # of 9999 nobody knows anything

    assert_written(count_votes(Votes.of(rows)))
    with (tmp_path / "workers.csv").open() as file:
        report = list(csv.DictReader(file))
    columns = ("label", "dont_know", "sensitivity")
    late = [[row[name] for name in columns] for row in report if row["worker"] == "late"]
    assert late == [["*", "2", ""], ["dog", "2", ""]]
    must_run(*words, "--vote-by", "workers", "--report", tmp_path / "workers.json")
    assert_written(model_workers(Votes.of(rows)))
    record = json.loads((tmp_path / "workers.json").read_text())[0]
    assert set(record) == set(report[0])


def test_options_that_do_not_apply_are_errors(tmp_path):
    (tmp_path / "votes.csv").write_text("photo,label,worker,answer\na,b,c,yes\n")
    start = ("data", "votes", tmp_path / "votes.csv", "-o", tmp_path / "soft.csv")
    for words, sentence in (
        (["--right", "0.7"], "belongs to --vote-by workers"),
        (["--vote-by", "workers", "--smoothing", "1"], "belongs to --vote-by counts"),
        (["--report", "workers.txt"], "must end in .csv or .json"),
        (["--vote-by", "workers", "--right", "0.4"], "between 0.5 and 1"),
    ):
        assert sentence in refused(*start, *words)
    assert not (tmp_path / "soft.csv").exists()


def test_photos_keep_their_split_and_bytes(tmp_path):
    columns = {"path": list("abcd"), "image": [b"1", b"2", b"3", b"4"], "labels": [["fox"]] * 4}
    columns["split"] = ["train", "train", "val", "test"]
    pq.write_table(pa.table(columns), tmp_path / "photos.parquet")
    votes = "photo,label,worker,answer\na,dog,ann,yes\nb,dog,ann,yes\na,dog,bob,no\n"
    (tmp_path / "votes.csv").write_text(votes)
    words = ("data", "votes", tmp_path / "votes.csv", "--data", tmp_path / "photos.parquet")
    must_run(*words, "-o", tmp_path / "soft.parquet")
    table = load(tmp_path / "soft.parquet")
    assert (table.split.tolist(), table.images.content(2)) == (columns["split"], b"3")
    labels, known = table.targets()
    assert np.where(known, labels, 9).tolist() == [[0.5], [1], [9], [9]]


def test_a_photo_that_is_not_there_and_a_negative_prior():
    made = count_votes(Votes.of([("a.jpg", "dog", "ann", "yes")]))
    with pytest.raises(DataError, match=r"photos has no photo 'a\.jpg', which has votes; there"):
        made.table(FileImages("", ["elsewhere.png"]), "photos")
    with pytest.raises(SettingsError, match="must not be negative"):
        model_workers(Votes.of([("a", "b", "c", "yes")]), strength=-1.0)
