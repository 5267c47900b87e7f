"""The inference engine against a plain loop: one image at a time, by hand, without threads."""

import io
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from patience import PATIENCE
from PIL import Image
from tiny_predictor import NAMES, encoded, make, pictures
from torch import Tensor, nn

from labelwise.decide import Threshold
from labelwise.errors import ImageError, LabelwiseError
from labelwise.learn.inference import captured, infer, launch
from labelwise.links import Sigmoid
from labelwise.models.scoring import Scored, score, scored
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
