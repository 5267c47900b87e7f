"""Votes to soft labels. Oracles: crowd-kit's steps, slow loops, enumeration, known workers."""

import csv
import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typed import must_run, run

from labelwise.data import load
from labelwise.data.export import export
from labelwise.data.votes import ALL_LABELS, Votes, count_votes, model_workers
from labelwise.errors import DataError, LabelwiseError, SettingsError
from labelwise.pictures import FileImages

RATES = [(0.9, 0.95), (0.8, 0.9), (0.6, 0.7), (0.95, 0.6), (0.85, 0.85)]


def simulated(seed, photos, rates, *, share=0.4, answers=0.9, labels=("dog",)):
    """Return votes of workers with known (sensitivity, specificity), and the truth."""
    rng = np.random.default_rng(seed)
    truth = rng.random(photos) < share if len(labels) == 1 else None
    if truth is None:
        truth = rng.random((photos, len(labels))) < share
    rows = []
    for photo, worker in itertools.product(range(photos), range(len(rates))):
        for column, label in enumerate(labels):
            if rng.random() < answers:
                a, b = rates[worker]
                there = np.reshape(truth, (photos, -1))[photo, column]
                yes = rng.random() < (a if there else 1 - b)
                rows.append((f"{photo:04d}", label, f"w{worker}", "yes" if yes else "no"))
    return rows, truth


def by_photo(made):
    return made.shares[np.argsort(list(made.votes.photos))]


def test_the_model_agrees_with_crowd_kit():
    """Golden: crowd-kit 1.4.2, DawidSkene's own E and M steps repeated until they move < 1e-12.

    Its ``initial_error``, strategy "addition", is our prior: 3.2 answers right and 0.8 wrong.
    """
    rows, _ = simulated(5, 60, RATES)
    made = model_workers(Votes.of(rows), photos=0)
    found = [0.001788, 0.000758, 0.000758, 0.818665, 0.993786, 0.993354]
    found += [0.001788, 0.999289, 0.995585, 0.264787, 0.000125, 0.0726]
    np.testing.assert_allclose(by_photo(made)[:12, 0], found, atol=3e-6)
    rates = {one.worker: (one.sensitivity, one.specificity) for one in made.records}
    assert rates["w0"] == pytest.approx((0.874466, 0.910888), abs=3e-6)
    assert rates["w3"] == pytest.approx((0.897947, 0.619542), abs=3e-6)


def slow_em(rows, q, s, m, steps):
    """Return {(photo, label): P(t = 1)}: one loop per formula of the docstring."""
    truth = {}
    for photo, label, _, _ in rows:
        present = [row[3] == "yes" for row in rows if row[:2] == (photo, label)]
        truth[photo, label] = (sum(present) + 0.5) / (len(present) + 1)
    for _ in range(steps):
        a, b = {}, {}
        for _, label, worker, _ in rows:
            mine = [row for row in rows if row[1] == label and row[2] == worker]
            there = [truth[row[:2]] for row in mine]
            hits = sum(t for t, row in zip(there, mine, strict=True) if row[3] == "yes")
            passes = sum(1 - t for t, row in zip(there, mine, strict=True) if row[3] == "no")
            a[worker, label] = (hits + s * q) / (sum(there) + s)
            b[worker, label] = (passes + s * q) / (len(mine) - sum(there) + s)
        new = {}
        for photo, label in truth:
            of_label = [t for (_, other), t in truth.items() if other == label]
            pi = (sum(of_label) + m) / (len(of_label) + 2 * m)
            present, absent = pi, 1 - pi
            for row in rows:
                if row[:2] == (photo, label):
                    key = row[2], label
                    present *= a[key] if row[3] == "yes" else 1 - a[key]
                    absent *= 1 - b[key] if row[3] == "yes" else b[key]
            new[photo, label] = present / (present + absent)
        truth = new
    return truth


def test_em_is_the_slow_loop():
    rows, _ = simulated(1, 12, RATES[:3], labels=("cat", "dog"), answers=0.8)
    made = model_workers(Votes.of(rows), right=0.7, strength=2.0)
    steps = int(made.how.split()[-2])
    expected = slow_em(rows, 0.7, 2.0, 1.0, steps)
    for (photo, label), value in expected.items():
        row = list(made.votes.photos).index(photo)
        assert made.shares[row, made.votes.labels.index(label)] == pytest.approx(value, abs=1e-12)


ANSWERS = st.sampled_from(["yes", "No", "don't know", "?", "1", "0"])


@settings(max_examples=20, deadline=None)
@given(
    answers=st.dictionaries(
        st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 3)), ANSWERS, min_size=1
    )
)
def test_shares_are_shares_and_order_means_nothing(answers):
    rows = [(f"p{p}", "ab"[k], f"w{w}", answer) for (p, k, w), answer in answers.items()]
    for make in (count_votes, model_workers):
        made, other = make(Votes.of(rows)), make(Votes.of(rows[::-1]))
        known = made.shares[~np.isnan(made.shares)]
        assert ((known >= 0) & (known <= 1)).all()
        np.testing.assert_allclose(by_photo(other), by_photo(made), atol=1e-4)
        assert other.votes.labels == made.votes.labels


def test_counts_by_hand():
    rows = [
        ("a.jpg", "dog", "ann", "yes"),
        ("a.jpg", "dog", "bob", "no"),
        ("a.jpg", "dog", "cid", "yes"),
        ("a.jpg", "cat", "ann", "no"),
        ("b.jpg", "dog", "bob", "don't know"),
        ("b.jpg", "cat", "bob", "yes"),
    ]
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
        ("photo,label,worker,answer\na,b,c,yes\na,b,d,maybe\n", "line 3: an answer is .*'maybe'"),
        ("photo,label,worker,answer\na,b,,yes\n", "line 2: the column 'worker' is empty"),
        ("Path;Tag;Annotator;Vote\na;b;c;y\nx;b;c;y\na;b;c;n\n", "4: 'c' .* 'b' of 'a' .* line 2"),
    ],
)
def test_bad_files_of_votes_get_one_sentence(tmp_path, text, sentence):
    file = tmp_path / ("votes.txt" if ";" in text else "votes.csv")
    file.write_text(text)
    with pytest.raises(DataError, match=sentence):
        Votes.read(file)


def test_the_verb_writes_a_table_and_a_report(tmp_path):
    rows, _ = simulated(3, 30, RATES[:3], labels=("cat", "dog"))
    rows += [("0001", "dog", "late", "unknown"), ("9999", "dog", "late", "?")]
    with (tmp_path / "votes.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "worker", "answer"), *rows])
    words = ("data", "votes", tmp_path / "votes.csv", "-o", tmp_path / "soft.parquet")
    result = must_run(*words, "--report", tmp_path / "workers.csv")
    assert "31 photos, 2 labels" in result.output
    table = load(tmp_path / "soft.parquet", check_files=False)
    labels, known = table.targets()
    expected = by_photo(count_votes(Votes.of(rows)))
    order = np.argsort(list(table.ids))
    np.testing.assert_allclose(
        np.where(known, labels, np.nan)[order], expected.astype(np.float32), rtol=1e-7
    )
    assert table.unlabelled()[order][-1]  # of 9999 nobody knows anything
    with (tmp_path / "workers.csv").open() as file:
        report = list(csv.DictReader(file))
    late = [row for row in report if row["worker"] == "late"]
    assert [(row["label"], row["dont_know"]) for row in late] == [("*", "2"), ("dog", "2")]
    assert late[0]["sensitivity"] == ""
    must_run(*words, "--by", "workers", "--report", tmp_path / "workers.json")
    model = load(tmp_path / "soft.parquet", check_files=False)
    found = np.where(model.targets()[1], model.targets()[0], np.nan)[order]
    expected = by_photo(model_workers(Votes.of(rows))).astype(np.float32)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    record = json.loads((tmp_path / "workers.json").read_text())[0]
    assert {"worker", "label", "sensitivity", "specificity", "yes", "no"} <= set(record)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--right", "0.7"], "belongs to --vote-by workers"),
        (["--by", "workers", "--smoothing", "1"], "belongs to --vote-by counts"),
        (["--report", "workers.txt"], "must end in .csv or .json"),
        (["--by", "workers", "--right", "0.4"], "between 0.5 and 1"),
    ],
)
def test_options_that_do_not_apply_are_errors(tmp_path, words, sentence):
    (tmp_path / "votes.csv").write_text("photo,label,worker,answer\na,b,c,yes\n")
    out = tmp_path / "soft.csv"
    result = run("data", "votes", tmp_path / "votes.csv", "-o", out, *words)
    assert result.exit_code != 0
    assert isinstance(result.exception, LabelwiseError)
    assert sentence in str(result.exception)
    assert not out.exists()


def test_photos_keep_their_split_and_bytes(tmp_path):
    photos = load("scenes", num_train=6, num_val=2, num_test=2)
    export(photos, tmp_path / "photos.parquet")
    votes = [(name, "dog", "ann", "yes") for name in list(photos.ids)[:3]]
    votes += [(name, "dog", "bob", "no") for name in list(photos.ids)[:2]]
    with (tmp_path / "votes.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("photo", "label", "worker", "answer"), *votes])
    must_run(
        *("data", "votes", tmp_path / "votes.csv", "--photos", tmp_path / "photos.parquet"),
        *("-o", tmp_path / "soft.parquet"),
    )
    table = load(tmp_path / "soft.parquet")
    assert table.split.tolist() == photos.split.tolist()
    labels, known = table.targets()
    np.testing.assert_array_equal(labels[:3, 0], [0.5, 0.5, 1])
    assert known[:, 0].tolist() == [True] * 3 + [False] * 7


def test_a_photo_that_is_not_there_and_a_negative_prior():
    made = count_votes(Votes.of([("a.jpg", "dog", "ann", "yes")]))
    with pytest.raises(DataError, match=r"photos has no photo 'a\.jpg', which has votes; there"):
        made.table(FileImages("", ["elsewhere.png"]), "photos")
    with pytest.raises(SettingsError, match="must not be negative"):
        model_workers(Votes.of([("a", "b", "c", "yes")]), strength=-1.0)
