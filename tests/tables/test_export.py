"""Tables written out. Oracles: what is read back, counts made by hand, faults made one by one."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from labelwise.cli.app import data_app
from labelwise.errors import DataError, LabelwiseError, SettingsError
from labelwise.pictures import FileImages
from labelwise.tables import LabelTable, load, posterior, scenes
from labelwise.tables.checks import count_mismatches, describe, fingerprint
from labelwise.tables.export import export, read_feature_file, write_features

NAMES = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=6)
HEADERS = {"path", "file_name", "filename", "file", "id", "image", "labels", "unknown", "split"}
HEADERS |= {"group", "soft", "shares"}  # a column with one of these names is not a label's


@st.composite
def tables(draw):
    def lists(values, size):
        return st.lists(values, min_size=size, max_size=size)

    plain = NAMES.filter(lambda n: "|" not in n and n != "*")
    names = draw(st.lists(plain, min_size=1, max_size=4, unique=True))
    rows = draw(st.integers(1, 6))
    states = np.array(draw(lists(lists(st.sampled_from([0, 1, 2, 0.3, 0.7]), len(names)), rows)))
    split = draw(st.none() | lists(st.sampled_from(["train", "val"]), rows))
    images = FileImages("", [f"{row}.jpg" for row in range(rows)])
    if draw(st.booleans()):  # without soft labels
        states = np.rint(states)
    return LabelTable.from_arrays(names, images, states, states != 2, split=split)


def one_photo(names, *states):
    states = np.array([states])
    return LabelTable.from_arrays(names, FileImages("", ["0.jpg"]), states == 1, states != 2)


def all_open(table):
    """Return the rows (N, 1) of which every label that is not stated is unknown."""
    labels, known = table.targets()
    known = np.ones(labels.shape, bool) if known is None else known
    return ((labels > 0) | ~known).all(1, keepdims=True) & ~known.all(1, keepdims=True)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=tables())
@example(one_photo(["labels"], 0))
@example(one_photo(["labels", "a,b"], 1, 1))
@example(one_photo(["id", "[a"], 0, 1))
@example(one_photo(["dog", "never", "x|y", "a"], 1, 0, 0, 2))
@example(one_photo(["tench, Tinca tinca", "['a']", "x;y", "dog"], 1, 1, 0, 2))  # of ImageNet
def test_what_is_written_is_read_back(tmp_path, suffix, table):
    path = tmp_path / f"t.{suffix}"
    named = table.targets()[0].any(0) | ((table.unknown.dense()) & ~all_open(table)).any(0)
    names = list(table.space.names)
    needs_names = table.soft is not None or HEADERS & set(names)
    if suffix != "parquet" and not named.all() and needs_names:
        told = r"none can be called '\w+'; write" if table.soft is None else "which only"
        with pytest.raises(DataError, match=rf"{told} \.parquet"):
            export(table, path)
        return
    export(table, path)
    for given_names in [names] if needs_names else [names, None]:
        again = load(path, names=given_names, check_files=False, means_none=[])
        columns = [again.space.names.index(name) for name in names]
        assert len(again.space) == len(names)
        for before, after in zip(table.targets(), again.targets(), strict=True):
            np.testing.assert_array_equal(before, after if after is None else after[:, columns])
        np.testing.assert_array_equal(table.unlabelled(), again.unlabelled())
        if table.split is not None:
            np.testing.assert_array_equal(table.split, again.split)
    assert not list(tmp_path.glob(".*"))


def test_paths_are_relative_to_the_new_file(folder):
    folder.pictures("photos/a.jpg", "photos/b.jpg")
    table = load(folder.text("photos/t.csv", "path,labels\na.jpg,x\nb.jpg,y\n"))
    export(table, folder.path / "lists" / "t.csv")
    assert list(load(folder.path / "lists" / "t.csv").ids) == ["../photos/a.jpg", "../photos/b.jpg"]


def test_scenes_go_to_parquet_without_loss(tmp_path):
    table = scenes(3, 1, 0)
    export(table, tmp_path / "s.parquet")
    again = load(tmp_path / "s.parquet")
    for row, pixels in enumerate(table.images.pixels):
        np.testing.assert_array_equal(np.asarray(again.images.read(row)), pixels)


def test_what_cannot_be_written_is_said(folder):
    folder.pictures("a.jpg")
    table = load(folder.text("t.jsonl", '{"path": "a.jpg", "labels": ["a|b", "date"]}'))
    for written_table, name, sentence in (
        (table, "u.csv", r"'a\|b' cannot be in text that is split on '\|'"),
        (table, "u.xlsx", r"must end in \.csv"),
        (scenes(2, 0, 0), "u.csv", "not single files"),
        (posterior(2, 1, 1).table, "u.parquet", r"holds features, and is written as \.npz"),
        *(
            (one_photo((name, "date"), 1, 1), "u.jsonl", "be in a list of labels")
            for name in (" x", "x ", "*")
        ),
        *(
            (one_photo((name,), 1), "u.parquet", "in a list of labels")
            for name in (" x", "x ", "*")
        ),
    ):
        with pytest.raises(DataError, match=sentence):
            export(written_table, folder.path / name)
    with pytest.raises(LabelwiseError, match="cannot write"):
        export(table, folder.text("file", "x") / "u.parquet")


def five_photos():
    states = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 0], [2, 1, 0], [2, 2, 2]])
    images = FileImages("", [f"{row}.jpg" for row in range(5)])
    columns = {"split": ["train", "train", "train", "val", "val"], "group": list("aabbc")}
    return LabelTable.from_arrays("xyz", images, states == 1, states != 2, **columns)


def test_describe_counts_by_hand():
    table = five_photos()
    facts = describe(table)
    assert (facts.images, facts.zero_label, facts.unlabelled, facts.partly_known) == (5, 1, 1, 1)
    assert (facts.groups, facts.splits) == (3, {"train": 3, "val": 2})
    assert (facts.labels_per_image, facts.unknown_share) == ([2, 1, 2], 4 / 15)
    assert (facts.mean_labels, facts.never_present) == (1.0, ["z"])
    x, y, z = facts.labels
    assert (x.present, x.absent, x.unknown, x.share) == (2, 1, 2, 2 / 3)
    assert (y.present, y.share, z.present, z.share) == (3, 3 / 4, 0, 0.0)
    (pair,) = facts.pairs
    assert (pair.first, pair.second, pair.images, round(pair.lift, 9)) == ("x", "y", 2, 1.666666667)
    assert count_mismatches(table, {"train": 3, "val": 2}, 3) == []
    told = ["train has 3 images, the whole set has 9", "there are 3 labels, the whole set has 4"]
    assert count_mismatches(table, {"train": 9}, 4) == told


def test_pairs_are_those_of_a_matrix_product():
    labels = np.random.default_rng(0).random((300, 9)) < 0.4
    images = FileImages("", [f"{row}.jpg" for row in range(300)])
    facts = describe(LabelTable.from_arrays("abcdefghi", images, labels))
    together = labels.astype(int).T @ labels
    pairs = itertools.combinations(range(9), 2)
    expected = sorted((-together[r, c], "abcdefghi"[r], "abcdefghi"[c]) for r, c in pairs)[:20]
    assert [(-pair.images, pair.first, pair.second) for pair in facts.pairs] == expected


def run(*arguments):
    return CliRunner().invoke(data_app, [str(argument) for argument in arguments])


def test_observing_and_naming_columns_on_the_command_line(folder):
    folder.pictures(*(f"{row}.jpg" for row in range(20)))
    lines = (f"{row}.jpg,{'x|y' if row % 3 else ''}" for row in range(20))
    file = folder.text("t.csv", "\n".join(["path,labels", *lines]))
    shown = run("describe", file).output
    assert "zero-label (reviewed, none of them): 35.0%" in shown
    single = folder.path / "single.jsonl"
    assert run("observe", file, "-o", single, "--single-positive").exit_code == 0
    assert json.loads(run("describe", single, "--json").output)["unlabelled"] > 0
    assert '"unknown": ["*"]' in single.read_text()
    assert run("observe", file, "-o", single, "--flip-absent", "1").exit_code == 0
    assert json.loads(run("describe", single, "--json").output)["labels_per_image"] == [0, 0, 20]
    tagged = folder.text("tagged.csv", "photo,tags\n0.jpg,x\n1.jpg,y\n")
    named = ("--set", "columns.path=photo", "--set", "columns.labels=tags", "--set", "names=[y, x]")
    found = json.loads(run("describe", tagged, "--json", *named).output)
    assert [label["name"] for label in found["labels"]] == ["y", "x"]


def test_the_command_line_says_what_is_wrong(folder):
    folder.pictures("cat/1.jpg", "dog/2.jpg")
    result = run("observe", folder.path, "-o", folder.path / "x.csv")
    assert isinstance(result.exception, SettingsError)
    strict = run("describe", f"plantnet:{folder.path}", "--strict")
    assert "the whole set has 243,916" in str(strict.exception)
    assert isinstance(run("describe", folder.path, "--set", "x").exception, SettingsError)
    shares = run("split", folder.path, "-o", folder.path / "x.csv", "--shares", "half")
    assert "train=.8,val=.2" in str(shares.exception)


# Features that are there already: .npz files


def arrays(**changed):
    given = {
        "features": np.random.default_rng(0).normal(size=(6, 4)),
        "labels": np.array([[1, 0], [0, 0], [1, 1], [0, 1], [1, 0], [0, 0]], np.uint8),
        "label_names": np.array(["cat", "dog"]),
        "observed": np.array([[1, 1], [1, 0], [1, 1], [0, 1], [1, 1], [1, 1]], bool),
        "split": np.array(["train", "Training", "train", "valid", "test", "test"]),
        "ids": np.array(list("abcdef")),
    }
    return {key: value for key, value in (given | changed).items() if value is not None}


def written(folder, **changed):
    np.savez(folder / "rows.npz", **arrays(**changed))
    return folder / "rows.npz"


def test_a_file_is_read_as_it_stands_and_written_back(tmp_path):
    given = arrays()
    table = load(written(tmp_path))
    assert (table.space.names, list(table.ids)) == (("cat", "dog"), list("abcdef"))
    assert table.split.tolist() == ["train", "train", "train", "val", "test", "test"]
    np.testing.assert_allclose(table.images.features, given["features"], rtol=1e-6)
    labels, observed = table.targets()
    np.testing.assert_array_equal(observed, given["observed"])
    np.testing.assert_array_equal(labels[observed], given["labels"][observed])
    write_features(table, tmp_path / "again.npz")
    assert fingerprint(load(f"features:{tmp_path / 'again.npz'}")) == fingerprint(table)
    with pytest.raises(DataError, match="holds images"):
        write_features(five_photos(), tmp_path / "rows.npz")
    soft = np.full((6, 2), 0.25)
    table = read_feature_file(written(tmp_path, observed=None, split=None, ids=None, labels=soft))
    assert (table.split, table.has_unknown()) == (None, False)
    np.testing.assert_allclose(table.targets()[0], soft)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"label_names": None}, "there is no array 'label_names'"),
        (
            {"features": np.zeros((6, 4, 2))},
            r"features .* \(N, D\) or \(N, D, h, w\), got",
        ),
        ({"features": np.array([["x"] * 4] * 6)}, "features must be numbers .*, got <U1"),
        ({"features": np.full((6, 4), np.nan)}, "row 1: features must be finite"),
        ({"labels": np.zeros((6, 3))}, r"labels must be numbers \(6, 2\), got float64 \(6, 3\)"),
        ({"labels": np.full((6, 2), 2)}, r"labels must lie in \[0, 1\]"),
        ({"labels": np.full((6, 2), -0.5)}, r"labels must lie in \[0, 1\]"),
        ({"observed": np.ones((5, 2), bool)}, r"observed must be numbers \(6, 2\)"),
        ({"split": np.array(["train"] * 5 + ["tune"])}, "split must be train, val or test"),
        ({"ids": np.arange(6) / 2}, r"ids must be texts or integers \(6,\)"),
        ({"features": np.array([{}] * 6, object)}, "Object arrays cannot be loaded"),
    ],
)
def test_a_fault_is_named(tmp_path, changed, message):
    path = written(tmp_path, **changed)
    with pytest.raises(DataError, match=message):
        read_feature_file(path)


@pytest.mark.parametrize("content", [b"PK\x03\x04 cut off", b"", b"\x93NUMPY\x01\x00 cut off", 3])
def test_a_file_that_is_no_archive_is_named(tmp_path, content):
    with (tmp_path / "rows.npz").open("wb") as stream:
        np.save(stream, np.zeros(3)) if content == 3 else stream.write(content)
    with pytest.raises(DataError, match=r"rows\.npz: not a readable \.npz file"):
        load(tmp_path / "rows.npz")
