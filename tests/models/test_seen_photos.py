"""Photos that a run was fitted on are known by bytes or look. Oracle: how the data were made."""

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from forged import facts_of
from open_indexes import open_index
from PIL import Image
from tiny_predictor import NAMES, make
from tiny_run import tiny_settings, tiny_table
from typed import must_run, refused

from labelwise.decide import Threshold, TopK, WithParents
from labelwise.errors import CheckpointError, LabelwiseError, SettingsError
from labelwise.evaluation import Evaluation
from labelwise.exports.onnx_file import export_onnx
from labelwise.learn.predictor import Predictor
from labelwise.links import Consistent, Sigmoid, Softmax, consistent_log_probs
from labelwise.models import ModelSpec
from labelwise.models.graph_model import OnnxModel
from labelwise.models.run_folder import SEEN_FILE, RunFolder
from labelwise.models.seen_photos import HeldOutCopies, SplitCopies, seen_held_out, seen_photos
from labelwise.photos.query import answer
from labelwise.pictures import FeatureRows
from labelwise.predictions import Predictions
from labelwise.queries import Query
from labelwise.tables import load, obey_taxonomy
from labelwise.taxonomy import LabelTree, Taxonomy
from labelwise.training.run import train
from labelwise.training.settings import read_settings

SPLITS = ("train", "train", "train", "val", "test", "test")


def draw(path, seed):
    path.parent.mkdir(exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def but_for_a_pixel(path):
    with Image.open(path) as picture:
        picture.putpixel((0, 0), (1, 2, 3))
        return picture.copy()


def write_table(path, rows):
    lines = ["path,labels,split", *(f"{name},{labels},{split}" for name, labels, split in rows)]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def run(tmp_path):
    """A run on six photos, of which four fitted it."""
    make().save(tmp_path / "run")
    for row in range(len(SPLITS)):
        draw(tmp_path / "own" / f"{row}.png", row)
    rows = [(f"{row}.png", ("dog", "cat")[row % 2], split) for row, split in enumerate(SPLITS)]
    write_table(tmp_path / "own" / "t.csv", rows)
    (tmp_path / "run" / "settings.yaml").write_text(f"data: {tmp_path / 'own' / 't.csv'}\n")
    return tmp_path / "run"


@pytest.fixture
def new(tmp_path, run):
    """Two photos that fitted the run, renamed, one of its test split, and three others."""
    (tmp_path / "new").mkdir()
    for source, name in ((0, "a"), (3, "b"), (4, "c")):
        shutil.copy(tmp_path / "own" / f"{source}.png", tmp_path / "new" / f"{name}.png")
    for seed, name in ((50, "d"), (51, "e")):
        draw(tmp_path / "new" / f"{name}.png", seed)
    but_for_a_pixel(tmp_path / "own" / "1.png").save(tmp_path / "new" / "f.png")
    rows = [(f"{n}.png", ("dog", "cat")[k % 2], "test") for k, n in enumerate("abcdef")]
    write_table(tmp_path / "new" / "t.csv", rows)
    return tmp_path / "new" / "t.csv"


def evaluated(*words):
    return Evaluation.from_json(must_run("evaluate", *words, "--query-length", 0, "--json").stdout)


def test_photos_the_run_was_fitted_on_are_counted(run, new):
    found = seen_photos(run, load(new))
    assert found.rows.tolist() == [True, True, False, False, False, False]
    assert found.near.tolist() == [False, False, False, False, False, True]
    whole = evaluated(run, "--data", new)
    assert whole.data.rows == 6
    for told, harm in (
        ("are ones that the model was fitted on", "are"),
        ("look like ones that the model was fitted on (near copies)", "may be"),
    ):
        assert any(f"{told}: the figures {harm} too good; --without-" in n for n in whole.notes)


def test_predict_says_which_photos_trained_the_model(run, new):
    """Not counted: a test photo, a near copy, one of as many bytes, and photos that are new."""
    content = bytearray((run.parent / "own" / "1.png").read_bytes())
    content[-1] ^= 1  # of the check sum of the end, which no reader looks at
    (new.parent / "g.png").write_bytes(content)
    said = "2 of 7 photos are ones that the model was trained on"
    assert must_run("predict", run, new.parent).stdout.count(said) == 1
    (new.parent / "b.png").unlink()
    assert "1 of 6 photos is one that the model" in must_run("predict", run, new.parent).stdout
    assert "trained on" not in must_run("predict", run, new.parent / "c.png").stdout
    shutil.rmtree(run.parent / "own")  # it cannot be known any more
    assert "trained on" not in must_run("predict", run, new.parent).stdout


def test_they_are_left_out_when_asked(run, new):
    """The figures are those of a table that never had them."""
    found = evaluated(run, "--data", new, "--without-training-photos")
    assert "2 photos that the model was fitted on left out" in found.notes
    assert "1 that look like such photos left out (near copies)" in found.notes
    rest = new.with_name("rest.csv")
    lines = new.read_text().splitlines()
    rest.write_text("\n".join([lines[0], *lines[3:6]]) + "\n")
    alone = evaluated(run, "--data", rest)
    assert found.data.rows == alone.data.rows == 3
    assert found.ranking == alone.ranking
    assert found.final == alone.final


def test_what_is_kept_with_the_run_is_enough(run, new):
    """Once hashed, the photos may be gone; a damaged file is made anew, or said to be missing."""
    assert seen_photos(run, load(new)).count == 2
    kept = (run / SEEN_FILE).read_bytes()
    (run / SEEN_FILE).write_bytes(kept[:50])
    assert seen_photos(run, load(new)).count == 2
    assert (run / SEEN_FILE).read_bytes() == kept
    own = new.parents[1] / "own"
    shutil.rmtree(own)
    assert seen_photos(run, load(new)).count == 2
    (run / SEEN_FILE).unlink()
    found = seen_photos(run, load(new))
    assert found.count == 0
    assert str(own) in found.why_not
    notes = evaluated(run, "--data", new).notes
    assert any("fitted on these photos is not known" in note for note in notes)
    words = refused("evaluate", run, "--data", new, "--without-training-photos")
    assert "cannot compare them" in words
    assert "leave it out" in words


def test_nothing_new_is_an_error(run, new):
    own = new.parents[1] / "own" / "t.csv"
    words = refused("evaluate", run, "--data", own, "--split", "train", "--without-training-photos")
    assert "fitted on every photo" in words
    notes = evaluated(run, "--data", own, "--split", "test").notes
    assert not any("fitted" in note for note in notes)


def test_near_copies_among_the_held_out_photos_are_named_and_left_out(run, tmp_path):
    """The figures are those of the other photo alone; those with the copy stand in the notes."""
    own = tmp_path / "own"
    but_for_a_pixel(own / "1.png").save(own / "4.png")
    ids = [name for name in load(own / "t.csv").ids if Path(name).stem in ("4", "5")]
    logits = torch.tensor([[2.0, -1.0, -3.0], [-1.0, 1.0, -3.0]])
    rows = Predictions(ids, logits, (logits > 0).float(), None, NAMES, "test", Sigmoid())
    rows.save(run / "predictions" / "test.parquet")
    assert seen_held_out(run, ids).near.tolist() == [True, False]
    whole, rest = evaluated(run), evaluated(run, "--without-training-photos")
    assert (whole.data.rows, rest.data.rows) == (2, 1)
    assert "1 that look like such photos left out (near copies)" in rest.notes
    assert any(note.startswith("near copies: ") and "4.png" in note for note in rest.notes)
    (with_them,) = [note for note in rest.notes if note.startswith("with them: ")]
    known = [f"{one.name} {one.value:.4f}" for one in whole.headline if one.value is not None]
    assert with_them == f"with them: {', '.join(known)}"
    assert len(known) > 2
    assert rest.final != whole.final


# Held-out photos that look like a training photo are counted when a run ends.

SIDE = 40


def picture(seed):
    coarse = np.random.default_rng(seed).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def write_copies(folder, copied):
    """Write 24 train, 8 val and 8 test photos; those ``copied`` are rows 0, 1, ... made smaller."""
    lines = ["path,labels,split"]
    for row in range(40):
        source = copied.index(row) if row in copied else None
        shown = picture(row) if source is None else picture(source).resize((32, 32))
        shown.save(folder / f"{row}.png")
        split = "train" if row < 24 else "val" if row < 32 else "test"
        lines.append(f"{row}.png,{('dog', 'cat', 'dog|cat', '')[row % 4]},{split}")
    (folder / "t.csv").write_text("\n".join(lines) + "\n")
    return str(folder / "t.csv")


def copies_in(evaluation):
    return [note for note in evaluation.notes if "of a training photo" in note]


def test_copies_of_training_photos_are_said_now_and_later(tmp_path):
    data, folder = write_copies(tmp_path, copied=[25, 33, 38]), tmp_path / "run"
    flags = {"recipe__epochs": 1, "augment": "none", "val_share": 0.0, "image_size": SIDE}
    settings = partial(tiny_settings, data=data, backbone="small-cnn", **flags)
    (said,) = copies_in(train(settings(), folder).evaluation)
    assert (
        "3 held-out photos are copies of a training photo (1 of 8 in val, 2 of 8 in test)" in said
    )
    assert "First: 25.png is a copy of 0.png; " in said
    kept = json.loads((folder / "predictions" / "near-copies.json").read_text())
    assert {name: split[:2] for name, split in kept.items()} == {"val": [1, 8], "test": [2, 8]}
    assert {tuple(pair[:2]) for pair in kept["test"][2]} == {
        ("33.png", "1.png"),
        ("38.png", "2.png"),
    }
    again = train(settings(rule="top-1"), folder)  # fitted again, without a look at photos
    assert again.was_finished
    assert copies_in(again.evaluation) == [said]
    must_run("evaluate", folder, "-o", tmp_path / "report")
    assert copies_in(Evaluation.load(tmp_path / "report" / "evaluation.json")) == [said]
    must_run("evaluate", folder, "--split", "train", "-o", tmp_path / "of-train")
    assert copies_in(Evaluation.load(tmp_path / "of-train" / "evaluation.json")) == []


def test_a_damaged_file_of_copies_is_named(tmp_path):
    HeldOutCopies({"val": SplitCopies(0, 4), "test": SplitCopies(1, 2000)}).save(tmp_path)
    (tmp_path / "predictions" / "near-copies.json").write_text("[1]")
    with pytest.raises(CheckpointError, match=r"near-copies\.json cannot be read"):
        HeldOutCopies.of_run(tmp_path)


@pytest.mark.parametrize(("features", "said"), [(300, {"val": (1, 16), "test": (2, 16)}), (6, {})])
def test_features_tell_copies_where_there_are_no_photos(tmp_path, features, said):
    """Of few features nothing is said: different photos have almost the same ones by chance."""
    table = tiny_table(features=features)
    x = 10 + np.maximum(table.images.features, 0)  # far from 0, as those of a network are
    of = {name: np.flatnonzero(table.split == name) for name in ("train", "val", "test")}
    noise = np.random.default_rng(1).normal(size=x.shape) * 0.05
    x[[of["val"][3], of["test"][0], of["test"][5]]] = (x + noise)[of["train"][:3]]
    train(tiny_settings(), tmp_path, table=replace(table, images=FeatureRows(x.astype("f4"))))
    found = HeldOutCopies.of_run(tmp_path).splits
    assert {name: (split.copies, split.photos) for name, split in found.items()} == said


# A taxonomy goes where the model goes. Oracles: its rules, the projection, P(none) by hand.

TREE_NAMES = ("animal", "dog", "mammal", "sofa")
KINDS = Taxonomy({"dog": "mammal", "mammal": "animal", "animal": "thing"})  # thing is no label
PARENTS = (-1, 2, 0, -1)
CHILDREN = ((1, 2), (2, 0))
PHOTOS = 90


def violated(values):
    return np.stack([values[:, child] > values[:, parent] for child, parent in CHILDREN])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder with small photos, a table of their labels, a taxonomy, and a trained run.

    Of one photo in three only the dog is known; that it is an animal follows.
    """
    folder = tmp_path_factory.mktemp("kinds")
    rng = np.random.default_rng(0)
    lines = ["path,labels,unknown,split"]
    for row in range(PHOTOS):
        colour = tuple(rng.integers(0, 255, 3).tolist())
        dog, sofa = colour[0] > 150, colour[1] > 120
        mammal = dog or colour[2] > 200
        animal = mammal or rng.random() < 0.1
        there = dict(zip(TREE_NAMES, (animal, dog, mammal, sofa), strict=True))
        unknown = [] if row % 3 or not dog else ["animal", "mammal"]
        labels = "|".join(name for name in TREE_NAMES if there[name] and name not in unknown)
        split = ("train", "train", "train", "val", "test")[row % 5]
        Image.new("RGB", (16, 16), colour).save(folder / f"{row}.png")
        lines.append(f"{row}.png,{labels},{'|'.join(unknown)},{split}")
    (folder / "photos.csv").write_text("\n".join(lines) + "\n")
    (folder / "kinds.csv").write_text("thing|animal|mammal|dog\n")
    settings = {"data": str(folder / "photos.csv"), "taxonomy": str(folder / "kinds.csv")}
    settings |= {"image_size": 16, "batch_size": 16, "recipe.epochs": 1, "calibrate": "platt"}
    settings |= {"hardware.accelerator": "cpu"}
    train(read_settings(None, settings), folder / "run")
    return folder


def test_link_and_rule_by_hand():
    """Two rows by hand: the mean of two log-odds, and one that stays."""
    logits = torch.tensor([[0.0, 2.0, 4.0, -1.0], [3.0, -1.0, 1.0, 1.0]], dtype=torch.float64)
    link = Consistent(Sigmoid(), PARENTS)
    expected = torch.tensor([[2.0, 2.0, 2.0, -1.0], [3.0, -1.0, 1.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(link.log_odds(logits), expected)
    torch.testing.assert_close(link(logits[0]), link(logits)[0])
    p = torch.special.expit(expected)
    none = ((1 - p[:, 0]) * (1 - p[:, 3])).log()
    torch.testing.assert_close(link.log_none(logits), none)
    softmax = Consistent(Softmax(), PARENTS)
    assert torch.equal(softmax.log_none(logits), Softmax().log_none(logits))
    rule = WithParents(Threshold((0.9, 0.5, 0.9, 0.5)), PARENTS)
    first, second = [True, True, True, False], [True, False, False, True]
    for probs in (p, p.numpy()):
        assert np.asarray(rule(probs)).tolist() == [first, second]
    one = WithParents(TopK(1), PARENTS)(np.array([[0.1, 0.4, 0.2, 0.3]]))
    assert np.asarray(one).tolist() == [first]
    assert rule.thresholds(4) == (0.9, 0.5, 0.9, 0.5)


def test_parents_that_make_no_tree_are_refused():
    odd = [((1, 0), "circles"), ((0,), "circles")]
    for parents, sentence in odd + [((one, -1), "must be columns") for one in (2, -2, 0.5)]:
        for build in (LabelTree, lambda parents: WithParents(TopK(1), parents)):
            with pytest.raises((ValueError, LabelwiseError), match=sentence):
                build(parents)
    for use in (Consistent(Sigmoid(), PARENTS), WithParents(TopK(1), PARENTS)):
        with pytest.raises(ValueError, match="the taxonomy is of 4 labels, got 5 columns"):
            use(torch.zeros(1, 5))


def test_a_trained_model_obeys_its_taxonomy(place):
    model = Predictor.load(place / "run")
    assert model.taxonomy == KINDS
    saved = RunFolder(place / "run").predictions("train")
    assert saved.observed is None  # what was unknown follows from the dogs
    assert not violated(saved.labels).any()
    link = model.link
    assert isinstance(link, Consistent)
    assert isinstance(model.rule, WithParents)
    inner = link.link.log_probs(torch.as_tensor(saved.logits).double())
    assert violated((inner[0] - inner[1]).numpy()).any(), "nothing to make consistent"
    expected = consistent_log_probs(*inner, LabelTree(PARENTS))[0]
    found = model.predict([place / f"{row}.png" for row in range(PHOTOS)])
    assert not violated(found.probs).any()
    assert not violated(found.sets).any()
    rows = [int(name.removesuffix(".png")) for name in saved.ids]
    np.testing.assert_allclose(found.log_p[rows], expected, rtol=1e-4, atol=1e-5)


def test_figures_by_level_come_with_the_model(place):
    saved = RunFolder(place / "run").evaluation
    assert [(one.level, one.labels) for one in saved.levels] == [(1, 2), (2, 1), (3, 1)]
    assert "made consistent" in saved.calibrator
    words = ("evaluate", place / "run", "--json", "--query-length", "0")
    own = ("--taxonomy", place / "kinds.csv")
    for more in ((), own, ("--data", place / "photos.csv", "--split", "test")):
        found = json.loads(must_run(*words, *more).output)
        assert found["after"]["log_loss"] == pytest.approx(saved.after.log_loss, rel=1e-5)
        assert [one["labels"] for one in found["levels"]] == [2, 1, 1]
        assert not [note for note in found["notes"] if "likelier" in note]


def test_another_taxonomy_is_refused(place):
    (place / "other.csv").write_text("animal|dog\n")
    for verb in (("evaluate", place / "run"), ("predict", place / "run", place / "0.png")):
        told = refused(*verb, "--taxonomy", place / "other.csv")
        assert "trained with another taxonomy" in told
    must_run("predict", place / "run", place / "0.png", "--taxonomy", place / "kinds.csv")


def test_an_exported_model_obeys(place):
    images = load(place / "photos.csv").images
    model, spec = Predictor.load(place / "run"), RunFolder(place / "run").spec
    export_onnx(model, spec, place / "m.onnx", images, [0, 1])
    file = OnnxModel.load(place / "m.onnx")
    assert file.facts.taxonomy == KINDS
    pixels = np.stack([file.pixels(np.asarray(images.read(row))) for row in range(PHOTOS)])
    answers = file.answers(pixels)
    assert not violated(answers.probability).any()
    assert not violated(answers.label).any()
    result = must_run("evaluate", place / "m.onnx", "--data", place / "photos.csv", "--json")
    assert [one["level"] for one in json.loads(result.output)["levels"]] == [1, 2, 3]


def test_an_index_has_the_taxonomy_of_its_model_and_so_has_what_people_say(place):
    must_run("index", place, "-m", place / "run", "-o", place / "photos.index")
    index = open_index(place / "photos.index")
    assert index.taxonomy == KINDS
    probs = np.exp(index.log_probs(slice(None)))
    assert not violated(probs).any()
    for column in range(4):
        np.testing.assert_allclose(np.exp(index.odds(column).log_p), probs[:, column], rtol=1e-5)
    sets = index.sets(slice(None))
    assert not violated(sets).any()
    assert np.array_equal(sets, np.stack([index.given(column) for column in range(4)], 1))
    # An animal is asked for by itself, which its kinds are part of; a thing is an animal.
    alone = np.exp(index.odds(0).log_p)
    best = np.sort(alone)[::-1][:5]
    for query in ("animal", "thing"):
        hits = answer(index, Query.parse(query, index.space, index.taxonomy), top=5).hits
        assert alone[[one.row for one in hits]] == pytest.approx(best)
    index.correct(0, {"dog": "present"})
    index.correct(1, {"animal": "absent"})
    index.correct(2, {"dog": "present", "animal": "absent"})  # nonsense, and it stands
    log_p = index.log_probs([0, 1, 2], refit=False)
    assert (log_p[0, :3] == 0).all()
    assert np.isneginf(log_p[1, :3]).all()
    assert (log_p[2, 1], log_p[2, 0]) == (0, -np.inf)
    assert log_p[2, 2] == 0
    sets = index.sets([0, 1, 2], index.spec.made_rule)
    assert sets[:, :3].tolist() == [[True] * 3, [False] * 3, [False, True, True]]
    for column in range(3):
        alone = index.odds(column, refit=False).log_p
        np.testing.assert_array_equal(alone[:2], log_p[:2, column])
    index.store.close()


def tiny(folder, text="a|b|c\n", **flags):
    (folder / "kinds.csv").write_text(text)
    return tiny_settings(taxonomy=str(folder / "kinds.csv"), rule="0.5", **flags)


def obedient():
    return obey_taxonomy(tiny_table(), Taxonomy({"b": "a", "c": "b"})).table


def test_another_taxonomy_needs_no_training_if_no_label_changes(tmp_path):
    """Oracle: the weights stay, the tree of link and rule is the new one."""
    folder = tmp_path / "run"
    train(tiny(tmp_path), folder, table=obedient())
    before = (folder / "model.safetensors").read_bytes()
    assert RunFolder(folder).spec.rule["parents"] == [-1, 0, 1, -1]
    assert train(tiny(tmp_path, "a|b\nb\n"), folder, table=obedient()).was_finished
    assert RunFolder(folder).spec.rule["parents"] == [-1, 0, -1, -1]
    assert RunFolder(folder).spec.taxonomy == {"b": "a"}
    train(tiny(tmp_path).model_copy(update={"taxonomy": None}), folder, table=obedient())
    assert "taxonomy" not in json.loads((folder / "model.json").read_text())
    assert (folder / "model.safetensors").read_bytes() == before
    with pytest.raises(SettingsError, match="the data changed since"):
        train(tiny(tmp_path, "d|a\n"), folder, table=obedient())


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"promise": "precision-per-label=0.9"}, "cannot be kept with a taxonomy"),
        ({"promise": "tags=0.9"}, "cannot be kept with a taxonomy"),
        ({"rule": "false-alarms-0.05-per-label"}, "use false-alarms-0.05$"),
    ],
)
def test_promises_that_added_parents_could_break_are_refused(tmp_path, flags, sentence):
    settings = tiny(tmp_path).model_copy(update=flags)
    with pytest.raises(SettingsError, match=sentence):
        train(settings, tmp_path / "run", table=obedient())
    assert not (tmp_path / "run").exists()


def test_a_damaged_taxonomy_is_found_when_the_model_is_opened(tmp_path):
    train(tiny(tmp_path), tmp_path / "run", table=obedient())
    file = tmp_path / "run" / "model.json"
    facts = facts_of(file)
    for parents, sentence in (
        ({"b": "a", "a": "b"}, "the taxonomy cannot be used: .*circles"),
        ({"dog": "a"}, "the taxonomy cannot be used: there is no label 'dog'"),
    ):
        file.write_text(json.dumps({**facts, "taxonomy": parents}))
        with pytest.raises(CheckpointError, match=sentence):
            ModelSpec.load(file)
    file.write_text(json.dumps({**facts, "link": {**facts["link"], "parents": [-1, 0]}}))
    with pytest.raises(CheckpointError, match="the taxonomy is of 2 labels, got 4 columns"):
        ModelSpec.load(file)
