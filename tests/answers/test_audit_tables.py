"""Every form of tags gives the same table, and what cannot be read is named. Oracle: the tags."""

import json

import numpy as np
import pytest
from audit_setup import NAMES, as_responses, tagged_photos

from labelwise.answers.tag_tables import read_tags, tags_of_text
from labelwise.contrib.tag_sources import tags_to_audit
from labelwise.errors import DataError, SettingsError
from labelwise.links import Sigmoid
from labelwise.predictions import Predictions


def used(table):
    return {
        (table.photos[row], tag)
        for tag, own in zip(table.tags, table.uses, strict=True)
        for row in own.tolist()
    }


def pairs(tagged):
    return {(photo, tag) for photo, own in tagged.items() for tag in own}


def scored(tagged, rng):
    return {pair: round(float(rng.uniform(0.6, 1)), 6) for pair in sorted(pairs(tagged))}


@pytest.fixture
def world(tmp_path):
    return tmp_path, tagged_photos(tmp_path, 40)[1]


def label_table(folder, tagged):
    return folder / "tags.csv", {}


def tags_column(folder, tagged):
    path = folder / "own.csv"
    rows = [f"{photo},{'|'.join(own)}" for photo, own in tagged.items()]
    path.write_text("\n".join(["file_name,tags", *rows]) + "\n")
    return path, {}


def use_rows(folder, tagged):
    path = folder / "long.csv"
    path.write_text("photo,tag\n" + "".join(f"{p},{t}\n" for p, t in sorted(pairs(tagged))))
    return path, {}


def responses(folder, tagged):
    as_responses(folder / "model.jsonl", tagged)
    return folder / "model.jsonl", {}


def label_studio(folder, tagged):
    tasks = [
        {
            "data": {"image": f"/data/local-files/?d={photo}"},
            "annotations": [{"result": []}],
            "predictions": [
                {"result": [{"type": "choices", "value": {"choices": sorted(own)}}]} if own else {}
            ],
        }
        for photo, own in tagged.items()
    ]
    (folder / "tasks.json").write_text(json.dumps(tasks))
    return folder / "tasks.json", {}


def annotators(folder, tagged):
    lines = ["photo,label,worker,answer"]
    for photo, own in tagged.items():
        for tag in NAMES:
            said = "yes" if tag in own else "no"
            lines += [f"{photo},{tag},{who},{said}" for who in ("ann", "bob")]
            lines.append(f"{photo},{tag},cat,{'no' if said == 'yes' else 'yes'}")
    lines.append("000.png,beach,eva,no")
    (folder / "votes.csv").write_text("\n".join(lines) + "\n")
    return folder / "votes.csv", {"trust": "eva"}


FORMS = (label_table, tags_column, use_rows, responses, label_studio, annotators)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_tags_are_the_same_in_every_form(world, form):
    folder, tagged = world
    path, options = form(folder, tagged)
    table, photos = tags_to_audit(path, folder / "photos", **options)
    assert used(table) == pairs(tagged)
    assert photos == folder / "photos"
    if form is not use_rows:  # which cannot say that a photo has no tag
        assert set(table.photos) == set(tagged)
    assert dict(table.known) == ({("000.png", "beach"): "no"} if form is annotators else {})


def coco(folder, chances):
    photos = sorted({photo for photo, _ in chances})
    found = [
        {"image_id": photos.index(p) + 7, "category_id": NAMES.index(t) + 3, "score": s}
        for (p, t), s in chances.items()
    ]
    found += [{**found[0], "score": 0.55}, {**found[0], "category_id": 8, "score": 0.01}]
    images = [{"id": n + 7, "file_name": photo} for n, photo in enumerate(photos)]
    names = [{"id": n + 3, "name": name} for n, name in enumerate(NAMES)]
    (folder / "instances.json").write_text(json.dumps({"images": images, "categories": names}))
    (folder / "results.json").write_text(json.dumps(found))
    return folder / "results.json", {"data": str(folder / "instances.json")}


def long_scores(folder, chances):
    rows = [f"{photo},{tag},{score}" for (photo, tag), score in chances.items()]
    (folder / "long.csv").write_text("\n".join(["image,label,confidence", *rows]) + "\n")
    return folder / "long.csv", {}


def score_columns(folder, chances):
    photos = sorted({photo for photo, _ in chances})
    rows = [
        ",".join([photo, *(str(chances.get((photo, name), 0.2)) for name in NAMES)])
        for photo in photos
    ]
    head = ",".join(["id", *(f"score:{name}" for name in NAMES)])
    (folder / "scores.csv").write_text("\n".join([head, *rows]) + "\n")
    return folder / "scores.csv", {"kind": "probs"}


def predictions(folder, chances):
    photos = sorted({photo for photo, _ in chances})
    probs = [[chances.get((photo, name), 0.2) for name in NAMES] for photo in photos]
    logits = np.log(probs) - np.log1p(-np.array(probs))
    own = Predictions(photos, logits, np.zeros(logits.shape), None, NAMES, "test", Sigmoid())
    own.save(folder / "predictions.parquet")
    return folder / "predictions.parquet", {}


@pytest.mark.parametrize("form", [coco, long_scores, score_columns, predictions])
def test_scores_go_with_their_uses(world, form):
    folder, tagged = world
    chances = scored(tagged, np.random.default_rng(1))
    path, options = form(folder, chances)
    table, _ = tags_to_audit(path, folder / "photos", **options)
    found = {
        (table.photos[row], tag): score
        for tag, own, scores in zip(table.tags, table.uses, table.scores, strict=True)
        for row, score in zip(own.tolist(), scores.tolist(), strict=True)
    }
    assert found == pytest.approx(chances, abs=1e-6)


def test_keywords_of_photos_are_tags(tmp_path):
    from search_setup import picture

    picture(tmp_path / "a.jpg", 1)
    (tmp_path / "a.jpg.xmp").write_text(
        '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF '
        'xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description '
        'xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:subject><rdf:Bag><rdf:li>dog</rdf:li>'
        "</rdf:Bag></dc:subject></rdf:Description></rdf:RDF></x:xmpmeta>"
    )
    picture(tmp_path / "b.jpg", 2)
    table, folder = tags_to_audit(tmp_path, None)
    assert (used(table), len(table.photos), folder) == ({("a.jpg", "dog")}, 2, tmp_path)


@pytest.mark.parametrize(
    ("said", "tags"),
    [
        ("dog, Beach.", ["dog", "beach"]),
        ('["dog"]', ["dog"]),
        ('{"dog": 0.9, "cat": 0.2}', ["dog", "cat"]),
        ("1. dog\n2) big  cat", ["dog", "big  cat"]),
        ("", []),
        ("None.", []),
        ("The photo shows a dog on a beach, and the sky is blue and wide above it.", None),
        ('{"dog": "yes"}', None),
        ('[["dog"]]', None),
        ("3", None),
        ("[" * 100_000, None),
    ],
)
def test_lists_of_language_models(said, tags):
    found = tags_of_text(said)
    assert (None if found is None else [tag for tag, _ in found]) == tags


def test_what_failed_or_cannot_be_shown_is_left_out_and_said(tmp_path):
    path = tmp_path / "model.jsonl"
    lines = [
        {"path": "a.png", "response": "dog, cat"},
        {"path": "b.png", "response": None, "error": "timeout"},
        {"path": "c.png", "response": "I am sorry, but I cannot help with that request today."},
        {"path": "d.png", "response": "dog\0, \x1b[2J, cat"},
        {"path": "e.png", "response": ""},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    table = read_tags(path)
    assert used(table) == {("a.png", "dog"), ("a.png", "cat"), ("d.png", "cat")}
    assert set(table.photos) == {"a.png", "d.png", "e.png"}
    assert table.notes == (
        "left out 1 photo without a response",
        "left out what is not a list of tags: 1 response, first line 3",
        "left out 2 tags without a name that can be shown",
    )
    odd = ("do\x00g", "\x1b[31mred", "\u202egod", "x" * 1001)
    rows = tmp_path / "rows.csv"
    rows.write_text("photo,tag\n" + "".join(f"a.png,{tag}\n" for tag in (*odd, "dog")))
    lists = tmp_path / "lists.csv"
    lists.write_text(f"path,labels\na.png,{'|'.join((*odd, 'dog'))}\n")
    for path in (rows, lists):
        table = read_tags(path)
        assert table.tags == ("dog",)
        assert table.notes == ("left out 4 tags without a name that can be shown",)
    said = '[{"tag": "dog", "score": %s}]'
    for score in ("NaN", "1e400", "-Infinity", "1" + "0" * 400, "true"):
        assert tags_of_text(said % score) is None
    assert tags_of_text(said % "0.5") == [("dog", 0.5)]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", '{"path": "a", "response": "dog"}\n{"path": ', "a.jsonl, line 2: not JSON"),
        ("a.jsonl", '{"response": "dog"}\n', "line 1: it must say which photo"),
        ("a.jsonl", '{"path": "a", "response": ""}\n', "there is no tag in it"),
        ("a.csv", "photo,tag,score\na,dog,high\n", "row 1: a score must be a number, got 'high'"),
        ("a.csv", "photo,tag\n,dog\n", "row 1: it names no photo"),
        ("a.csv", "photo,tag\0\na,dog\n", "must be UTF-8 text"),
        ("a.csv", "path,labels\na,\n", "the table has no labels"),
        ("a.json", '[{"image_id": 1, "category_id": 1}]', "--data instances.json"),
        ("a.json", '[{"data": {}, "predictions": [1]}]', "'data' must name an 'image'"),
        ("a.json", '[{"data": {"image": "a"}, "predictions": [1]}]', "must be a list of objects"),
        ("a.json", "[" * 9999, "not JSON"),
        ("a.txt", "", "is empty"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    with pytest.raises((DataError, SettingsError), match=words):
        tags_to_audit(tmp_path / name, tmp_path)


def test_strangers_in_coco_results_and_annotators_are_named(world):
    folder, tagged = world
    _, options = coco(folder, scored(tagged, np.random.default_rng(1)))
    (folder / "more.json").write_text('[{"image_id": 1, "category_id": 3, "score": 1}]')
    with pytest.raises(DataError, match=r"result 1: instances.json has no image 1"):
        tags_to_audit(folder / "more.json", folder, **options)
    with pytest.raises(SettingsError, match="no answer is by 'evan'; did you mean 'eva'"):
        tags_to_audit(annotators(folder, tagged)[0], folder, trust="evan")
    with pytest.raises(SettingsError, match="--photos"):
        tags_to_audit(folder / "tags.csv", None)
