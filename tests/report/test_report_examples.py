"""Which images are shown, and that their pictures are theirs."""

from base64 import b64decode
from dataclasses import replace
from io import BytesIO
from math import inf

import numpy as np
import pytest
import torch
from PIL import Image
from sample_scores import sample

from labelwise.api import train
from labelwise.decide import Threshold
from labelwise.evaluation import evaluate
from labelwise.links import Sigmoid
from labelwise.pictures import ArrayImages, FileImages
from labelwise.report import choose_examples
from labelwise.report.examples import copy_examples, example_section, picture_address
from labelwise.report.explain import attended, overlay
from labelwise.report.page import page
from labelwise.tables import scenes


def decoded(address):
    return Image.open(BytesIO(b64decode(address.split(",", 1)[1])))


@pytest.fixture
def predictions():
    return sample(60)


def group(groups, title):
    return next(g for g in groups if g.title == title)


def test_groups_are_what_they_say(predictions):
    groups = choose_examples(predictions, Sigmoid(), each=3)
    probs = torch.as_tensor(predictions.logits).double().sigmoid()
    present = torch.as_tensor(predictions.labels == 1)
    fit = torch.where(present, probs.log(), (-probs).log1p()).sum(1)
    labelled = present.any(1)
    for title, order in {
        "Right": fit.masked_fill(~labelled, -inf).argsort(descending=True),
        "Wrong": probs.masked_fill(present, -1).amax(1).argsort(descending=True),
        "Missed": probs.masked_fill(~present, 2).amin(1).argsort(),
    }.items():
        assert [e.id for e in group(groups, title).examples] == [f"image-{r}" for r in order[:3]]
    assert all(example.truth == () for example in group(groups, "No label, loudest").examples)
    assert len(group(groups, "Drawn at random").examples) == 3


def test_right_wrong_and_missed_are_on_that_side_of_one_half(predictions):
    """Oracle: the logits. Unknown labels are neither."""
    observed = np.ones(predictions.labels.shape, bool)
    observed[:, 1] = False
    groups = choose_examples(replace(predictions, observed=observed), Sigmoid(), each=60)
    yes, truth = predictions.logits > 0, predictions.labels == 1
    for title, rows in {
        "Wrong": (yes & ~truth & observed).any(1),
        "Missed": (~yes & truth & observed).any(1),
        "Unknown, and probable": yes[:, 1],
    }.items():
        shown = {e.id for e in group(groups, title).examples}
        assert shown == {f"image-{row}" for row in np.flatnonzero(rows)}
        assert 0 < len(shown) < 60
    shown = group(choose_examples(predictions, Sigmoid(), each=60), "Right").examples
    right = (yes == truth).all(1) & truth.any(1)
    assert {e.id for e in shown} == {f"image-{row}" for row in np.flatnonzero(right)}


def test_the_four_surest_labels_stand_with_what_is_known_of_them(predictions):
    observed = np.ones(predictions.labels.shape, bool)
    observed[:, 1] = False
    masked = replace(predictions, observed=observed)
    drawn = group(choose_examples(masked, Sigmoid()), "Drawn at random").examples
    assert drawn
    for example in drawn:
        row = int(example.id.removeprefix("image-"))
        probs = torch.as_tensor(predictions.logits[row]).double().sigmoid().tolist()
        assert [g.prob for g in example.guesses] == pytest.approx(sorted(probs, reverse=True)[:4])
        for guess in example.guesses:
            column = predictions.names.index(guess.name)
            state = "present" if predictions.labels[row, column] else "absent"
            assert guess.state == ("unknown" if column == 1 else state)


def test_pictures_are_found_by_id_and_tiny_ones_are_exact(predictions):
    pixels = np.random.default_rng(0).integers(0, 256, (61, 12, 10, 3), dtype=np.uint8)
    ids = ["another", *reversed(predictions.ids)]
    examples = choose_examples(predictions, Sigmoid(), ArrayImages(pixels, ids))[0].examples
    assert examples
    for example in examples:
        assert example.tiny
        seen = np.asarray(decoded(example.picture))
        assert np.array_equal(seen, pixels[ids.index(example.id)])


def test_copies_are_shown_beside_their_training_photos_and_lost_ones_are_left_out():
    # Oracle: the pixels of the two photos that a pair names.
    pixels = np.random.default_rng(0).integers(0, 256, (4, 12, 10, 3), dtype=np.uint8)
    images = ArrayImages(pixels, ["a", "b", "c", "d"])
    (copies,) = copy_examples([("c", "a"), ("b", "lost"), ("d", "b")], images)
    assert [[side.name for side in pair.seen] for pair in copies.examples] == [
        ["c", "a"],
        ["d", "b"],
    ]
    shown = [np.asarray(decoded(side.picture)) for side in copies.examples[0].seen]
    assert np.array_equal(shown, pixels[[2, 0]])
    text = example_section([copies])
    assert text.count("<figcaption>") == 4
    assert "True:" not in text
    assert copy_examples([("lost", "a")], images) == ()


def test_a_report_opens_with_photos_before_its_figures_and_shows_none_twice(predictions):
    pixels = np.random.default_rng(0).integers(0, 256, (60, 12, 10, 3), dtype=np.uint8)
    examples = choose_examples(predictions, Sigmoid(), ArrayImages(pixels, predictions.ids))
    text = page(evaluate(predictions, Sigmoid(), Threshold(0.5)), title="t", examples=examples)
    order = [text.index(mark) for mark in ('class="verdict"', ">Right<", ">Wrong<", ">Missed<")]
    order += [text.index('class="tiles"'), text.index('id="examples"')]
    assert order == sorted(order)
    assert text.count("<img") == sum(len(some.examples) for some in examples)


def test_a_large_picture_becomes_a_small_jpeg_and_one_that_cannot_be_read_is_left_out(
    predictions, tmp_path
):
    picture = decoded(picture_address(Image.new("RGB", (4000, 1000), "red")))
    assert (picture.format, picture.size) == ("JPEG", (200, 50))
    images = FileImages(tmp_path, predictions.ids)
    assert choose_examples(predictions, Sigmoid(), images)[0].examples[0].picture is None
    assert choose_examples(predictions, Sigmoid())[0].examples[0].picture is None


def test_a_query2label_report_shows_where_the_two_surest_labels_were_seen(tmp_path):
    # Oracle: the attention of the photo computed alone, drawn over the picture the model saw.
    table = scenes(8, 4, 8, size=64)
    options = {"head": "query2label", "head_options": {"width": 16, "feedforward": 16}}
    options |= {"epochs": 1, "backbone": "test_resnet", "image_size": 64, "calibrate": "none"}
    run = train(table, tmp_path / "run", method="bce", progress=False, **options)
    page = run.report.read_text()
    assert "where the queries of the two surest looked" in page
    model, predictions = run.model(), run.predictions("test")
    groups = choose_examples(predictions, model.link, table.images, each=2, predictor=model)
    example = group(groups, "Drawn at random").examples[0]
    assert [seen.name for seen in example.seen] == [guess.name for guess in example.guesses[:2]]
    row = list(table.ids).index(example.id)
    picture = next(iter(attended(model, table.images, [row]))).picture
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None]
    with torch.no_grad():
        _, features = model.model.outputs_and_features(model.transform.inputs(pixels))
        maps = model.model.head.attention(features)[0].numpy()
    assert maps.shape == (10, 2, 2)
    for seen in example.seen:
        drawn = overlay(picture, maps[model.space.column(seen.name)])
        np.testing.assert_allclose(decoded(seen.picture), np.asarray(drawn), atol=1)
    plain = choose_examples(predictions, model.link, table.images, each=2)
    assert not any(example.seen for one in plain for example in one.examples)
