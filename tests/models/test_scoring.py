"""The inference engine against a plain loop: one image at a time, by hand, without threads."""

import io
import json
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from forged import facts_of, rewrite
from patience import PATIENCE
from PIL import Image
from tiny_predictor import NAMES, encoded, make, pictures
from torch import Tensor, nn

from labelwise.decide import Threshold
from labelwise.errors import CheckpointError, ImageError, LabelwiseError, SettingsError
from labelwise.learn.backbones import create_backbone
from labelwise.learn.inference import captured, infer, launch
from labelwise.learn.methods import make_head
from labelwise.learn.predictor import Model, Predictor
from labelwise.links import Sigmoid
from labelwise.models import HeadSpec
from labelwise.models.scoring import Scored, score, scored
from labelwise.models.spec import NOT_CALIBRATED, ModelSpec, caution_after
from labelwise.pictures import ArrayImages, BytesImages, FileImages, PictureImages
from labelwise.pictures.decode import decode
from labelwise.pictures.inputs import Failure
from labelwise.types import LabelSpace


def some_bytes(count=7, broken=()):
    blobs = [encoded(image, quality=90) for image in pictures(count)]
    for row in broken:
        blobs[row] = blobs[row][:300]
    return blobs


def by_hand(predictor, blobs):
    """Return the logits of encoded images, one after the other."""
    rows = []
    for blob in blobs:
        image = decode(blob, "x", predictor.transform.at_least())
        with torch.no_grad():
            rows.append(predictor.model(predictor.transform(image)[None]).logits[0])
    return torch.stack(rows).numpy()


@pytest.mark.parametrize(("batch_size", "workers"), [(1, 1), (3, 4), (64, None)])
def test_every_kind_of_source_gives_the_answers_of_a_plain_loop(tmp_path, batch_size, workers):
    predictor, blobs = make(), some_bytes()
    names = [f"{row}.jpg" for row in range(len(blobs))]
    for name, blob in zip(names, blobs, strict=True):
        (tmp_path / name).write_bytes(blob)
    images = [decode(blob, "x", predictor.transform.at_least()) for blob in blobs]
    arrays = np.stack([np.asarray(predictor.transform.resize(image)) for image in images])
    expected = by_hand(predictor, blobs)
    log_probs = np.stack(predictor.link.log_probs(expected.astype(np.float64)))
    mixed = [blobs[0], tmp_path / names[1], str(tmp_path / names[2]), images[3], *blobs[4:6]]
    sources = (
        FileImages(tmp_path, names),
        BytesImages(blobs, names),
        PictureImages([*mixed, np.asarray(images[6])]),
        ArrayImages(arrays),
    )
    for source in sources:
        parts = list(score(predictor, source, batch_size=batch_size, workers=workers))
        assert [len(part) for part in parts[:-1]] == [batch_size] * (len(parts) - 1)
        whole = Scored.join(parts)
        assert whole.rows.tolist() == list(range(7))
        assert list(whole.ids) == list(source.ids)
        np.testing.assert_allclose(whole.logits, expected, atol=1e-5, rtol=1e-5)
        found = np.stack((whole.log_p, whole.log_q))
        np.testing.assert_allclose(found, log_probs, atol=1e-4, rtol=1e-4)
        assert np.array_equal(whole.sets, predictor.rule(whole.probs))


def test_each_row_comes_once_in_order_answered_or_failed():
    predictor, broken = make(), (0, 3, 4, 5)
    source = BytesImages(some_bytes(9, broken), [f"p{row}" for row in range(9)])
    parts = list(score(predictor, source, batch_size=2))
    answers = [answer for part in parts for answer in part.answers()]
    assert [answer.row for answer in answers] == list(range(9))
    assert [answer.id for answer in answers] == list(source.ids)
    assert tuple(answer.row for answer in answers if answer.error) == broken
    assert len(parts[2]) == 0  # a batch in which nothing could be read
    assert all(answer.error.startswith(f"{answer.id}: ") for answer in answers if answer.error)
    alone = by_hand(predictor, [source.content(6)])
    np.testing.assert_allclose(parts[3].logits[:1], alone, atol=1e-5, rtol=1e-5)
    chosen = list(score(predictor, source, rows=[1, 5, 8], batch_size=2))
    assert [answer.row for part in chosen for answer in part.answers()] == [1, 5, 8]


def test_whatever_goes_wrong_with_one_image_is_its_failure():
    class Odd(PictureImages):
        def read(self, row, at_least=None):
            if row == 1:
                raise self.error
            return super().read(row, at_least)

    images = Odd(pictures(3))
    for images.error in (MemoryError(), RuntimeError("a decoder broke"), KeyError("x")):
        whole = Scored.join(list(score(make(), images)))
        assert whole.rows.tolist() == [0, 2]
        assert [failure.row for failure in whole.failures] == [1]
        assert "the image cannot be used (" in whole.failures[0].reason
    images.error = KeyboardInterrupt()  # of a person
    with pytest.raises(KeyboardInterrupt):
        list(score(make(), images))


def test_labels_come_surest_first():
    predictor = make(Sigmoid(), Threshold(0.2))
    whole = scored(predictor, torch.tensor([[0.0, 2.0, -1.0], [-3.0, -4.0, -5.0]]))
    assert whole.labels == [("cat", "dog", NAMES[2]), ()]
    first, second = whole.answers()
    assert (first.labels, second.labels) == (whole.labels[0], ())
    assert first.probs == pytest.approx((0.5, 0.880797, 0.268941), abs=1e-6)


def test_logits_that_are_no_numbers_are_failures_not_none():
    logits = torch.tensor([[0.0, 1.0, 2.0], [0.0, float("nan"), 1.0], [float("inf"), 0.0, 0.0]])
    failed = Failure(7, "g", "why")
    whole = scored(make(), logits, np.array([4, 8, 9]), ["d", "h", "i"], failures=[failed])
    assert whole.rows.tolist() == [4]
    assert [failure.row for failure in whole.failures] == [7, 8, 9]
    assert "h: the model's logits are not finite numbers" in whole.failures[1].reason


def test_rules_meet_the_probabilities_they_were_fitted_to():
    """A threshold at the very probability of its label, as decision_probs gives it, keeps all."""
    logits = torch.linspace(-3, 3, 50)[None]
    link = Sigmoid()
    rule = Threshold(tuple(link.decision_probs(logits)[0].tolist()))
    assert not rule(link(logits.double())).all()  # what float64 alone would do
    space = LabelSpace(tuple(f"label {column}" for column in range(50)))
    assert scored(replace(make(), space=space, link=link, rule=rule), logits).sets.all()


def test_embeddings_are_the_mean_features_of_the_backbone():
    predictor, source = make(), PictureImages(pictures(5))
    whole = Scored.join(list(score(predictor, source, batch_size=2, embed=True)))
    inputs = torch.stack([predictor.transform(image) for image in pictures(5)])
    with torch.no_grad():
        features = predictor.model.backbone(inputs).mean(dim=(2, 3)).numpy()
    np.testing.assert_allclose(whole.embeddings, features, atol=1e-5, rtol=1e-5)
    plain = Scored.join(list(score(predictor, source, batch_size=2)))
    assert plain.embeddings is None
    np.testing.assert_allclose(whole.logits, plain.logits, atol=1e-5)
    predictor.model.mirrored = True
    turned = PictureImages([image.transpose(0) for image in pictures(5)])
    (one,), (other,) = (score(predictor, images, embed=True) for images in (source, turned))
    np.testing.assert_allclose(one.embeddings, other.embeddings, atol=1e-4, rtol=1e-4)


def test_a_model_that_only_ranks_is_refused_before_anything_is_read():
    with pytest.raises(LabelwiseError, match="ranks labels and has no probabilities"):
        next(score(replace(make(), link=None), PictureImages(["gone.jpg"])))


def test_reading_stays_a_few_batches_ahead_and_ends_with_the_reader():
    class Counting(PictureImages):
        count = 0

        def read(self, row, at_least=None):
            self.count += 1
            return super().read(row, at_least)

    source, before = Counting(pictures(1) * 200), set(threading.enumerate())
    parts = score(make(), source, batch_size=4, workers=2)
    next(parts)
    parts.close()
    assert source.count <= 4 * 4
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_predict_takes_one_picture_or_many_and_turns_them_upright(tmp_path):
    predictor, (image, *_) = make(), pictures(1)
    exif = Image.Exif()
    exif[0x0112] = 6
    content = encoded(image, quality=95, exif=exif)
    (tmp_path / "a.jpg").write_bytes(content)
    upright = decode(content, "x")
    assert upright.size == image.size[::-1]
    expected = predictor.predict(upright).logits
    opened = Image.open(io.BytesIO(content))
    for given in (tmp_path / "a.jpg", str(tmp_path / "a.jpg"), content, opened, [opened]):
        assert np.array_equal(predictor.predict(given).logits, expected)
    assert np.array_equal(predictor.predict(np.asarray(upright)).logits, expected)
    assert predictor.predict(np.stack([np.asarray(upright)] * 2)).logits.shape == (2, 3)
    assert predictor.predict([]).logits.shape == (0, 3)
    for given, error, sentence in (
        ([opened, tmp_path / "gone.jpg"], ImageError, r"gone\.jpg: the image cannot be opened"),
        ([opened, 3], TypeError, "picture 1 must be a path, bytes, a Pillow image"),
        ([np.zeros((3, 3, 3))], ValueError, r"picture 0 must be uint8 \(H, W, 3\), got float64"),
        (np.zeros((8, 8, 3), np.float32), ValueError, r"must be uint8 \(H, W, 3\), got float32"),
    ):
        with pytest.raises(error, match=sentence):
            predictor.predict(given)


# Networks that a GPU launches whole; the oracle is the network itself, kernel by kernel.

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 5, 3)
    return nn.Sequential(*layers).eval().cuda()


def pixels(count: int) -> Tensor:
    values = torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(count))
    return values.cuda().contiguous(memory_format=torch.channels_last)


@on_gpu
@torch.inference_mode()
def test_a_graph_has_the_values_of_its_network_and_takes_every_other_batch_too():
    net = network()

    def both(inputs: Tensor) -> tuple[Tensor, ...]:
        return net(inputs), inputs.mean(dim=(1, 2, 3))

    def waits(inputs: Tensor) -> tuple[Tensor, ...]:
        return (net(inputs) * inputs.sum().item(),)

    assert captured(waits, pixels(4)) is waits  # and the next is captured as before
    graph = captured(both, pixels(4))
    assert graph is not both
    first, second = pixels(4), pixels(4).flip(0)
    found = [graph(first), graph(second), graph(pixels(3)), graph(first.contiguous())]
    wanted = [both(first), both(second), both(pixels(3)), both(first.contiguous())]
    for ours, theirs in zip(found, wanted, strict=True):
        assert all(map(torch.equal, ours, theirs))
    host, _ = launch(found[0], torch.device("cuda"))()
    assert torch.equal(host, wanted[0][0].cpu())
    assert not host.is_pinned()


@on_gpu
def test_a_gpu_is_given_batches_of_one_size_and_answers_each_row_once():
    """Oracle: the rows one after the other, whose convolutions are of another size."""
    shapes = []

    def counted(inputs: Tensor) -> tuple[Tensor, ...]:
        shapes.append(len(inputs))
        return (inputs.float().mean(dim=(1, 2, 3)),)

    images, transform = PictureImages(pictures(7)), make().transform
    parts = list(infer(counted, images, transform, batch_size=4, device="cuda"))
    assert shapes == [4, 4]
    alone = infer(counted, images, transform, batch_size=1, device="cuda")
    found, wanted = (torch.cat([part.values[0] for part in some]) for some in (parts, alone))
    torch.testing.assert_close(found, wanted)


# Predictors. Oracles: link and rule of the logits, means over views, and what was saved.


def test_a_saved_model_answers_as_before(tmp_path):
    one = make()
    one.save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"model.safetensors", "model.json"}
    other = Predictor.load(tmp_path)
    assert other.space.names == NAMES
    assert other.rule == one.rule
    assert other.transform == one.transform
    expected, answers = one.predict(pictures()), other.predict(pictures())
    for name in ("logits", "probs", "sets"):
        assert np.array_equal(getattr(answers, name), getattr(expected, name))


def test_a_mirrored_model_answers_alike_for_an_image_and_its_mirror_image(tmp_path):
    plain, images = make(), torch.rand(3, 3, 48, 48)
    own = plain.logits(images)
    other = plain.logits(images.flip(3))
    assert not torch.allclose(own, other)
    plain.model.mirrored = True
    plain.save(tmp_path)
    for predictor in (plain, Predictor.load(tmp_path)):
        torch.testing.assert_close(predictor.logits(images), (own + other) / 2)
    plain.model.train()
    torch.manual_seed(0)
    once = plain.model(images).logits
    plain.model.mirrored = False
    torch.manual_seed(0)
    assert torch.equal(once, plain.model(images).logits)


def test_a_network_that_is_being_trained_answers_as_one_that_is_not():
    one, images = make(), torch.rand(3, 3, 48, 48)
    expected = one.logits(images)
    for found in (one.logits, lambda given: one.embed(given)[0]):
        one.model.train()
        assert torch.equal(found(images), expected)


@pytest.mark.parametrize("mirrored", [False, True])
def test_five_crops_answer_with_the_mean_over_windows(tmp_path, mirrored):
    """Oracle: each window cut and scored by hand, of each picture alone."""
    plain, images = make(), torch.rand(3, 3, 35, 42)
    expected = []
    for image in images:
        large = torch.nn.functional.interpolate(image[None], (40, 48), mode="bilinear")[0]
        windows = []
        for top, left in [(2, 3), (0, 0), (0, 6), (5, 0), (5, 6)]:
            window = large[:, top : top + 35, left : left + 42]
            windows += [window, window.flip(2)] if mirrored else [window]
        seen = [plain.embed(window[None]) for window in windows]
        expected.append([torch.cat(values).mean(0) for values in zip(*seen, strict=True)])
    logits, pooled = (torch.stack(values) for values in zip(*expected, strict=True))
    assert not torch.allclose(plain.logits(images), logits, atol=1e-4)
    plain.model.crops, plain.model.mirrored = 5, mirrored
    plain.save(tmp_path)
    for predictor in (plain, Predictor.load(tmp_path)):
        torch.testing.assert_close(predictor.logits(images), logits, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(predictor.embed(images)[1], pooled, atol=1e-5, rtol=1e-5)


def test_transformers_of_0_2_keep_the_mean_of_their_patches(tmp_path):
    one = make()
    one.save(tmp_path)
    assert set(facts_of(tmp_path / "model.json")["backbone"]) == {"name", "channels"}
    torch.manual_seed(0)
    backbone = create_backbone("test_vit", image_size=32).eval()
    vit = replace(
        one, model=Model(backbone, make_head(one.head, backbone.channels, len(NAMES))).eval()
    )
    vit.save(tmp_path)
    images = torch.rand(2, 3, 32, 32)
    own = vit.logits(images)
    assert torch.equal(Predictor.load(tmp_path).logits(images), own)
    facts = facts_of(tmp_path / "model.json")
    assert facts["backbone"].pop("pooling") == "own"
    (tmp_path / "model.json").write_text(json.dumps(facts))
    backbone.pooling = "mean"
    old = Predictor.load(tmp_path).logits(images)
    assert torch.equal(old, vit.logits(images))
    assert not torch.allclose(old, own)


def test_labels_that_nobody_answered_for_are_named_with_the_model(tmp_path):
    replace(make(), answers=12, unanswered=NAMES[:2]).save(tmp_path)
    named = "not calibrated for 'dog', 'cat': no answers yet; their probabilities are a guess"
    assert Predictor.load(tmp_path).caution.startswith(named)
    assert caution_after(0, NAMES) == NOT_CALIBRATED
    assert "'4' and 3 more: no" in caution_after(12, list(map(str, range(8))))
    beside = ModelSpec.load(tmp_path / "model.json").caution_beside({"cat"})
    assert beside.startswith("not calibrated for 'cat', 'dog': no answers yet")
    replace(make(), answers=12).save(tmp_path)
    assert "unanswered" not in (tmp_path / "model.json").read_text()
    assert Predictor.load(tmp_path).caution is None
    rewrite(tmp_path / "model.json", unanswered=["bird"])
    with pytest.raises(CheckpointError, match="must name labels of the model, got 'bird'"):
        Predictor.load(tmp_path)


def test_unknown_heads_and_options_are_named():
    with pytest.raises(SettingsError, match="unknown head 'liner'; did you mean 'linear'"):
        make_head(HeadSpec("liner", {}), 4, 2)
    with pytest.raises(SettingsError, match=r"head 'linear': .*unexpected keyword .*'depth'"):
        make_head(HeadSpec("linear", {"depth": 2}), 4, 2)


def test_unreadable_models_get_one_sentence(tmp_path):
    make().save(tmp_path)
    description, weights = tmp_path / "model.json", tmp_path / "model.safetensors"
    whole = {path: path.read_bytes() for path in (description, weights)}
    for path, content, match in (
        (description, b"[]", "must have format 1, got list"),
        (description, b'{"format": "two\\nlines"}', "must have format 1, got two lines"),
        (description, b'{"format": 1}', "is not usable: 'labels' is missing"),
        (weights, whole[weights][:-10], "model.safetensors is damaged"),
        (weights, b"", "model.safetensors is damaged"),
    ):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=match):
            Predictor.load(tmp_path)
        path.write_bytes(whole[path])
    rewrite(description, backbone={"name": "small-cn", "channels": 4})
    with pytest.raises(CheckpointError, match="unknown backbone 'small-cn'"):
        Predictor.load(tmp_path)
    description.write_bytes(whole[description])
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"model.safetensors cannot be read: No such file"):
        Predictor.load(tmp_path)
