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
from export_samples import photo, pictures, predictor, spec
from PIL import Image
from tiny_predictor import encoded

from labelwise.errors import LabelwiseError, SettingsError
from labelwise.exports import parity
from labelwise.exports.onnx_file import export_onnx
from labelwise.links import Sigmoid
from labelwise.models.graph_model import OnnxModel
from labelwise.pictures import BytesImages, labelwise_runtime
from labelwise.pictures.labelwise_runtime import Tagger, read_picture

OLDER_PILLOW = int(PIL.__version__.split(".")[0]) < 13


def test_the_runtime_answers_as_predict_does_from_the_bytes_of_photos(written):
    model, path = written
    photos = [photo(number) for number in range(42)]
    answers = model.predict(photos)
    probs, sets = answers.probs, answers.sets
    tagger, names = Tagger(path), model.space.names
    for row, blob in enumerate(photos):
        found = tagger(blob)
        p = np.array([found.probability[name] for name in names])
        # Two versions of libjpeg round a value in a thousand differently; so does Pillow before 13
        # where it enlarges a side.
        atol = 5e-4 if OLDER_PILLOW else 2e-4 if row % 7 < 3 else 1e-5
        np.testing.assert_allclose(p, probs[row], atol=atol, err_msg=f"photo {row}")
        close = np.abs(probs[row] - np.array(model.rule.value)) < atol
        chosen = np.array([name in found.labels for name in names])
        assert not (chosen != sets[row])[~close].any()
        assert found.labels == sorted(found.labels, key=lambda name: -found.probability[name])
    assert 0 < sets.sum() < sets.size


def test_the_runtime_runs_alone_and_silently_also_on_photos_of_a_phone(written, tmp_path):
    pillow_heif = pytest.importorskip("pillow_heif", reason="HEIC needs the photos extra")
    model, path = written
    shutil.copy(path, tmp_path)
    shutil.copy(labelwise_runtime.__file__, tmp_path)
    picture = Image.fromarray(pictures(1, (96, 128)).pixels[0])
    pillow_heif.from_pillow(picture).save(tmp_path / "a", quality=80)
    blob = (tmp_path / "a").read_bytes()
    program = (
        "import json, sys; from labelwise_runtime import Tagger; "
        "answer = Tagger('model.onnx')('a'); "
        "assert not {'torch', 'labelwise'} & set(sys.modules); "
        "print(json.dumps(answer._asdict()))"
    )
    options = {"env": {}, "capture_output": True, "text": True, "check": True}
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, **options)
    assert done.stderr == ""  # onnxruntime warns of no part of the file
    found, expected = json.loads(done.stdout), model.predict(blob).probs[0]
    p = [found["probability"][name] for name in model.space.names]
    np.testing.assert_allclose(p, expected, atol=1e-5)
    np.testing.assert_allclose(found["none"], np.prod(1 - expected), rtol=1e-4)


def test_the_snippet_of_the_docs_reads_a_turned_photo(written, tmp_path, monkeypatch):
    model, path = written
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


def test_thresholds_are_an_input_where_they_were_asked_for(written, tmp_path):
    model, _ = written
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


def test_a_reader_that_ignores_the_rotation_stops_the_export(written, tmp_path, monkeypatch):
    def ignorant(content):
        with Image.open(io.BytesIO(content)) as image:
            return np.asarray(image.convert("RGB"))

    monkeypatch.setattr(parity, "read_picture", ignorant)
    model, _ = written
    with pytest.raises(LabelwiseError, match="decodes a turned JPEG to other pixels"):
        export_onnx(model, spec(model), tmp_path / "m.onnx", pictures(1))
    assert not (tmp_path / "m.onnx").exists()


def test_files_of_the_data_are_compared_from_their_bytes(written, tmp_path, monkeypatch):
    (model, _), seen, blobs = written, [], [photo(1), photo(4)]
    monkeypatch.setattr(
        parity, "read_picture", lambda blob: seen.append(blob) or read_picture(blob)
    )
    images = BytesImages(blobs, ["a", "b"])
    _, compared = export_onnx(model, spec(model), tmp_path / "m.onnx", images)
    assert seen[:2] == blobs
    assert len(seen) == 8
    assert "on 2 pictures and 6 test files (rotated by EXIF, " in str(compared)


def test_models_that_decode_at_a_reduced_scale_say_so_and_are_not_exported(tmp_path):
    """Oracle: Pillow's own decoding at an eighth of the size."""
    model = predictor(link=Sigmoid(), reduced_jpeg=True)
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
    assert np.abs(found - predictor(link=Sigmoid()).predict(blob).probs).max() > 1e-4
    with pytest.raises(SettingsError, match="at a reduced scale"):
        export_onnx(model, spec(model), tmp_path / "m.onnx", pictures(1))
    export_onnx(model, spec(model), tmp_path / "p.onnx", pictures(1), input="pixels")
    assert OnnxModel.load(tmp_path / "p.onnx").facts.transform.reduced_jpeg


def test_the_verb_writes_the_runtime_beside_the_file(written, tmp_path, run_verb):
    written[0].save(tmp_path / "run")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(photo(1))
    given = ("export", tmp_path / "run", "--data", tmp_path / "photos", "-o", tmp_path / "m.onnx")
    printed = run_verb(*given, "--with-runtime")
    assert "agrees with the model on 1 picture and 6 test files" in printed
    assert "from labelwise_runtime import Tagger; Tagger('m.onnx')(photo)" in printed
    shipped = (tmp_path / "labelwise_runtime.py").read_text()
    assert shipped == Path(labelwise_runtime.__file__).read_text()
    for odd in (("--input", "pixels"), ("--format", "hf")):
        with pytest.raises(SettingsError, match="--with-runtime"):
            run_verb(*given, "--with-runtime", *odd)
    with pytest.raises(SettingsError, match=r"must end in \.onnx, by which it is known, got 'm.b"):
        run_verb(*given[:-1], tmp_path / "m.bin")
