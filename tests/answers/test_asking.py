"""What to label next. Oracles: every truth enumerated, a slow greedy loop, files read back."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from open_indexes import open_index
from search_setup import LABELS, picture, save_model

from labelwise.answers.asking import (
    Pool,
    choose_labels,
    choose_photos,
    draw_photos,
    worth_of_labels,
)
from labelwise.answers.suspects import read_review, write_review
from labelwise.base.progress import Silent
from labelwise.base.table_files import write_csv
from labelwise.cli.app import app
from labelwise.errors import DataError
from labelwise.photos import update_index
from labelwise.scores.unlabelled_pool import read_pool
from labelwise.tables import load

seeds = st.integers(0, 10**6)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=seeds, labels=st.integers(1, 6))
def test_the_value_of_a_question_is_that_of_enumeration(seed, labels):
    """Oracle: how many labels more are right on average after the answer, over every truth."""
    rng = np.random.default_rng(seed)
    probs = rng.choice([0.0, 0.02, 0.3, 0.5, 0.7, 0.97, 1.0], (5, labels))
    sets = rng.random((5, labels)) < 0.5
    slow = np.zeros(probs.shape)
    for truth in product((0, 1), repeat=labels):
        chance = np.where(truth, probs, 1 - probs).prod(1)
        slow += chance[:, None] * (sets != np.array(truth))
    np.testing.assert_allclose(worth_of_labels(Pool.of(probs, sets), "value"), slow, atol=1e-9)


def slowly_chosen(worth, vectors, labelled, count, *, photos):
    """Return (row, column) as the docstring says it, one question at a time."""
    rows, labels = worth.shape
    worth, chosen = worth.copy(), []
    seen = {k: [row for row in range(rows) if labelled[row, k]] for k in range(labels)}

    def best(k):
        new = [
            worth[i, k] * (1 - max([0.0, *(float(vectors[i] @ vectors[j]) for j in seen[k])]))
            for i in range(rows)
        ]
        i = int(np.argmax(new)) if max(new) > 1e-6 else int(np.argmax(worth[:, k]))
        return i if worth[i, k] > 0 else None

    while len(chosen) < count:
        heads = sorted((worth[best(k), k], k) for k in range(labels) if best(k) is not None)
        if not heads:
            break
        for _, k in reversed(heads):
            i = best(k)
            if i is None or len(chosen) == count:
                continue
            chosen.append((i, k))
            worth[i, slice(None) if photos else k] = 0
            for column in range(labels) if photos else (k,):
                seen[column].append(i)
    return chosen


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=seeds, photos=st.booleans(), by=st.sampled_from(["value", "entropy"]))
def test_choices_are_those_of_a_slow_loop(seed, photos, by):
    rng = np.random.default_rng(seed)
    probs, vectors = rng.random((9, 3)), rng.normal(size=(9, 4))
    truth = np.where(rng.random((9, 3)) < 0.3, rng.integers(0, 2, (9, 3)), np.nan)
    pool = Pool.of(probs, probs > 0.5, truth, vectors)
    worth = np.where(np.isnan(truth), worth_of_labels(pool, by), 0)
    done = ~np.isnan(truth)
    labelled = np.tile(done.all(1, keepdims=True), 3) if photos else done
    slow = slowly_chosen(worth, pool.vectors.astype(float), labelled, 12, photos=photos)
    if photos:
        assert choose_photos(pool, 12, by).tolist() == [row for row, _ in slow]
    else:
        found = choose_labels(pool, 12, by)
        assert list(zip(*(part.tolist() for part in found), strict=True)) == slow


def test_copies_are_asked_last_and_closed_entries_never():
    """Oracle: equal shares over many draws; photo 2 is a copy of 0, photo 3 is known."""
    probs = np.array([[0.5, 0.1], [0.2, 0.5], [0.5, 0.1], [0.9, 0.9]])
    truth = np.full(probs.shape, np.nan)
    truth[3] = 1
    pool = Pool.of(probs, probs > 0.4, truth)
    first = [int(draw_photos(pool, 1, seed=seed)[0]) for seed in range(3000)]
    assert (np.abs(np.bincount(first, minlength=4) / 3000 - [1 / 3, 1 / 3, 1 / 3, 0]) < 0.04).all()
    for seed in range(20):
        drawn = draw_photos(pool, 9, seed=seed).tolist()
        assert sorted(drawn) == [0, 1, 2]
        assert drawn[2] != 1  # one of the copies
        assert drawn == draw_photos(pool, 9, seed=seed).tolist()
    rng = np.random.default_rng(0)
    vectors = np.repeat(rng.normal(size=(5, 8)), 4, axis=0)  # each photo four times
    probs = rng.random((20, 3))
    for by in ("value", "entropy", "diverse"):
        rows = choose_photos(Pool.of(probs, probs > 0.5, None, vectors), 5, by)
        assert sorted(rows // 4) == [0, 1, 2, 3, 4], by
    known = np.full((20, 3), np.nan)
    known[:4] = 0  # the first is labelled, and nothing of its copies is left to ask
    rows = choose_photos(Pool.of(probs, probs > 0.5, known, vectors), 100, "value")
    assert sorted(rows) == list(range(4, 20))
    probs = np.full((4, 2), 0.5)
    pool = Pool.of(probs, probs > 0.5, closed=np.array([[True, False]] * 4))
    rows, columns = choose_labels(pool, 10, "value")
    assert set(columns.tolist()) == {1}
    assert sorted(rows) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match=r"by must be one of value, entropy, .* got 'worth'"):
        choose_photos(pool, 1, "worth")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("next")
    save_model(folder / "model")
    for seed in range(12):
        picture(folder / "photos" / f"{seed % 8}" / f"{seed}.png", seed % 8)  # four are copies
    update_index(folder / "index", [folder / "photos"], model=folder / "model", watch=Silent())
    return folder


def run(*arguments):
    app([str(one) for one in arguments], standalone_mode=False)


def test_photos_of_a_folder_become_a_table_to_label(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    ask = [
        "data",
        "review",
        "--find",
        "next",
        "photos",
        "-m",
        "model",
        "--top",
        8,
        "-o",
        "next.csv",
    ]
    run(*ask, "--html", "n.html")
    assert "nothing else is unknown" not in capsys.readouterr().out  # 8 of 8 were asked for
    table = load("next.csv")
    assert len(table) == 8
    assert table.space.names == LABELS
    assert table.unlabelled().all()
    assert len({table.images.content(row) for row in range(8)}) == 8  # no copy before the others
    assert "data:image/jpeg" in (place / "n.html").read_text()
    capsys.readouterr()
    run("data", "convert", "next.csv", "--for", "label-studio", "-o", "tasks.json")
    assert load("tasks.json").unlabelled().all()
    # Labelled in a spreadsheet, four photos are known and are not asked again.
    known = [int(label == "dog") for label in LABELS]
    rows = [[path, *(known if row < 4 else [None] * 4)] for row, path in enumerate(table.ids)]
    write_csv(place / "part.csv", ("path", *LABELS), rows)
    capsys.readouterr()
    run(
        "data",
        "review",
        "--find",
        "next",
        "part.csv",
        "-m",
        "model",
        "-o",
        "again.csv",
        "--order",
        "diverse",
    )
    said = capsys.readouterr().out
    assert "4 photos of 8" in said
    assert "nothing else is unknown: 4 instead of" in said
    assert set(load("again.csv").ids) == {path for path, *_ in rows[4:]}


def test_answers_to_single_labels_repair_the_table(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    run("data", "review", "--find", "next", "photos", "-m", "model", "-o", "table.csv")
    ask = [
        "data",
        "review",
        "--find",
        "next",
        "table.csv",
        "-m",
        "model",
        "--questions",
        "labels",
        "--top",
        9,
    ]
    run(*ask, "-o", "ask.csv", "--order", "entropy", "--html", "labels.html", "--blind")
    questions = read_review(place / "ask.csv")
    assert len(questions) == 9
    assert {one.given for one in questions} == {"unknown"}
    assert {one.label for one in questions} == set(LABELS)
    write_review(place / "answered.csv", [replace(one, answer="yes") for one in questions])
    run("data", "review", "table.csv", "--apply", "answered.csv", "-o", "repaired.csv")
    repaired = load("repaired.csv")
    asked = {(one.photo, one.label) for one in questions}
    rows, columns = np.nonzero(repaired.targets()[0])
    names = repaired.space.names
    assert {(repaired.ids[i], names[k]) for i, k in zip(rows, columns, strict=True)} == asked
    capsys.readouterr()
    run(
        "data",
        "review",
        "--find",
        "next",
        "repaired.csv",
        "-m",
        "model",
        "--questions",
        "labels",
        "-o",
        "more.csv",
    )
    assert not asked & {(one.photo, one.label) for one in read_review(place / "more.csv")}


def test_only_photos_of_train_are_chosen(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    rows = [f"photos/{n}/{n}.png,,*,{split}" for n, split in enumerate(("train", "val", "test"))]
    (place / "split.csv").write_text("\n".join(["path,labels,unknown,split", *rows, ""]))
    run("data", "review", "--find", "next", "split.csv", "-m", "model", "-o", "chosen.csv")
    assert list(load("chosen.csv").ids) == ["photos/0/0.png"]
    assert "2 photos of val and test are not asked about" in capsys.readouterr().err


def test_an_index_and_the_output_of_predict_are_pools(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    index = open_index(place / "index")
    index.correct(0, {label: "absent" for label in LABELS})
    index.correct(1, {"dog": "unknown"})
    corrected = index.store.paths_of([0, 1])
    run("data", "review", "--find", "next", "index", "-o", "indexed.csv")
    table = load("indexed.csv")
    assert len(table) == 7  # of eight contents
    assert corrected[0][0] not in set(table.ids)
    run(
        "data",
        "review",
        "--find",
        "next",
        "index",
        "--questions",
        "labels",
        "-o",
        "indexed-labels.csv",
    )
    asked = read_review(place / "indexed-labels.csv")
    assert len(asked) == 7 * 4 - 1
    assert (corrected[1][0], "dog") not in {(one.photo, one.label) for one in asked}
    for suffix in (".parquet", ".csv", ".jsonl"):
        run("predict", "model", "photos", "-o", f"answers{suffix}")
        run(
            "data",
            "review",
            "--find",
            "next",
            f"answers{suffix}",
            "-m",
            "model",
            "--top",
            8,
            "-o",
            "of-file.csv",
        )
        found = load("of-file.csv")
        assert len({found.images.content(row) for row in range(8)}) == 8, suffix


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["photos"], "say with --model which model"),
        (["photos", "-m", "model", "--blind"], "--blind does not apply"),
        (["index", "-m", "model"], "is an index and has its own model"),
        (["photos", "-m", "model", "--questions", "labels"], "a review file must end in .csv"),
        (["known.csv", "-m", "model"], "there is nothing to ask"),
        (["photos", "-m", "model", "--order", "value", "--seed", "1"], "--seed does not apply"),
        (["empty", "-m", "model"], "there are no images in the folder"),
    ],
)
def test_what_does_not_apply_is_one_sentence(place, monkeypatch, arguments, sentence):
    monkeypatch.chdir(place)
    (place / "empty").mkdir(exist_ok=True)
    (place / "known.csv").write_text("path,labels\nphotos/0/0.png,dog\nphotos/1/1.png,\n")
    with pytest.raises(Exception, match=sentence):
        run("data", "review", "--find", "next", *arguments, "-o", "out.parquet")


def test_a_table_of_paths_alone_is_a_pool_of_photos(tmp_path):
    """Oracle: the same photos as a folder; a row without a name is named."""
    for number in range(3):
        picture(tmp_path / f"photos/{number}.png", number)
    model = save_model(tmp_path / "run")
    table = tmp_path / "photos/new.csv"
    table.write_text("path\n0.png\n1.png\n2.png\n")
    listed, folder = (read_pool(str(at), model) for at in (table, table.parent))
    np.testing.assert_array_equal(listed.pool.probs, folder.pool.probs)
    table.write_text("path,note\n0.png,a\n,b\n")
    with pytest.raises(DataError, match="row 2 must name an image, got"):
        read_pool(str(table), model)
