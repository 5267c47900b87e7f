"""Every cell and row of the papers; oracles: what METHODS.md prints, and runs that finish."""

import functools
import json
import re
from collections import Counter
from itertools import combinations, product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import official
import pytest
import torch

from labelwise.errors import DataError, SettingsError
from labelwise.learn.backbones import backbone_names
from labelwise.learn.methods import HEADS, METHODS, make_objective
from labelwise.papers.protocols import DATASETS, EXPERIMENTS, PUBLISHED
from labelwise.papers.reproduce import (
    Request,
    cells_of,
    facts_of,
    find_experiment,
    jobs_of,
    open_data,
    reproduce,
)
from labelwise.papers.sources import open_table
from labelwise.predictions import Predictions
from labelwise.tables import load, mlspl_split, observe_uniform
from labelwise.tables.official import answer_accuracy, normal_answer, read_vqa
from labelwise.training.augment import make_augment
from labelwise.training.inference import higher_is_better
from labelwise.types import Targets

SMALL = {"backbone": "small-cnn", "weights": None, "image_size": 16, "freeze": 0, "batch_size": 64}
SMALL |= {"recipe.epochs": 1, "precision": "32", "hardware.compile": False}
FIRST = {one.table: one for one in reversed(EXPERIMENTS.values())}


def test_every_printed_row_has_settings_and_every_cell_a_way_to_its_data():
    assert set(EXPERIMENTS) == set(PUBLISHED)
    for name, printed in PUBLISHED.items():
        assert set(printed.rows) <= set(EXPERIMENTS[name].rows), name
        assert all(len(row) == len(printed.columns) for row in printed.rows.values())
        assert EXPERIMENTS[name].data in DATASETS
    # The name of a table means its first cell.
    for name, first in (("001-table3", "coco.ecaresnet50t"), ("001-table3.voc", "ecaresnet50t")):
        assert find_experiment(name).name == f"{name}.{first}"
    assert len(cells_of("001-table3")) == 8
    with pytest.raises(SettingsError, match=r"did you mean '001-table3.voc.vit-b-32'"):
        find_experiment("001-table3.voc.vit-b-16")


@pytest.mark.parametrize("table", FIRST)
def test_one_row_of_each_table_trains_and_writes_its_table(tmp_path, table):
    experiment = FIRST[table]
    data = experiment.data
    official.write(data, tmp_path / "data")
    row = next(name for name, one in experiment.rows.items() if one.runs == "always")
    overrides = dict(SMALL)
    if DATASETS[data].holds_features:
        overrides = {"recipe.epochs": 1, "precision": "32", "data_options": {"at_least": 2}}
    if experiment.protocol.get("head") == "query2label":
        overrides["head_options"] = {"width": 16, "feedforward": 16}
    given = {"seeds": (0,), "rows": (row,), "overrides": overrides}
    request = Request(experiment.name, tmp_path / "data", **given)
    done = reproduce(request, tmp_path / "runs", say=lambda text: None)
    written = (tmp_path / "runs" / "table.md").read_text()
    assert f"| {row} | paper |" in written
    assert "backbone: published" in written  # what the test changed is said
    assert set(experiment.published.columns) - set(done.ours[row]) <= {"few", "medium", "many"}
    assert json.loads((tmp_path / "runs" / "figures.json").read_text())[row]


@pytest.mark.parametrize("data", DATASETS)
def test_every_row_takes_a_step_on_the_official_layout_of_its_data(tmp_path, data):
    official.write(data, tmp_path)
    tables = functools.cache(open_official)
    for experiment in (one for one in EXPERIMENTS.values() if one.data == data):
        for row in experiment.rows:
            settings = Request(experiment.name, tmp_path).settings(row, 0)
            assert settings.backbone.partition(".")[0] in backbone_names(), row
            make_augment(settings.augment)
            higher_is_better(settings.recipe.metric)
            options = tuple(settings.data_options.items())
            facts, targets = tables(settings.data, options, experiment.one_positive)
            torch.manual_seed(0)
            kind = settings.head or METHODS[settings.method].head
            small = {"width": 16, "feedforward": 16} if kind == "query2label" else {}
            head = HEADS[kind](8, facts.num_labels, **{**settings.head_options, **small})
            objective = make_objective(settings.method, facts, **settings.options)
            parameters = [*head.parameters(), *objective.parameters()]
            before = [one.detach().clone() for one in parameters]
            optimiser = torch.optim.SGD(parameters, lr=settings.recipe.optimizer.lr)
            loss = objective(head(torch.randn(len(targets.labels), 8, 2, 2)), targets)
            loss.backward()
            optimiser.step()
            assert loss.isfinite(), row
            assert any(not torch.equal(*pair) for pair in zip(before, parameters, strict=True)), row


def open_official(source, options, one_positive):
    """Return the facts and the first batch of the training rows of a source."""
    options = dict(options) | ({"at_least": 2} if source.startswith("vqa") else {})
    table = open_table(source, options, one_positive=one_positive)
    train = table.subset(np.flatnonzero(table.split == "train")[:16])
    labels, observed = train.targets()
    known = None if observed is None else torch.from_numpy(observed)
    return train.facts(), Targets(torch.from_numpy(labels).float(), known, torch.arange(len(train)))


def test_single_positives_are_those_of_the_authors(tmp_path):
    # Oracle: the published procedure, written out: ids sorted as text, RandomState(1200) for the
    # split and again for the labels, drawn over train and validation images together.
    official.write("coco", tmp_path)
    settings = Request("004-table2", tmp_path).settings("role linear", 0)
    assert settings.data_options == {"string_order": True}
    table = open_table(settings.data, settings.data_options, one_positive=True)
    whole = load(f"coco2014:{tmp_path / 'coco'}", string_order=True)
    rows = np.flatnonzero(whole.split == "train")
    ids = [whole.ids[row] for row in rows]
    assert ids == sorted(ids) != sorted(ids, key=lambda name: int(Path(name).stem))
    truth = whole.targets()[0][rows]
    kept, (train, val) = observe_uniform(truth), mlspl_split(len(rows))
    labels, known = table.targets()
    assert len(val) == round(0.2 * len(rows))
    for part, name in ((train, "train"), (val, "val")):
        assert (table.split[rows[part]] == name).all()
    for found in (labels, known):
        np.testing.assert_array_equal(found[rows[train]], kept[train] == 1)
    np.testing.assert_array_equal(labels[rows[val]], truth[val])
    assert known[rows[val]].all()


def test_weights_are_named_by_their_own_tag():
    for cell, row, tag in (
        ("002-tableB", "bce", "torchvision IMAGENET1K_V1"),
        ("000-table3.coco", "binary", "torchvision IMAGENET1K_V1"),
        ("004-table1", "swin-l-384", "ImageNet-22k"),
    ):
        settings = Request(cell).settings(row, 0)
        assert facts_of(settings, EXPERIMENTS[cell], row)["weights_tag"] == tag
    changed = Request("002-tableB", rows=("bce",), overrides={"weights": "pretrained"})
    named = {one.key: one.here for one in changed.protocol_deviations()}
    assert named["weights_tag"] == "torchvision IMAGENET1K_V2"


def test_a_run_is_read_through_the_map_that_its_row_names():
    # Oracle: the population optimum of a label of 0.30, which the printed map reads as 0.5778.
    logits = torch.logit(torch.tensor([[0.7175]], dtype=torch.float64)).repeat(1000, 1)
    labels = torch.zeros(1000, 1)
    labels[:300] = 1
    ids = [str(row) for row in range(1000)]
    run = SimpleNamespace(test=Predictions(ids, logits, labels, None, ("dog",), "test"))
    rows = EXPERIMENTS["001-table3.coco.ecaresnet50t"].rows
    for reading, off in {"right": 0.0, "printed": 27.78}.items():
        figures = rows[f"asl-official+phi {reading}"].figures(run)
        assert figures["ACE"] == pytest.approx(off, abs=0.02)
    jobs = jobs_of(Request("001-table3", Path("data"), seeds=(0,)), Path("runs"))
    focal, asl = (  # the readings of one training share its run
        {jobs[row, 0].folder for row in (loss, f"{loss}+phi printed", f"{loss}+phi right")}
        for loss in ("focal-official", "asl-official")
    )
    assert (len(focal), len(asl), len(focal | asl)) == (1, 1, 2)


def printed_paths(words):
    """Return the paths that a sentence on a layout names, braces written out."""
    found = []
    pattern = r"[\w{},*-]+(?:/[\w{},.*-]*)+|[\w{},.*-]+\.(?:json|bin|txt|npz)"
    for token in re.findall(pattern, words):
        choices = [part.split(",") for part in re.findall(r"{([^}]*)}", token)]
        path = re.sub(r"{[^}]*}", "{}", token).rstrip("/,")
        found += [path.format(*chosen) for chosen in product(*choices)]
    return found


@pytest.mark.parametrize("name", list(DATASETS))
def test_the_layout_that_the_list_prints_is_the_one_that_is_read(tmp_path, name):
    dataset = DATASETS[name]
    official.write(name, tmp_path)
    folder = tmp_path / dataset.folder
    paths = printed_paths(dataset.how_to_get)
    assert paths
    for path in paths:
        assert list(folder.rglob(path)), f"{path} of {dataset.how_to_get!r}"
    table = load(f"{dataset.format}:{folder}", **({"at_least": 2} if name == "vqa" else {}))
    assert {"train", "test"} <= set(table.split.tolist())
    splits = {"train", "val", "test", *paths, *(path.split("/")[-1] for path in paths)}
    assert not splits & set(table.space.names)
    assert ("val" in table.split) == dataset.has_validation


def test_plantnet_is_read_as_its_archive_unpacks(tmp_path):
    official.write("plantnet", tmp_path)
    folder = tmp_path / "plantnet_300K"
    flat = load(f"plantnet:{folder}")
    for part in ("train", "val", "test"):
        (folder / "images").mkdir(exist_ok=True)
        (folder / f"images_{part}").rename(folder / "images" / part)
    inside = load(f"plantnet:{folder}")
    assert (inside.space, inside.split.tolist()) == (flat.space, flat.split.tolist())
    assert len(flat.space) == 12


# VQA v2; oracles: every set of nine people, slow counts, one path against the other.


@pytest.fixture
def root(tmp_path):
    official.write("vqa", tmp_path / "data")
    return tmp_path / "data"


@pytest.mark.parametrize("votes", range(11))
def test_accuracy_is_the_mean_over_all_sets_of_nine_people(votes):
    people = [1] * votes + [0] * (10 - votes)
    expected = np.mean([min(sum(nine) / 3, 1) for nine in combinations(people, 9)])
    assert answer_accuracy(votes) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        ("Yes.", "yes"),
        ("the two dogs", "2 dogs"),
        ("1,000 to 2.5 m", "1000 to 2.5 m"),
        ("dont know man's", "don't know man's"),
        ("black/white", "black white"),
        ("red , none", "red 0"),
    ],
)
def test_answers_are_compared_in_one_form(given, normal):
    assert normal_answer(given) == normal
    assert normal_answer(normal) == normal


def test_labels_features_and_groups_are_those_of_the_files(root):
    table = load(f"{root / 'vqa'}", at_least=2)  # recognised by its files
    labels, observed = table.targets()
    assert (observed, labels.dtype) == (None, np.float32)
    row = 0
    for split, part in (("train", "train2014"), ("test", "val2014")):
        files = f"OpenEnded_mscoco_{part}_questions", f"mscoco_{part}_annotations"
        questions, notes = (json.loads((root / f"vqa/v2_{x}.json").read_text()) for x in files)
        stored = np.load(root / f"vqa/{part}_features.npz")
        by_id = dict(zip(stored["question_id"].tolist(), stored["features"], strict=True))
        for question, note in zip(questions["questions"], notes["annotations"], strict=True):
            counts = Counter(one["answer"] for one in note["answers"])
            expected = [min(0.3 * counts[name], 1) for name in table.space.names]
            np.testing.assert_allclose(labels[row], expected, rtol=1e-6)
            assert table.ids[row] == str(question["question_id"])
            assert table.group[row] == f"{part}/{question['image_id']}"
            assert table.split[row] == split
            features = by_id[question["question_id"]]
            np.testing.assert_array_equal(table.images.features[row], features)
            row += 1
    assert row == len(table) == official.TRAIN + official.TEST
    assert ((labels > 0) & (labels < 1)).any()
    np.testing.assert_array_equal(table.present.dense(), labels > 0.5)
    # Only answers that are common enough are labels.
    assert read_vqa(root / "vqa", at_least=8).space.names == ("2", "no", "red", "yes")
    with pytest.raises(DataError, match="no answer is the most common one of 9 questions"):
        read_vqa(root / "vqa")


def test_bad_files_are_named(root):
    folder = root / "vqa"
    notes = folder / "v2_mscoco_val2014_annotations.json"
    good = notes.read_text()
    for edit, wrong in (
        (lambda content: content[3]["answers"].pop(), "question 7003 must have 10 answers, each"),
        (lambda content: content.pop(), "question 7007 of .* has no annotation"),
    ):
        content = json.loads(good)
        edit(content["annotations"])
        notes.write_text(json.dumps(content))
        with pytest.raises(DataError, match=wrong):
            read_vqa(folder)
    notes.write_text(good)
    features = folder / "val2014_features.npz"
    np.savez(features, question_id=np.arange(3), features=np.zeros((3, 8)))
    with pytest.raises(DataError, match="8 questions have no features, such as 7000"):
        read_vqa(folder, at_least=2)
    features.unlink()
    with pytest.raises(DataError, match="is missing: put there the arrays question_id"):
        read_vqa(folder, at_least=2)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("options.lpr_wight=2", "has no option 'lpr_wight'"),
        ("options.lpr_weight=-2", "method 'spa\\+lpr' of the row .*: the weight .* got -2"),
        ("method=lsep", "'lsep' of the row 'spa\\+lpr' needs labels of 0 and 1; name other rows"),
    ],
)
def test_a_dry_run_finds_what_a_run_would_die_of(root, call, setting, reason):
    arguments = ["001-vqa", "--rows", "spa+lpr", "--root", root, "--quick", "--set", setting]
    code, said = call("papers", "run", *arguments, "--set", "data_options.at_least=1", "--dry-run")
    assert code
    assert re.search(reason, said)


def test_weights_per_label_are_counted_by_the_labels_of_the_data(root):
    answers = len(load(f"vqa:{root / 'vqa'}", at_least=1).space)
    overrides = {"data_options.at_least": 1, "options.pos_weight": [2.0] * answers}
    request = Request("001-vqa", root, rows=("bce",), overrides=overrides)
    assert len(open_data(request)[0].space) == answers
    overrides["options.pos_weight"] = [2.0] * (answers + 1)
    with pytest.raises(SettingsError, match=f"row 'bce': pos_weight must have {answers} numbers"):
        open_data(request)
