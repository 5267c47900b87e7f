"""The commands a person types: index, search, label, review, tag. Oracle: numpy over the logits."""

import json
import os
import re
import shlex
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from made_index import made_index
from open_indexes import open_index
from PIL import Image
from search_setup import LABELS, picture, save_model
from typed import run

from labelwise.errors import LabelwiseError
from labelwise.links import Sigmoid
from labelwise.models.run_folder import RunFolder
from labelwise.photos.index import Index, IndexFacts
from labelwise.photos.query import answer
from labelwise.queries import Query, bind, calibrate_query
from labelwise.tables import load
from labelwise.types import LabelSpace


def labelwise(*arguments):
    """Run the command and return what it printed; an error is raised as it is."""
    result = run(*arguments, catch_exceptions=False)
    return result.output, result.exit_code


def said(*arguments):
    return labelwise(*arguments)[0]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A library of twenty photos and its index, made by the command."""
    home = tmp_path_factory.mktemp("library")
    model = save_model(home / "run")
    for number in range(20):
        picture(home / "photos" / f"{number:02d}.png", number)
    shutil.copy(home / "photos" / "00.png", home / "photos" / "copy of 00.png")
    (home / "labels.csv").write_text("child,parent\ndog,pet\ncat,pet\n")
    words = ("index", home / "photos", "--model", model, "-o", home / "photos.index")
    output, status = labelwise(*words, "--taxonomy", home / "labels.csv")
    assert (status, "20 new, 1 copied" in output) == (0, True)
    return home


def test_an_index_of_no_photos_is_an_error(library, tmp_path):
    with pytest.raises(LabelwiseError, match=r"i\.index is an index of no photos: name a folder"):
        labelwise("index", tmp_path, "--model", library / "run", "-o", tmp_path / "i.index")
    assert labelwise("index", "-o", library / "photos.index")[1] == 0  # where nothing changed


@pytest.mark.parametrize(
    "words",
    [("search", "dog"), ("count", "dog"), ("audit", "dog"), ("tag", "--xmp"), ("label", "next")],
)
def test_an_index_that_was_stopped_before_its_first_photo_answers_nothing(library, tmp_path, words):
    """As a full disk leaves it: "about 0 of 0 photos match" would be no answer."""
    place, model = tmp_path / "i.index", library / "run"
    Index.create(place, RunFolder(model).spec, IndexFacts(model=str(model))).close()
    verb, word = words
    line = (verb, word, place) if verb == "label" else (verb, place, word)
    with pytest.raises(LabelwiseError, match=r"i\.index holds no photo: indexing was stopped"):
        labelwise(*line)


def by_arrays(index, text):
    """Return the log scores and probabilities of a query for every photo, without the index."""
    logits = np.stack([index.store.column(k) for k in range(len(LABELS))], axis=1).astype(float)
    bound = bind(Query.parse(text), LabelSpace(LABELS), index.taxonomy)
    columns = list(bound.columns)
    held_out = index.held_out
    pairs = Sigmoid().log_probs(held_out.logits.astype(np.float64)[:, columns])
    fitted = calibrate_query(bound, *pairs, held_out.labels[:, columns])
    scores = bound.log_scores(*Sigmoid().log_probs(logits[:, columns]))
    return scores, fitted.probs(scores)


def lines(*arguments):
    output, status = labelwise(*arguments)
    assert status == 0
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.parametrize(
    "text",
    ["dog", "dog, -beach", "(cat | dog), -beach", "-(dog & cat)", "dog<0.5, cat", "pet", "none"],
)
def test_a_search_gives_the_most_probable_photos_first(library, text):
    index = open_index(library / "photos.index")
    scores, probs = by_arrays(index, text)
    found = lines("search", index.folder, "--json", "--top", "5", "--", text)
    order = np.argsort(-scores, kind="stable")[: min(5, int((scores > -np.inf).sum()))]
    np.testing.assert_allclose([one["probability"] for one in found], probs[order], rtol=1e-5)
    paths = index.store.paths_of(order.tolist())
    assert [one["path"] for one in found] == [paths[row][0] for row in order.tolist()]


def test_one_label_is_shown_with_one_number(library, tmp_path):
    """The query's; JSON has both, by their names. Oracle: the numbers of the JSON line."""
    index, page = library / "photos.index", tmp_path / "page.html"
    (found,) = lines("search", index, "dog", "--json", "--top", "1")
    assert found["probability"] != found["labels"]["dog"]
    table, _ = labelwise("search", index, "dog", "--top", "1", "--html", page)
    assert f"{found['probability']:.3f}" in table
    assert "labels by themselves" in said("search", index, "dog, -beach", "--top", "1")
    assert page.read_text().count("data:image/jpeg;base64,") == 1
    for text in (table, page.read_text().replace("\N{NO-BREAK SPACE}", " ")):
        assert f"dog {found['labels']['dog']:.2f}" not in text
        assert "by themselves" not in text


def test_cuts_and_paths(library):
    index = open_index(library / "photos.index")
    _, probs = by_arrays(index, "dog")
    cut = float(np.median(probs)) + 1e-9
    paths = said("search", index.folder, "dog", "--at-least", cut, "--paths-only").splitlines()
    assert len(paths) == int((probs >= cut).sum())
    with pytest.raises(LabelwiseError, match="between 0 and 1"):
        labelwise("search", index.folder, "dog", "--at-least", "80")


def test_paths_are_bytes_for_other_programs_and_json_is_json_for_any_name(tmp_path, warm_commands):
    """Oracle: the names the file system holds, through processes of their own."""
    photos, model = tmp_path / "photos", save_model(tmp_path / "run")
    names = [b"plain.png", b"caf\xe9.png", "Straße.png".encode(), b"a\x7f\x1b[2J b.png"]
    for number, name in enumerate(names):
        picture(photos / os.fsdecode(name), number)
    index = tmp_path / "photos.index"
    assert labelwise("index", photos, "--model", model, "-o", index)[1] == 0

    def output(*arguments):
        done = warm_commands.run(["search", index, *arguments], tmp_path, text=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    paths = output("dog", "--paths-only").splitlines()
    assert sorted(map(os.path.basename, paths)) == sorted(names)
    assert all(map(os.path.exists, paths))
    found = [json.loads(line)["path"] for line in output("dog", "--json").splitlines()]
    assert [os.fsencode(path) for path in found] == paths
    assert output("dog", "--paths-only", "-0") == b"".join(path + b"\0" for path in paths)


def test_a_list_is_cut_with_an_estimate(tmp_path):
    """Oracle: the estimate of the index itself; a model that knows nothing cuts no list at 1 %."""
    logits = np.random.default_rng(1).normal(-1, 2, (600, 4))
    index = made_index(tmp_path / "photos.index", save_model(tmp_path / "run"), logits)
    truth = answer(open_index(index), Query.parse("dog"), wrong_about=0.3)
    output = " ".join(said("search", index, "dog", "--wrong-about", "0.3").split())
    assert f" % of this list of {truth.above} photos is wrong (95 % interval: " in output
    assert truth.statement.sentence in output
    (found,) = lines("search", index, "dog", "--wrong-about", "0.3", "--count", "--json")
    assert found["statement"] == asdict(truth.statement)
    assert truth.statement.low < truth.statement.wrong < truth.statement.high
    (none,) = lines("search", index, "dog", "--wrong-about", "0.001", "--count", "--json")
    assert none["statement"]["sentence"] == (
        "No estimate: no list is expected to be at most 0.1 % wrong; audit a list instead."
    )
    with open_index(index) as opened:  # a photo that somebody called wrong leaves the list
        opened.correct(truth.hits[0].row, {"dog": "absent"})
        fewer = answer(opened, Query.parse("dog"), wrong_about=0.3)
    assert fewer.above == truth.above - 1
    wrong = (truth.statement.wrong * truth.above - 1) / fewer.above
    assert fewer.statement.wrong == pytest.approx(wrong)


def test_any_file_can_be_looked_for_indexed_or_not(library, tmp_path):
    """Oracle: the same photo in the index, saved elsewhere to the byte and as other bytes."""
    index, photo = library / "photos.index", library / "photos" / "05.png"
    query = ("search", index, "--json", "--top", "3", "--like")
    inside = lines(*query, photo)
    shutil.copy(photo, tmp_path / "mailed.png")
    mailed = lines(*query, tmp_path / "mailed.png")
    assert [one["equal"] for one in mailed] == [True, False, False, False]
    assert (mailed[0]["path"], mailed[1:]) == (str(photo), inside)
    with Image.open(photo) as picture_of:
        picture_of.save(tmp_path / "other.bmp")  # the same pixels
    other = lines(*query, tmp_path / "other.bmp")
    assert other[0]["path"] == str(photo)
    assert other[0]["likeness"] == pytest.approx(1, abs=1e-3)
    assert not any(one["equal"] for one in other)
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(LabelwiseError, match=r"text\.png"):
        labelwise(*query, tmp_path / "text.png")
    with pytest.raises(LabelwiseError, match=r"nowhere\.png is neither in"):
        labelwise(*query, tmp_path / "nowhere.png")


def test_index_search_and_review_agree_on_a_name(library, tmp_path, monkeypatch):
    def shown(*words):
        return said(*words).partition("Next")[0]

    monkeypatch.chdir(library)
    monkeypatch.delenv("LABELWISE_INDEX", raising=False)
    by_name = shown("search", library / "photos.index", "dog, -beach")
    assert shown("search", "dog, -beach") == by_name
    assert labelwise("label", "next")[1] == 0
    dry = ("--xmp", "--dry-run")
    assert labelwise("tag", *dry) == labelwise("tag", "photos.index", *dry)
    assert "The list has 5 photos" in said("audit", "dog", "--top", "5")
    assert labelwise("search", "--like", library / "photos" / "00.png")[1] == 0
    with pytest.raises(LabelwiseError, match="give a query such as"):
        labelwise("search", "photos.index")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LabelwiseError, match=r"photos\.index is not an index"):
        labelwise("search", "dog")
    monkeypatch.setenv("LABELWISE_INDEX", str(library / "photos.index"))
    assert shown("search", "dog, -beach") == by_name


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("dog --json --paths-only", "--json does not apply: --paths-only writes nothing else"),
        ("dog --null", "--null does not apply: it ends the paths"),
        ("dog --count --html x.html", "--html does not apply: --count shows no photos"),
        ("--like x.png --at-least 0.5", "--at-least does not apply: --like ranks by likeness"),
        ("--unreadable --count", "--count does not apply: --unreadable lists files"),
        ("dgo", "unknown label 'dgo'; did you mean 'dog'"),
    ],
)
def test_what_cannot_be_meant_is_told(library, arguments, words):
    with pytest.raises(LabelwiseError, match=words):
        labelwise("search", library / "photos.index", *arguments.split())


def test_label_review_and_undo(library, tmp_path):
    folder = tmp_path / "photos.index"
    shutil.copytree(library / "photos.index", folder)
    photo = library / "photos" / "05.png"
    output = said("label", folder, photo, "dog", "-beach", "?cat")
    assert "dog: present; probability now 1.00" in output
    assert "beach: absent; probability now 0.00" in output
    first = lines("search", folder, "dog, -beach", "--json", "--top", "1")
    assert first[0]["path"] == str(photo)
    assert first[0]["labels"] == {"dog": 1, "beach": 0}
    asked = lines("label", "next", folder, "--json", "--top", "9", "--order", "uncertain")
    assert len(asked) == 9
    assert not [one for one in asked if one["path"] == str(photo) and one["label"] != "row"]
    labelwise("label", folder, photo, "--undo", "--", "dog", "beach", "cat")
    assert open_index(folder).store.corrections() == []
    with pytest.raises(LabelwiseError, match="did you mean 'dog'"):
        labelwise("label", folder, photo, "doog")
    with pytest.raises(LabelwiseError, match="is not in"):
        labelwise("label", folder, tmp_path / "other.png", "dog")


def test_corrections_become_a_table_to_train_on(library, tmp_path):
    """Oracle: the table that was written, read back by the loader of label tables."""
    folder = tmp_path / "photos.index"
    shutil.copytree(library / "photos.index", folder)
    with pytest.raises(LabelwiseError, match="no correction to export"):
        labelwise("label", folder, "-o", tmp_path / "none.csv")
    fifth, seventh, ninth = (library / "photos" / f"0{number}.png" for number in (5, 7, 9))
    labelwise("label", folder, fifth, "dog,", "-beach", "?cat")
    labelwise("label", folder, seventh, "--", "-dog", "row")
    labelwise("label", folder, seventh, "--undo", "--", "row")
    labelwise("label", folder, ninth, "--", "dog")
    index = open_index(folder)
    tested = replace(index.held_out, ids=["photos/09.png", *index.held_out.ids[1:]])
    index.use(index.spec, tested)  # 09.png is one of the model's test photos
    out = tmp_path / "corrections.csv"
    output = said("label", folder, "-o", out)
    assert "3 labels of 2 photos" in output
    assert "left out, because the model is tested on them: 1" in output
    table = load(out)
    labels, observed = table.targets()
    names, space = [Path(name).name for name in table.ids], table.space.names
    noted = {(names[row], space[k]): bool(labels[row, k]) for row, k in np.argwhere(observed)}
    assert noted == {("05.png", "dog"): True, ("05.png", "beach"): False, ("07.png", "dog"): False}
    assert set(table.split) == {"train"}
    assert table.images.read(0).size == (32, 24)
    assert table.group is None
    sites = tmp_path / "sites.csv"
    sites.write_text(f"path,site\n{seventh},brook\n")
    for by, groups in (
        (("--by", "folder"), {str(library / "photos")}),
        (("--by", "site", "--table", sites), {"brook", "(not in the table)"}),
    ):
        labelwise("label", folder, "-o", out, "--overwrite", *by)
        assert set(load(out).group) == groups
    for words, sentence in (
        ((fifth, "dog", "--by", "folder"), "--by does not apply: it groups what -o writes"),
        ((fifth, "dog", "-o", tmp_path / "x.csv"), "leave out photo"),
        ((), "name a photo"),
    ):
        with pytest.raises(LabelwiseError, match=sentence):
            labelwise("label", folder, *words)


def test_an_unreadable_file_is_listed_and_tags_are_written_and_undone(library, tmp_path):
    shutil.copytree(library / "photos", tmp_path / "photos")
    folder = tmp_path / "photos.index"
    (tmp_path / "photos" / "bad.png").write_bytes(b"")
    words = ("index", tmp_path / "photos", "--model", library / "run", "-o", folder)
    assert "1 unreadable" in said(*words)
    output = said("search", folder, "--unreadable")
    assert ("bad.png" in output, "empty" in output) == (True, True)
    before = sorted(path.name for path in (tmp_path / "photos").iterdir())
    output = said("tag", folder, "--xmp", "--dry-run")
    assert "dry run, nothing was written; without --dry-run, side-cars: " in output
    assert re.search(r"^label +photos\n", output, re.M)
    assert sorted(path.name for path in (tmp_path / "photos").iterdir()) == before
    labelwise("tag", folder, "--xmp")
    assert list((tmp_path / "photos").glob("*.png.xmp"))
    labelwise("tag", folder, "--undo")
    assert sorted(path.name for path in (tmp_path / "photos").iterdir()) == before
    for words, sentence in (
        ("", "say where the labels go"),
        ("--xmp --per-label", "--per-label does not apply: it is for a guarantee"),
        ("--xmp --confidence 0.9", "--confidence does not apply: it is for a guarantee"),
    ):
        with pytest.raises(LabelwiseError, match=sentence):
            labelwise("tag", folder, *words.split())


@pytest.mark.parametrize(
    ("folder", "out", "words"),
    [
        ("gone", "new.index", "is not a folder"),
        ("photos", "photos", "is not an index and holds other files, such as '00.png'"),
    ],
)
def test_an_index_that_cannot_be_made_leaves_nothing(library, tmp_path, folder, out, words):
    shutil.copytree(library / "photos", tmp_path / "photos")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(LabelwiseError, match=words):
        labelwise("index", tmp_path / folder, "--model", library / "run", "-o", tmp_path / out)
    with pytest.raises(LabelwiseError, match="a new index needs a model"):
        labelwise("index", tmp_path / "photos", "-o", tmp_path / "new.index")
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_a_model_that_changed_since_is_said_with_the_way_out(tmp_path):
    """Oracle: the way out, typed as it is said, after which nothing is said any more."""
    model, index = save_model(tmp_path / "run"), tmp_path / "photos.index"
    picture(tmp_path / "photos" / "a.png", 1)
    labelwise("index", tmp_path / "photos", "-m", model, "-o", index)
    commands = [("search", index, "dog"), ("count", index, "dog"), ("audit", index, "dog")]
    commands += [("search", index, "--like", tmp_path / "photos" / "a.png")]
    commands += [("tag", index, "--xmp", "--dry-run")]

    def warnings(commands=commands[:1]):
        complaints = [run(*command).stderr.splitlines() for command in commands]
        return {lines[0].removeprefix("labelwise: ") for lines in complaints if lines}

    assert warnings() == set()
    spec = RunFolder(model).spec
    for change, words in (
        ({"versions": {"labelwise": "9"}}, None),
        ({"rule": {"kind": "threshold", "value": 0.25}}, "another calibration, rule or promise"),
        ({"weights_sha256": 64 * "0"}, "other weights than those that scored the photos"),
    ):
        spec.model_copy(update=change).save(model / "model.json")
        if words is None:
            assert warnings() == set()
            continue
        (told,) = warnings(commands)
        assert words in told
        page = tmp_path / "page.html"
        labelwise("search", index, "dog", "--html", page, "--overwrite")
        assert words in page.read_text()
        count = run("search", index, "dog", "--count", "--json")
        assert json.loads(count.stdout)["caution"] == told
        way = shlex.split(re.search("`labelwise (.*)`", told)[1])
        if "--rebuild" in way:
            save_model(model, seed=1)
        labelwise(*way)
        assert warnings() == set()
