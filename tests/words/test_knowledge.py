"""What is known about words. Oracles: ImageNet's own order, the formula, a scorer by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from timm.data.imagenet_info import ImageNetInfo
from words_setup import SIDE, photo

from labelwise.photos.words import ClassesAndWords, WordList
from labelwise.photos.words.classes import CaptionMaps, Kinds, caption_maps, imagenet_kinds

DOGS = tuple(range(151, 269))  # Chihuahua to Mexican hairless
BIRDS = (*range(7, 25), *range(80, 101), *range(127, 147))


@pytest.mark.parametrize("text", ["dog", "Dogs", "a photo of a dog", "the domestic dog"])
def test_a_word_has_the_classes_that_are_kinds_of_it(text):
    assert imagenet_kinds().of([text]) == DOGS


def test_kinds_follow_wordnet():
    kinds = imagenet_kinds()
    assert kinds.of(["bird"]) == BIRDS
    assert kinds.of(["dog", "bird"]) == tuple(sorted((*DOGS, *BIRDS)))
    assert set(DOGS) < set(kinds.of(["animal"]))
    assert kinds.of(["apple"]) == (948,)  # Granny Smith
    assert kinds.of(["buses"]) == kinds.of(["bus"]) != ()
    assert kinds.of(["fire hydrant"]) == kinds.of(["a dog on a beach"]) == ()


def test_only_imagenets_classes_in_its_order_have_kinds():
    info = ImageNetInfo()
    names = [info.index_to_description(number) for number in range(1000)]
    kinds = imagenet_kinds()
    assert kinds.are_of(names)
    assert not kinds.are_of(names[::-1])
    assert not kinds.are_of(names[:999])


def test_the_maps_of_the_package_belong_to_one_network_and_one_encoder():
    maps = caption_maps()
    assert maps.image.shape == (256, 1280)
    assert maps.text.shape == (256, 384)
    np.testing.assert_allclose(maps.weights.sum(1), 1, atol=1e-3)
    weight = np.stack([maps.row, -maps.row])
    assert maps.fit(weight, lambda text: maps.probe)
    assert not maps.fit(weight[::-1], lambda text: maps.probe)
    assert not maps.fit(weight, lambda text: -maps.probe)
    assert not maps.fit(weight[:, :9], lambda text: maps.probe)
    assert not maps.fit(weight, lambda text: maps.probe[:9])


def small_maps(features, texts, seed=0):
    rng = np.random.default_rng(seed)
    return CaptionMaps(
        rng.standard_normal((4, features)).astype(np.float32),
        rng.standard_normal((4, texts)).astype(np.float32),
        rng.uniform(0.5, 2, features).astype(np.float32),
        np.zeros(texts, np.float32),
        np.array([[0.2, 0.0, 0.8], [0.2, 0.4, 0.4]]),
        np.ones(features, np.float32),
        np.ones(texts, np.float32),
    )


def test_captions_score_photos_by_the_cosine():
    maps, rng = small_maps(6, 5), np.random.default_rng(1)
    photos, texts = rng.standard_normal((7, 6)), rng.standard_normal((3, 5))
    mapped = (photos - photos.mean(0)) / maps.deviation @ maps.image.T
    words = texts @ maps.text.T
    lengths = np.linalg.norm(mapped, axis=1)[:, None] * np.linalg.norm(words, axis=1)
    expected = mapped @ words.T / lengths
    np.testing.assert_allclose(maps.scores(photos, texts), expected, atol=1e-6)
    along = (photos - photos.mean(0)) @ maps.directions(texts)
    found = along / np.linalg.norm(mapped, axis=1)[:, None]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_head_gives_the_sum_of_the_routes_and_says_where_they_disagree(words_model):
    model = ClassesAndWords(words_model, image_size=SIDE)
    images = [photo(colour, seed) for seed in range(40) for colour in ("red", "green", "blue")]
    pixels = torch.stack([torch.from_numpy(np.array(one)).permute(2, 0, 1) for one in images])
    with torch.inference_mode():
        features = model.backbone(model.backbone.transform.inputs(pixels)).mean(dim=(2, 3))
    features = features.clone()
    words = WordList.of("red", "green", "justice")
    texts, mean = [word.texts for word in words.words], features.mean(dim=0)
    plain = model.head(texts, mean)
    assert torch.equal(model.head(texts, mean, features).weight, plain.weight)  # no maps: as ever
    assert model.disagreements(words, features) == []
    ones = np.ones(features.shape[1], np.float32)
    maps = replace(
        small_maps(len(ones), model.class_vectors.shape[1]),
        image=model.weight.numpy(),
        text=model.class_vectors,
        deviation=ones,
    )
    red, _, blue = (model.classes.index(colour) for colour in ("red", "green", "blue"))
    kinds = Kinds({"red": (red,), "green": (blue,)})  # a green of another sort
    model.texts.__dict__.update(maps=maps, kinds=kinds)
    routes, agree = model.routes(texts, features.numpy(), maps)
    assert agree.tolist() == [True, False, False]
    chances = (features @ model.weight.T + model.bias).double().softmax(dim=1)[:, red]
    odds = chances.clamp(1e-9, 1 - 1e-9).logit()
    expected = (odds - odds.mean()) / odds.std(correction=0)
    np.testing.assert_allclose(routes[1, :, 0], expected, atol=1e-3)
    assert not routes[1, :, 1:].any()
    target = 0.2 * routes[0] + 0.8 * routes[2]
    target[:, 0] = (0.2 * routes[0] + 0.4 * routes[1] + 0.4 * routes[2])[:, 0]
    scores = model.head(texts, mean, features).scores(features).numpy()
    assert abs(scores.mean(0)).max() < 1e-3
    assert all(np.corrcoef(scores[:, k], target[:, k])[0, 1] > 0.95 for k in range(3))
    (told,) = model.disagreements(words, features)
    assert "'green' may mean two things: the classifier's 'blue' and what captions" in told
