"""Exported files from the bytes of photos. Oracle: what ``predict`` answers for the same files."""

import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import PIL
import pytest
from export_samples import pictures, predictor, spec
from PIL import Image
from tiny_predictor import encoded

from labelwise.calibration import Platt
from labelwise.decide import Threshold
from labelwise.errors import LabelwiseError, SettingsError
from labelwise.exports import parity
from labelwise.exports.onnx_file import export_onnx
from labelwise.links import Sigmoid
from labelwise.models.graph_model import OnnxModel
from labelwise.pictures import BytesImages, labelwise_runtime
from labelwise.pictures.labelwise_runtime import Tagger, read_picture

LINK = Platt(Sigmoid(), [1.0, 2.0, 0.5, 1.0, 1.0], [0.1, 0.0, -0.3, 0.2, 0.0], 1e4)
RULE = Threshold((0.3, 0.4, 0.5, 0.6, 0.7))
OLDER_PILLOW = int(PIL.__version__.split(".")[0]) < 13


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return a model with its file, which was compared with it."""
    model = predictor(link=LINK, rule=RULE)
    path = tmp_path_factory.mktemp("exported") / "model.onnx"
    export_onnx(model, spec(model), path, pictures(2))
    return model, path


def photo(number):
    """Return the bytes of a photo as cameras, phones, scanners and web sites write them."""
    rng = np.random.default_rng(number)
    large = number % 10 == 0
    sides = rng.integers(500, 900, 2) if large else rng.integers(30, 160, 2)
    picture = Image.fromarray(pictures(1, tuple(sides.tolist()), number).pixels[0])
    exif = Image.Exif()
    exif[0x0112] = number % 8 + 1
    kind = number % 7
    if large or kind < 3:
        return encoded(picture, "JPEG", exif=exif, quality=60 + number % 40, progressive=kind == 1)
    if kind == 3:
        return encoded(picture, "PNG", exif=exif)
    if kind == 4:
        picture.putalpha(Image.radial_gradient("L").resize(picture.size))
        return encoded(picture, "PNG")
    if kind == 5:
        return encoded(picture, "WEBP", exif=exif)
    grey = np.asarray(picture.convert("L")).astype(np.uint16) * 257
    return encoded(Image.fromarray(grey), "PNG")


def test_the_runtime_answers_as_predict_does_from_the_bytes_of_photos(exported):
    model, path = exported
    photos = [photo(number) for number in range(42)]
    answers = model.predict(photos)
    probs, sets = answers.probs.numpy(), answers.sets.numpy()
    tagger = Tagger(path)
    names = model.space.names
    differing = 0
    for row, blob in enumerate(photos):
        found = tagger(blob)
        p = np.array([found.probability[name] for name in names])
        # Two versions of libjpeg round a value in a thousand differently; so does Pillow before 13
        # where it enlarges a side.
        atol = 5e-4 if OLDER_PILLOW else 2e-4 if row % 7 < 3 else 1e-5
        np.testing.assert_allclose(p, probs[row], atol=atol, err_msg=f"photo {row}")
        close = np.abs(probs[row] - np.array(RULE.value)) < atol
        chosen = np.array([name in found.labels for name in names])
        differing += int((chosen != sets[row])[~close].sum())
        assert found.labels == sorted(found.labels, key=lambda name: -found.probability[name])
    assert differing == 0
    assert sets.any()
    assert not sets.all()


def photo_of_a_phone():
    """Return the bytes of a HEIC photo."""
    pillow_heif = pytest.importorskip("pillow_heif", reason="HEIC needs the photos extra")
    picture = Image.fromarray(pictures(1, (96, 128)).pixels[0])
    buffer = io.BytesIO()
    pillow_heif.from_pillow(picture).save(buffer, quality=80)
    return buffer.getvalue()


@pytest.mark.parametrize("made", [lambda: photo(0), photo_of_a_phone], ids=["jpeg", "heic"])
def test_the_runtime_runs_alone_and_silently(exported, tmp_path, made):
    model, path = exported
    shutil.copy(path, tmp_path)
    shutil.copy(labelwise_runtime.__file__, tmp_path)
    blob = made()
    (tmp_path / "a").write_bytes(blob)
    program = (
        "import json, sys; from labelwise_runtime import Tagger; "
        "answer = Tagger('model.onnx')('a'); "
        "assert not {'torch', 'labelwise'} & set(sys.modules); "
        "print(json.dumps(answer._asdict()))"
    )
    options = {"env": {}, "capture_output": True, "text": True, "check": True}
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, **options)
    assert done.stderr == ""  # onnxruntime warns of no part of the file
    found, expected = json.loads(done.stdout), model.predict(blob).probs[0].numpy()
    p = [found["probability"][name] for name in model.space.names]
    np.testing.assert_allclose(p, expected, atol=1e-5)
    np.testing.assert_allclose(found["none"], np.prod(1 - expected), rtol=1e-4)


def test_the_snippet_of_the_docs_reads_a_turned_photo_as_predict_does(
    exported, tmp_path, monkeypatch
):
    model, path = exported
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
    (snippet,) = re.findall(r"```python\n((?:(?!```).)*?exif_transpose.*?)```", page, re.S)
    shutil.copy(path, tmp_path / "model.onnx")
    (tmp_path / "pictures").mkdir()
    blob = photo(5 * 7)  # on its side
    (tmp_path / "pictures" / "0.png").write_bytes(blob)
    monkeypatch.chdir(tmp_path)
    names = {"np": np}
    exec(snippet, names)
    np.testing.assert_allclose(names["probability"], model.predict(blob).probs, atol=1e-5)
    assert names["labels"] == list(model.space.names)


def test_thresholds_are_an_input_where_they_were_asked_for(exported, tmp_path):
    model, _ = exported
    export_onnx(model, spec(model), tmp_path / "open.onnx", pictures(1), open_thresholds=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(tmp_path / "open.onnx", options)
    assert [one.name for one in session.get_overridable_initializers()] == ["thresholds"]
    picture = pictures(1, (123, 217)).pixels[0]
    every = session.run(["label"], {"image": picture, "thresholds": np.zeros(5)})[0]
    own = session.run(["label"], {"image": picture})[0]
    assert every.all()
    np.testing.assert_array_equal(own, model.predict(picture).sets)


def test_a_reader_that_ignores_the_rotation_stops_the_export(exported, tmp_path, monkeypatch):
    def ignorant(content):
        with Image.open(io.BytesIO(content)) as image:
            return np.asarray(image.convert("RGB"))

    monkeypatch.setattr(parity, "read_picture", ignorant)
    model, _ = exported
    with pytest.raises(LabelwiseError, match="decodes a turned JPEG to other pixels"):
        export_onnx(model, spec(model), tmp_path / "m.onnx", pictures(1))
    assert not (tmp_path / "m.onnx").exists()


def test_files_of_the_data_are_compared_from_their_bytes(exported, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        parity, "read_picture", lambda blob: seen.append(blob) or read_picture(blob)
    )
    model, _ = exported
    blobs = [photo(1), photo(4)]
    _, compared = export_onnx(
        model, spec(model), tmp_path / "m.onnx", BytesImages(blobs, ["a", "b"])
    )
    assert seen[:2] == blobs
    assert len(seen) == 8
    assert "on 2 pictures and 6 test files (rotated by EXIF, " in str(compared)


def test_models_that_decode_at_a_reduced_scale_say_so_and_are_not_exported(tmp_path):
    """Oracle: Pillow's own decoding at an eighth of the size."""
    model = predictor(link=LINK, rule=RULE, reduced_jpeg=True)
    model.save(tmp_path / "run")
    again = type(model).load(tmp_path / "run")
    assert again.transform.reduced_jpeg
    blob = encoded(Image.fromarray(pictures(1, (900, 900)).pixels[0]), "JPEG")
    with Image.open(io.BytesIO(blob)) as image:
        image.draft(None, (48, 48))
        assert image.size == (113, 113)
        small = np.asarray(image)
    found = again.predict(blob).probs
    np.testing.assert_array_equal(found, again.predict(small).probs)
    assert (found - predictor(link=LINK, rule=RULE).predict(blob).probs).abs().max() > 1e-4
    with pytest.raises(SettingsError, match="at a reduced scale"):
        export_onnx(model, spec(model), tmp_path / "m.onnx", pictures(1))
    export_onnx(model, spec(model), tmp_path / "p.onnx", pictures(1), input="pixels")
    assert OnnxModel.load(tmp_path / "p.onnx").facts.transform.reduced_jpeg


def test_the_verb_writes_the_runtime_beside_the_file(exported, tmp_path, run_verb):
    exported[0].save(tmp_path / "run")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(photo(1))
    given = ("export", tmp_path / "run", "--data", tmp_path / "photos", "-o", tmp_path / "m.onnx")
    printed = run_verb(*given, "--with-runtime")
    assert "agrees with the model on 1 picture and 6 test files" in printed
    assert "from labelwise_runtime import Tagger; Tagger('m.onnx')(photo)" in printed
    written = (tmp_path / "labelwise_runtime.py").read_text()
    assert "class Tagger" in written
    assert "from labelwise" not in written.replace("from labelwise_runtime", "")
    for odd in (("--input", "pixels"), ("--format", "web")):
        with pytest.raises(SettingsError, match="--with-runtime"):
            run_verb(*given, "--with-runtime", *odd)
    with pytest.raises(SettingsError, match=r"must end in \.onnx, by which it is known, got 'm.b"):
        run_verb(*given[:-1], tmp_path / "m.bin")
