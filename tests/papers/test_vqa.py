"""VQA v2; oracles: every set of nine people, slow counts, one path against the other."""

import json
import re
from collections import Counter
from itertools import combinations

import numpy as np
import official
import pytest

from labelwise.errors import DataError, SettingsError
from labelwise.papers.reproduce import Request, open_data
from labelwise.tables import load
from labelwise.tables.official import answer_accuracy, normal_answer, read_vqa


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
