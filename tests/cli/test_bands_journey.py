"""Pictures of bands in every verb. Oracles: tifffile's values, torch's resize, onnxruntime."""

import csv
import hashlib
import json
from io import BytesIO

import numpy as np
import onnxruntime
import pytest
import tifffile
import torch
from band_files import dicom, npy, tiff
from open_indexes import open_index
from PIL import Image
from torch.nn.functional import interpolate
from typed import must_run, refused
from web_setup import running

from labelwise.errors import DataError, SettingsError
from labelwise.learn.predictor import Predictor
from labelwise.models import load_model
from labelwise.models.scoring import score
from labelwise.pictures import ArrayImages, PictureImages
from labelwise.tables import LabelTable, load, with_validation
from labelwise.training.features import scale_of
from labelwise.training.settings import read_settings

SMALL = (
    *("--backbone", "small-cnn", "--image-size", "24", "--epochs", "1", "--batch-size", "16"),
    *("--accelerator", "cpu", "--calibrator", "none", "--rule", "0.5"),
)
BANDS, NAMES = ("B02", "B03", "B04", "B08", "B11"), ("forest", "water")


def tile(seed):
    """Return a tile (30, 30, 5) of 16 bits and its labels."""
    rng = np.random.default_rng(seed)
    values = rng.normal(2000, 300, (30, 30, 5))
    labels = [name for name in ("water", "forest") if rng.random() < 0.5]
    for name, band in (("water", 0), ("forest", 3)):
        values[5:20, 5:20, band] += 20000 * (name in labels)
    return values.clip(0, 65535).astype(np.uint16), labels


def write_table(path, rows):
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([("path", "labels"), *rows])
    return path


@pytest.fixture(scope="module")
def tiles(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiles")
    rows = []
    for seed in range(40):
        values, labels = tile(seed)
        (folder / f"{seed:02d}.tif").write_bytes(tiff(values, names=BANDS, nodata=0))
        rows.append((f"{seed:02d}.tif", "|".join(labels)))
    return write_table(folder / "labels.csv", rows)


@pytest.fixture(scope="module")
def run(tiles, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "tiles"
    chosen = ("--bands", "all", "--composite", "B04,B03,B02", "--augment", "turn+shift")
    must_run("train", tiles, *chosen, *SMALL, "-o", folder)
    return folder


def by_hand(run, tiles):
    """Return the inputs of tiles in the bands' units, and their answers, without labelwise."""
    facts = json.loads((run / "model.json").read_text())["transform"]
    assert (facts["size"], facts["crop"], facts["interpolation"]) == (24, None, "bilinear")
    planes = torch.from_numpy(np.stack(tiles).astype(np.float32)).permute(0, 3, 1, 2)
    small = interpolate(planes, (24, 24), mode="bilinear", antialias=True)
    mean, std = (torch.tensor(facts[key]).view(-1, 1, 1) for key in ("mean", "std"))
    predictor = Predictor.load(run)
    with torch.inference_mode():
        logits = predictor.model(((small - mean) / std).float()).logits
        return small, np.asarray(predictor.link(logits.double()))


def answers_in(body):
    (answer,) = json.loads(body)["results"]
    return [one["probability"] for one in sorted(answer["labels"], key=lambda one: one["label"])]


def test_the_scale_is_that_of_the_training_split(run, tiles):
    table = with_validation(load(str(tiles)), share=0.1).splits()["train"]
    values = np.stack([tifffile.imread(tiles.parent / name) for name in table.ids])
    flat = values.reshape(-1, 5).astype(np.float64)
    transform = Predictor.load(run).transform
    np.testing.assert_allclose(transform.mean, flat.mean(0), rtol=1e-9)
    np.testing.assert_allclose(transform.std, flat.std(0), rtol=1e-9)


def test_predict_sees_full_depth(run, tiles, tmp_path):
    paths = [tiles.parent / f"{seed:02d}.tif" for seed in range(5)]
    must_run("predict", run, *paths, "-o", tmp_path / "answers.csv")
    with (tmp_path / "answers.csv").open() as stream:
        found = [[float(row[name]) for name in NAMES] for row in csv.DictReader(stream)]
    np.testing.assert_allclose(found, by_hand(run, [*map(tifffile.imread, paths)])[1], atol=2e-5)


def test_evaluate_reads_bands(run, tiles, tmp_path):
    assert "mAP" in must_run("evaluate", run, "--data", tiles, "-o", tmp_path / "again").output
    assert "data:image/" in (tmp_path / "again" / "report.html").read_text()


def test_exports_agree_with_the_model(run, tiles, tmp_path):
    """And a file is run by onnxruntime from values that were read elsewhere."""
    out = tmp_path / "m.onnx"
    said = must_run("export", run, "-o", out, "--pictures", "3").output
    assert "agrees with the model on 3 pictures" in said
    seen = PictureImages([tile(seed)[0] for seed in range(3)], any_depth=True)
    parts = [list(score(model, seen)) for model in (load_model(out), Predictor.load(run))]
    torch.testing.assert_close(parts[0][0].logits, parts[1][0].logits, atol=1e-4, rtol=0)
    values, expected = by_hand(run, [tifffile.imread(tiles.parent / "00.tif")])
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    (found,) = session.run(["probability"], {"pixels": values.numpy()})
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (("--input", "image"), "--input image is for models of 8-bit RGB, and this one takes 5"),
        (("--format", "hf", "--data", "TILES"), "a folder for a hub is for models of 8-bit RGB"),
        (("--with-runtime",), "--with-runtime reads photos; leave it out for --input pixels and"),
    ],
)
def test_exports_that_read_photos_are_refused(run, tiles, tmp_path, given, sentence):
    given = [one.replace("TILES", str(tiles)) for one in given]
    assert sentence in refused("export", run, "-o", tmp_path / "m.onnx", *given)


def test_an_index_holds_the_answers_and_shows_the_composite(run, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "a.tif").write_bytes(tiff(tile(1)[0], names=BANDS))
    (photos / "b.npy").write_bytes(npy(tile(2)[0]))
    (photos / "c.tif").write_bytes(tiff(tile(3)[0][:, :, :3]))
    folder = tmp_path / "library"
    must_run("index", photos, "--model", run, "-o", folder)
    expected = Predictor.load(run).predict([tile(1)[0], tile(2)[0]])
    index = open_index(folder)
    rows = [index.store.row_of(str(photos / name)) for name in ("a.tif", "b.npy")]
    assert len(index) == 2
    found = np.stack([index.store.column(k) for k in range(2)], axis=1)[rows]
    np.testing.assert_allclose(found, expected.logits, atol=1e-4)
    with running(run, folder) as server:
        status, _, body = server.upload(("a.tif", tiff(tile(1)[0], compression="lzw")))
        assert status == 200
        assert answers_in(body) == pytest.approx(expected.probs[0].tolist(), abs=2e-5)
        status, _, body = server.upload(("c.tif", tiff(tile(3)[0][:, :, :3])))
        assert "has 3 bands without names, and 5 are wanted" in body.decode()
        hashed = hashlib.sha256((photos / "a.tif").read_bytes()).hexdigest()
        status, _, body = server.send("GET", f"/api/v1/photos/{hashed}/thumbnail?side=160")
        assert status == 200
        drawn = BytesIO()
        composite = Predictor.load(run).transform.composite(tile(1)[0].astype(np.float32))
        composite.save(drawn, "JPEG", quality=82)
        shown, expected = (np.asarray(Image.open(one)) for one in (BytesIO(body), drawn))
        np.testing.assert_array_equal(shown, expected)


def test_one_server_answers_for_models_of_different_bands(run, tiles, tmp_path):
    """Two bands of 16 bits beside five; of values cut to 8 bits the answers would be others."""
    pair = tmp_path / "pair"
    must_run("train", tiles, "--bands", "B08,B02", *SMALL, "-o", pair)
    values, path = tile(7)[0], "/api/v1/models/pair/predict"
    asked = (("/api/v1/predict", run, values), (path, pair, values[..., [3, 0]]))
    with running(run, models=(("pair", pair),)) as server:
        for place, folder, bands in asked:
            status, _, body = server.upload(("a.npy", npy(bands.copy())), path=place)
            assert status == 200, body
            (expected, cut), found = by_hand(folder, [bands, bands & 0xFF00])[1], answers_in(body)
            assert found == pytest.approx(expected.tolist(), abs=2e-5)
            assert abs(found - cut).max() > 2e-4
        status, _, body = server.upload(("a.npy", npy(values)), path=path)
        assert "has 5 bands without names, and 2 are wanted" in body.decode()


def test_nothing_of_a_patient_leaves_a_dicom(tmp_path):
    rows = []
    for seed in range(12):
        values, labels = tile(seed)
        (tmp_path / f"{seed}.dcm").write_bytes(dicom(values[:, :, 0] >> 4))
        rows.append((f"{seed}.dcm", labels[0] if labels else ""))
    table = write_table(tmp_path / "t.csv", rows)
    run, library = tmp_path / "run", tmp_path / "library"
    must_run("train", table, "--bands", "all", "--window", "2000,4000", *SMALL, "-o", run)
    assert Predictor.load(run).transform.bands.names == ("grey",)
    must_run("index", tmp_path, "--model", run, "-o", library)
    assert len(open_index(library)) == 12
    written = [one for place in (run, library) for one in place.rglob("*") if one.is_file()]
    assert len(written) > 10
    for file in written:
        content = file.read_bytes()
        assert b"Doe^Jane" not in content, file
        assert b"SECRET-4711" not in content, file


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"composite": "a,b,c"}, "composite belongs to bands"),
        ({"window": "file"}, "window belongs to bands"),
        ({"bands": "all", "reduced_jpeg": True}, "reduced_jpeg is for JPEGs"),
    ],
)
def test_settings_that_do_not_apply_are_refused(given, sentence):
    with pytest.raises(SettingsError, match=sentence):
        read_settings(None, {"data": "x", **given})


def test_colour_augmentation_is_refused(tiles, tmp_path):
    given = ("--bands", "all", "--augment", "trivial", *SMALL, "-o", tmp_path / "run")
    assert "augment 'trivial' changes 8-bit colours" in refused("train", tiles, *given)


def test_a_band_that_never_changes_is_named():
    values = np.stack([tile(seed)[0] for seed in range(4)])
    values[..., 2] = 7
    images, split = ArrayImages(values, any_depth=True), np.array(["train"] * 4)
    table = LabelTable.from_arrays(("a",), images, np.ones((4, 1), np.uint8), split=split)
    settings = read_settings(None, {"data": "x", "bands": "a,b,c,d,e"})
    with pytest.raises(DataError, match="band 'c' is 7 in every training picture; leave it out"):
        scale_of(settings.bands, settings, table)
