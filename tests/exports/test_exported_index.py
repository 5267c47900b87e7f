"""Indexes and servers of an exported file. Oracle: those of the run that it was made of."""

import json
import shutil

import numpy as np
import pytest
import torch
from export_samples import pictures, predictor, spec
from onnx import helper
from PIL import Image
from web_setup import running

from labelwise.decide import Threshold
from labelwise.errors import DataError, SettingsError
from labelwise.exports.network import export_network
from labelwise.exports.onnx_file import export_onnx
from labelwise.links import Sigmoid
from labelwise.models import load_model
from labelwise.models.graph_file import GraphFeatures, features_of
from labelwise.models.loading import caution_of, spec_of
from labelwise.photos import Index, update_index
from labelwise.photos.query import nearest_photos, photos_like
from labelwise.system.progress import Silent

COUNT = 12


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A run's model, its file, photos, and an index by each."""
    folder = tmp_path_factory.mktemp("exported")
    model = predictor(link=Sigmoid(), rule=Threshold((0.3, 0.4, 0.5, 0.6, 0.7)))
    model.save(folder / "run")
    export_onnx(model, spec(model), folder / "model.onnx", pictures(2))
    (folder / "photos").mkdir()
    random = np.random.default_rng(3)
    for number in range(COUNT):
        pixels = random.integers(0, 256, (24 + number, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{number}.png")
    for name in ("run", "model.onnx"):
        changes = update_index(
            folder / f"{name}.index", [folder / "photos"], model=folder / name, watch=Silent()
        )
        assert changes.new == COUNT
    return folder


def logits_by_name(index):
    columns = np.stack([index.store.column(k) for k in range(len(index.space))], axis=1)
    paths = index.store.paths_of(range(len(index)))
    return {path.rpartition("/")[2]: columns[row] for row, (path,) in paths.items()}


def test_an_index_by_a_file_holds_what_one_by_its_run_does(places):
    with Index(places / "run.index") as own, Index(places / "model.onnx.index") as exported:
        expected, found = logits_by_name(own), logits_by_name(exported)
        assert found.keys() == expected.keys()
        for name, logits in expected.items():
            np.testing.assert_allclose(found[name], logits, atol=1e-4)
        row = own.store.row_of(str(places / "photos" / "3.png"))
        other = exported.store.row_of(str(places / "photos" / "3.png"))
        alike = [[hit.paths for hit in nearest_photos(own, row, 4)[1]]]
        alike.append([hit.paths for hit in nearest_photos(exported, other, 4)[1]])
        assert alike[0] == alike[1]
        new = places / "new.png"
        shutil.copy(places / "photos" / "3.png", new)
        Image.open(new).rotate(90, expand=True).save(new)
        found = photos_like(exported, str(new), 2)[1]
        assert [hit.paths for hit in found] == [
            hit.paths for hit in photos_like(own, str(new), 2)[1]
        ]
        assert exported.held_out is None
        assert exported.spec.backbone.name == "float32 ONNX"


def test_features_are_those_of_the_backbone(places):
    model, file = load_model(places / "run"), load_model(places / "model.onnx")
    pixels = torch.randint(0, 256, (3, 3, model.transform.size, model.transform.size))
    expected, found = (one.embed(pixels.to(torch.uint8)) for one in (model, file))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_an_index_goes_on_with_the_model_it_was_made_with_alone(places):
    index = places / "model.onnx.index"
    assert update_index(index, watch=Silent()).unchanged == COUNT
    with pytest.raises(DataError, match="was made with other weights"):
        update_index(index, model=places / "run", watch=Silent())


def test_a_server_answers_and_searches_with_a_file(places):
    photo = (places / "photos" / "5.png").read_bytes()
    answers = []
    for name in ("run", "model.onnx"):
        with running(places / name, places / f"{name}.index") as client:
            status, _, body = client.upload(("5.png", photo))
            assert status == 200, body
            (answer,) = json.loads(body)["results"]
            found = client.get("/api/v1/search?q=dog&top=3")
            answers.append(
                (
                    {one["label"]: one["probability"] for one in answer["labels"]},
                    [hit["name"] for hit in found["hits"]],
                )
            )
    (expected, order), (found, same) = answers
    assert found == pytest.approx(expected, abs=1e-5)
    assert same == order


def test_what_cannot_be_indexed_says_so_before_anything_is_written(places, tmp_path):
    head = predictor(head="query2label", link=Sigmoid())
    network = export_network(head.model, head.transform.size)
    network.graph.node.append(helper.make_node("Identity", ["network_logits"], ["logits"]))
    assert features_of(network) is None
    linear = export_network(load_model(places / "run").model, 32)
    linear.graph.node.append(helper.make_node("Identity", ["network_logits"], ["logits"]))
    assert isinstance(features_of(linear), GraphFeatures)
    (tmp_path / "vino").mkdir()
    (tmp_path / "vino" / "model.xml").touch()
    with pytest.raises(SettingsError, match="is for OpenVINO, which predicts with it"):
        spec_of(tmp_path / "vino")
    assert caution_of(places / "model.onnx") is None
