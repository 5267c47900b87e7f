"""Folders for a hub. Oracles: timm's own loading; the hub's own reader of cards; the predictor."""

import json
import pickle
from dataclasses import replace
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import timm
import torch
from export_samples import BACKBONES, fitted_links, pictures, predictor
from forged import facts_of
from huggingface_hub import ModelCard
from PIL import Image
from sklearn.metrics import log_loss
from timm.models import save_for_hf
from typed import refused

from labelwise.calibration import platt
from labelwise.decide import Promise, Threshold
from labelwise.errors import CheckpointError, SettingsError
from labelwise.evaluation import evaluate
from labelwise.exports.hub import HubModel, export_hub
from labelwise.learn.backbones import create_backbone
from labelwise.learn.methods import HEADS, link_to_spec
from labelwise.learn.predictor import Predictor
from labelwise.links import Sigmoid
from labelwise.models import RunFolder
from labelwise.predictions import Predictions
from labelwise.report.model_card import model_card, write_model_card

PLATT = fitted_links()["platt of sigmoid"]
RULE = Threshold((0.1, 0.2, 0.3, 0.4, 0.5))


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """Return a model and its folder."""
    model = predictor("test_resnet", link=PLATT, rule=RULE)
    folder = tmp_path_factory.mktemp("hub") / "model"
    assert export_hub(model, folder, lambda *_: None).loads_in_timm
    return model, folder


def evaluation(link=PLATT, count=60):
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(0, 2, (count, 5))).float()
    labels = torch.from_numpy(rng.uniform(size=(count, 5)) < 0.3).to(torch.uint8)
    labels[:, 4] = 0
    ids, names = tuple(map(str, range(count))), predictor().space.names
    predictions = Predictions(ids, logits, labels, None, names, "test", link)
    return evaluate(predictions, link, RULE, query_length=0)


# Other heads are kept from timm whatever is below them; test_convnext does more than pool.
@pytest.mark.parametrize(
    ("backbone", "head"),
    [(name, "linear") for name in (*BACKBONES, "test_convnext")]
    + [("test_resnet", name) for name in HEADS if name != "linear"],
)
def test_timm_loads_every_linear_head_on_its_own_networks(backbone, head, tmp_path):
    model = predictor(backbone, head, PLATT, RULE, crop=0.875)
    done = export_hub(model, tmp_path / "hub", lambda *_: None)
    assert done.loads_in_timm == (head == "linear" and backbone in ("test_resnet", "test_vit"))
    assert backbone != "test_convnext" or "does more than pool" in done.why_not_timm
    assert (tmp_path / "hub" / "config.json").exists() == done.loads_in_timm
    read = Predictor.load(tmp_path / "hub")
    kept = Sigmoid() if done.loads_in_timm else PLATT  # folded into the classifier for others
    assert link_to_spec(read.link) == link_to_spec(kept)
    assert (read.rule, read.space, read.transform) == (model.rule, model.space, model.transform)
    picture = pictures(1, (90, 130)).pixels[0]
    expected = model.predict(picture)
    torch.testing.assert_close(read.predict(picture).probs, expected.probs, atol=1e-6, rtol=0)
    assert read.predict(picture).labels == expected.labels
    if done.loads_in_timm:
        network = timm.create_model(f"local-dir:{tmp_path / 'hub'}", pretrained=True).eval()
        config = timm.data.resolve_model_data_config(network)
        transform = timm.data.create_transform(**config, is_training=False)
        logits = network(transform(Image.fromarray(picture))[None]).detach()
        found = torch.sigmoid(logits).double()
        np.testing.assert_allclose(found, expected.probs, atol=1e-5, rtol=0)
        assert network.pretrained_cfg["label_names"] == list(model.space.names)


def test_of_several_views_timm_has_one(tmp_path):
    model = predictor("test_resnet", link=Sigmoid(), mirrored=True)
    done = export_hub(model, tmp_path / "hub", lambda *_: None)
    assert done.loads_in_timm
    assert json.loads((tmp_path / "hub" / "config.json").read_text())["model_type"] == "labelwise"
    assert Predictor.load(tmp_path / "hub").model.mirrored
    card = model_card(done, evaluation(), title="m", data="d")
    assert "timm looks at one view" in card
    assert "transformers refuses this folder: its probabilities are those of several views" in card


def test_training_begins_with_the_backbone_of_such_a_folder(hub, tmp_path):
    model, folder = hub
    backbone = create_backbone("test_resnet", weights=str(folder), image_size=64)
    for name, tensor in model.model.backbone.state_dict().items():
        assert torch.equal(backbone.state_dict()[name], tensor), name
    plain = timm.create_model("test_resnet", num_classes=7)
    save_for_hf(plain, tmp_path / "plain", safe_serialization=True)
    read = create_backbone("test_resnet", weights=str(tmp_path / "plain"))
    assert torch.equal(read.network.conv1[0].weight, plain.conv1[0].weight)
    small = tmp_path / "own names"
    export_hub(predictor(), small, lambda *_: None)
    create_backbone("small-cnn", weights=str(small))


def test_folders_that_do_not_fit_get_one_sentence_and_pickles_are_never_loaded(hub, tmp_path):
    folder = str(hub[1])
    with pytest.raises(SettingsError, match=r"are those of 'test_resnet'.* take backbone=test_res"):
        create_backbone("test_vit", weights=folder)

    class Bomb:
        def __reduce__(self):
            return Path.touch, (tmp_path / "ran",)

    foreign, bomb = tmp_path / "foreign", pickle.dumps(Bomb())
    foreign.mkdir()
    (foreign / "config.json").write_text('{"architecture": "test_resnet"}')
    for name, content, told in (
        ("pytorch_model.bin", bomb, "a folder with config.json and model.safetensors"),
        ("model.safetensors", bomb, "cannot be read"),
        ("config.json", b"[1]", "must be a JSON object that names an architecture"),
    ):
        (foreign / name).write_bytes(content)
        with pytest.raises(SettingsError, match=told):
            create_backbone("test_resnet", weights=str(foreign))
    assert not (tmp_path / "ran").exists()


def test_weights_and_names_that_do_not_belong_together_are_refused(hub, tmp_path):
    for name in ("model.json", "model.safetensors"):
        (tmp_path / name).write_bytes((hub[1] / name).read_bytes())
    facts = facts_of(tmp_path / "model.json")
    assert facts.pop("weight_names") == "timm"
    (tmp_path / "model.json").write_text(json.dumps(facts))
    with pytest.raises(CheckpointError, match="holds no usable model"):
        Predictor.load(tmp_path)
    hub[0].save(tmp_path)  # a model of labelwise alone says nothing of names, as ever
    assert "weight_names" not in json.loads((tmp_path / "model.json").read_text())


def test_the_card_holds_the_measured_figures_and_the_limits(hub, tmp_path):
    promise = Promise("precision", 0.9, 0.95, 100, 50, 0.97, "val", "2026-01-01", "exact")
    model, measured = replace(hub[0], promises=(promise.spec(),)), evaluation()
    facts = {"title": "my tagger", "data": "photos|of.csv", "license": "apache-2.0"}
    card = partial(write_model_card, evaluation=measured, **facts)
    export_hub(model, tmp_path / "hub", card)
    read = ModelCard.load(tmp_path / "hub" / "README.md")
    told = (read.data.pipeline_tag, read.data.library_name, read.data.license)
    assert told == ("image-classification", "timm", "apache-2.0")
    assert {"labelwise", "timm", "transformers", "calibrated"} <= set(read.data.tags)
    found = {one.metric_name: one.metric_value for one in read.data.eval_results}
    expected = {one.name: one.value for one in measured.headline if one.value is not None}
    assert found == pytest.approx(expected, abs=1e-6)
    assert read.data.eval_results[0].dataset_name == "photos|of.csv"
    for words in (
        *("dog, red car, Straße, a,b, e.", "photos\\|of.csv", "promised with 95% confidence"),
        *("platt of sigmoid", "(reliability.svg)", "## Intended use"),
        "Never seen with a positive where it was measured: e.",
        "transformers gives the same probabilities as labelwise",
    ):
        assert words in read.content, words
    chart = ElementTree.parse(tmp_path / "hub" / "reliability.svg").getroot()
    assert len(chart.findall(".//{*}circle")) > 5


def test_labels_are_no_markup_in_a_card():
    model = predictor(link=None)
    object.__setattr__(model.space, "names", ("<script>", "a|b", "[x](y)", "*", "e"))
    text = model_card(HubModel(model, "it is small"), evaluation(None), title="t", data="d")
    assert "\\<script\\>, a\\|b, \\[x\\](y), \\*, e." in text
    for words in ("load this folder: it is small.", "library_name: labelwise", "not probabilities"):
        assert words in text, words
    assert "reliability.svg" not in text


def test_a_curve_that_transformers_cannot_express_becomes_platts_line(tmp_path, run_verb):
    """Oracles: Platt's own fit on validation; the log loss of scikit-learn on test."""
    rng = np.random.default_rng(1)
    curve = fitted_links()["isotonic of sigmoid"]
    model = predictor("test_resnet", link=curve, rule=Threshold(0.5))
    run = RunFolder(tmp_path / "run")
    model.save(run.path)
    run.settings_path.write_text("data: scenes\nrule: '0.5'\n")
    rows = {}
    for split in ("val", "test"):
        logits = rng.normal(0, 2, (80, 5)).astype(np.float32)
        labels = (rng.uniform(size=logits.shape) < 1 / (1 + np.exp(1 - logits))).astype(np.uint8)
        ids = [f"{split}{row}" for row in range(80)]
        rows[split] = Predictions(ids, logits, labels, None, model.space.names, split, Sigmoid())
        rows[split].save(run.predictions_path(split))
    printed = " ".join(run_verb("export", run.path, "--format", "hf", "-o", tmp_path / "h").split())
    line = platt(rows["val"].logits, rows["val"].labels, Sigmoid())
    expected = [
        np.mean([log_loss(rows["test"].labels[:, k], probs[:, k]) for k in range(5)])
        for probs in (link(rows["test"].logits.astype(np.float64)) for link in (line, curve))
    ]
    assert f"the log loss is {expected[0]:.4f} instead of {expected[1]:.4f}" in printed
    assert 'transformers.pipeline("image-classification"' in printed
    read, picture = Predictor.load(tmp_path / "h"), pictures(1).pixels[0]
    of_line = line(model.predict(picture).logits.astype(np.float64))
    torch.testing.assert_close(read.predict(picture).probs, of_line, atol=1e-6, rtol=0)
    assert "platt of sigmoid" in (tmp_path / "h" / "README.md").read_text()
    assert link_to_spec(run.spec.made_link) == link_to_spec(curve)


def test_the_verbs_write_read_and_measure_a_folder(tmp_path, run_verb):
    model = predictor("test_resnet", link=Sigmoid(), rule=Threshold(0.5))
    model.save(tmp_path / "run")
    lines = ["path,labels"]
    for row, picture in enumerate(pictures(8).pixels):
        Image.fromarray(picture).save(tmp_path / f"{row}.png")
        lines.append(f"{row}.png,{'dog|e' if row % 2 else 'red car'}")
    (tmp_path / "photos.csv").write_text("\n".join(lines))
    source, out = tmp_path / "run", tmp_path / "hub"
    call = ("export", source, "--format", "hf", "-o", out)
    assert "has no test predictions; give labelled photos" in refused(*call)
    assert "--int8 does not apply: it is not an option of --form" in refused(*call, "--int8")
    printed = run_verb(*call, "--data", tmp_path / "photos.csv")
    assert "gives the same logits" in printed
    assert 'transformers.pipeline("image-classification"' in printed
    assert "On 8 pictures of photos.csv" in (out / "README.md").read_text()
    assert "0.png" in run_verb("predict", out, tmp_path / "0.png")
    assert "is there already" in refused(*call, "--data", tmp_path / "photos.csv")
