"""Readers take time in proportion to their input, and memory in proportion to what is said.

Held to the same reader at a quarter of the input: a quadratic one takes sixteen times as long.
"""

import gc
import json
import time
import tracemalloc

import numpy as np
import pytest
import torch

from labelwise.errors import DataError
from labelwise.pictures import FileImages
from labelwise.queries.query import Query
from labelwise.tables import LabelTable, load, obey_taxonomy
from labelwise.tables.export import export
from labelwise.tables.table import LabelSets
from labelwise.tables.votes import Votes, count_votes, model_workers
from labelwise.taxonomy import Taxonomy
from labelwise.types import LabelSpace

TIMES_FOUR = 8.0


def processor_time(work, *given):
    """Return the least processor time of three runs.

    What was there before is kept out of the garbage collector, in whose runs all of it is visited.
    """
    times = []
    gc.freeze()
    for _ in range(3):
        gc.collect()
        start = time.process_time()
        work(*given)
        times.append(time.process_time() - start)
    gc.unfreeze()
    return min(times)


def assert_grows_linearly(work, make, size):
    """``work`` on ``make(4 size)`` takes at most eight times as long as on ``make(size)``."""
    small, large = make(size), make(4 * size)
    ratio = processor_time(work, large) / max(processor_time(work, small), 1e-4)
    assert ratio < TIMES_FOUR, f"four times the input took {ratio:.1f} times as long"


def star(count):
    return {f"kind {number}": "thing" for number in range(count)}


def chain(count):
    return {f"kind {number + 1}": f"kind {number}" for number in range(count)}


def labels_of(parents):
    return LabelSpace(tuple(sorted({*parents, *parents.values()})))


@pytest.mark.parametrize("shape", [star, chain])
def test_a_taxonomy_is_read_and_bound_to_labels(tmp_path, shape):
    def written(count):
        lines = [f"{child},{parent}" for child, parent in shape(count).items()]
        path = tmp_path / f"{count}.csv"
        path.write_text("\n".join(["child,parent", *lines]))
        return path, labels_of(shape(count))

    def work(given):
        path, space = given
        taxonomy = Taxonomy.read(path)
        tree = taxonomy.within(space)
        top = next(iter(dict.fromkeys(taxonomy.parents.values())))
        assert len(taxonomy.labels(top, space)) == len(space)
        assert len(tree.below(tree.tops[0])) == len(space) - 1
        assert len(tree.family(tree.upward[0][0])[0]) == len(space)
        assert max(tree.level) == len(set(taxonomy.parents.values())) + 1

    assert_grows_linearly(work, written, 4_000)


def write_wide(folder, columns):
    """Write a table of one image with so many labels, a column each."""
    path = folder / f"{columns}.csv"
    names = ",".join(f"label {number}" for number in range(columns))
    path.write_text(f"path,{names}\na.png" + ",1" * columns + "\n")
    return path


def test_a_table_of_many_columns_and_one_of_too_many(tmp_path):
    (tmp_path / "a.png").write_bytes(b"")

    def work(path):
        assert load(str(path)).present.counts().sum() == int(path.stem)

    assert_grows_linearly(work, lambda count: write_wide(tmp_path, count), 2_000)
    with pytest.raises(DataError, match=r"may have 100,000 columns.* one column `labels`"):
        load(str(write_wide(tmp_path, 100_000)))  # with the paths one more


def test_groups_without_labels_are_passed_over_in_linear_time():
    """One label at the end of each of many groups' chain: each group is walked once."""

    def made(count, groups=1):
        leaves = {f"leaf {k}": f"kind {k}" for k in range(count)}
        return Taxonomy(chain(count - groups) | leaves)

    def work(taxonomy):
        leaves = LabelSpace(tuple(name for name in taxonomy.parents if name.startswith("leaf")))
        within = taxonomy.within(LabelSpace((*leaves.names, "kind 0")))
        assert set(within.parent) == {-1, len(leaves)}
        assert len(taxonomy.all_above(leaves.names)) == len(leaves)

    with pytest.raises(DataError, match="there is no label"):
        work(made(5, 0))  # the last group is above no leaf
    assert_grows_linearly(work, made, 4_000)


@pytest.mark.parametrize("shape", [star, chain])
def test_labels_obey_a_taxonomy_as_they_did_one_group_at_a_time(shape):
    """Oracle of groups: all labels below a group, found by asking every label what is above it."""
    rng = np.random.default_rng(0)
    taxonomy = Taxonomy({**shape(6), "kind 0": "far", "other": "far"})
    every = labels_of(taxonomy.parents).names
    names = tuple(name for name in every if name not in ("kind 2", "far"))
    states = rng.choice([1, 0, 0, 0, -1], size=(200, len(names)))
    sets = (LabelSets.from_dense(states == state) for state in (1, -1))
    images = FileImages("", [f"{row}.jpg" for row in range(200)])
    table = LabelTable(LabelSpace(names), images, *sets)
    if "kind 2" not in taxonomy.parents.values():  # a leaf, which is not above any label
        parents = {child: at for child, at in taxonomy.parents.items() if child != "kind 2"}
        taxonomy = Taxonomy(parents)
    done = obey_taxonomy(table, taxonomy, add_groups=True)
    assert "far" in done.added
    given = states
    for group in done.added:
        below = [k for k, name in enumerate(names) if group in taxonomy.above(name)]
        given = np.c_[given, (states[:, below] == 0).all(1) - 1]  # 0, or -1: not known
    tree = taxonomy.within(done.table.space)
    expected = tree.complete(torch.from_numpy(given.clip(0)), torch.from_numpy(given >= 0))
    labels, known = done.table.targets()
    np.testing.assert_array_equal(known, expected[1])
    np.testing.assert_array_equal(np.where(known, labels, 0), np.where(known, expected[0], 0))


@pytest.mark.parametrize("make", [count_votes, model_workers])
def test_votes_on_many_photos_and_labels_take_memory_by_the_vote(tmp_path, make):
    """3,000 photos and labels with one vote each: a matrix takes 9 MB of bytes, 72 of floats."""
    count = 3_000
    rows = [(f"{k}.jpg", f"label {k:05d}", f"w{k}", "no" if k % 2 else "yes") for k in range(count)]
    tracemalloc.start()
    made = make(Votes.of(rows))
    table = made.table(tmp_path)
    export(table, tmp_path / "soft.parquet")
    again = load(tmp_path / "soft.parquet", check_files=False)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
    assert len(made.records) == 2 * count
    assert again.space.names == table.space.names
    for row in (0, 1, count - 1):
        assert again.unknown.complement().row(row).tolist() == [row]
        told = [one.present.row(row).tolist() for one in (again, table)]
        assert told == [[] if row % 2 else [row]] * 2
    assert (again.unknown.sizes() == count - 1).all()


def write_label_studio(path, count):
    """Write an export of so many photos with a label of their own, and as many without answers."""
    tasks = [{"id": k, "data": {"image": f"{k}.jpg"}, "annotations": []} for k in range(2 * count)]
    for k, task in enumerate(tasks[:count]):
        choices = {"from_name": "labels", "type": "choices"}
        task["annotations"] = [{"result": [choices | {"value": {"choices": [f"Kind {k:05d}"]}}]}]
    path.write_text(json.dumps(tasks))
    return path


def test_photos_of_which_nothing_is_known_take_no_time_by_the_label(tmp_path):
    """2,000 of 4,000 photos, 2,000 labels: four million names took 10 s and 107 MB."""

    def written(count):
        return write_label_studio(tmp_path / f"{count}.json", count), count

    def work(given):
        path, count = given
        table = load(path, check_files=False)
        assert (table.present.sizes()[:count] == 1).all()
        assert (table.unknown.sizes() == [0] * count + [count] * count).all()

    assert_grows_linearly(work, written, 500)


def test_a_large_circle_is_a_short_sentence_and_a_long_word_no_long_query():
    """A vocabulary of 10,000 names in a ring was refused in 189,000 letters."""
    with pytest.raises(DataError, match="circles") as refused:
        Taxonomy(chain(9_999) | {"kind 0": "kind 9999"})
    assert len(str(refused.value)) < 1_000
    assert "(9,981 more)" in str(refused.value)
    # 12,500 letters took 16 s of processor time, and a server's 2,000 its lock for 0.1 s.
    began = time.process_time()
    for word in ("x", "date:", "-x", ":"):
        with pytest.raises(DataError):
            Query.parse(word * (100_000 // len(word)), LabelSpace(("dog", "cat")))
    assert time.process_time() - began < 20
