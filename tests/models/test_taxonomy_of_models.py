"""A taxonomy goes where the model goes. Oracles: its rules, the projection, P(none) by hand."""

import json

import numpy as np
import pytest
import torch
from forged import facts_of
from open_indexes import open_index
from PIL import Image
from tiny_run import tiny_settings, tiny_table
from typed import must_run, refused

from labelwise.decide import Threshold, TopK, WithParents
from labelwise.errors import CheckpointError, LabelwiseError, SettingsError
from labelwise.exports.onnx_file import export_onnx
from labelwise.learn.predictor import Predictor
from labelwise.links import Consistent, Sigmoid, Softmax, consistent_log_probs
from labelwise.models import ModelSpec
from labelwise.models.graph_model import OnnxModel
from labelwise.models.run_folder import RunFolder
from labelwise.photos.query import answer
from labelwise.queries import Query
from labelwise.tables import load, obey_taxonomy
from labelwise.taxonomy import LabelTree, Taxonomy
from labelwise.training.run import train
from labelwise.training.settings import read_settings

NAMES = ("animal", "dog", "mammal", "sofa")
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
        there = dict(zip(NAMES, (animal, dog, mammal, sofa), strict=True))
        unknown = [] if row % 3 or not dog else ["animal", "mammal"]
        labels = "|".join(name for name in NAMES if there[name] and name not in unknown)
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
        for make in (LabelTree, lambda parents: WithParents(TopK(1), parents)):
            with pytest.raises((ValueError, LabelwiseError), match=sentence):
                make(parents)
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
