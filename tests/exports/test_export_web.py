"""The page in a real browser, served by a plain server. Oracle: the same file in Python.

Chromium decodes JPEG by itself, some levels apart from Pillow; on the same pixels it agrees.
"""

import json
import threading
from base64 import b64decode, b64encode
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import browser_setup
import numpy as np
import pytest
from export_samples import photo, pictures, predictor, spec
from patience import PATIENCE
from PIL import Image
from tiny_predictor import encoded

from labelwise.calibration import Platt
from labelwise.decide import ExpectedF, Threshold
from labelwise.errors import SettingsError
from labelwise.exports.web import export_web, find_runtime
from labelwise.links import Sigmoid
from labelwise.models.graph_model import OnnxModel
from labelwise.pictures.labelwise_runtime import read_picture
from labelwise.pictures.memory import as_images

LINK = Platt(Sigmoid(), [1.0, 2.0, 0.5, 1.0, 1.0], [0.1, 0.0, -0.3, 0.2, 0.0], 1e4)
# Bytes travel as text: a list of numbers is checked one by one on the way, which takes a minute.
READ = """async (text) => {
  const tagger = await import("./tagger.js");
  const bytes = Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
  const pixels = await tagger.pixelsOf(new Blob([bytes]));
  const answers = await tagger.answer(pixels);
  const rgb = btoa(Array.from(pixels.rgb, (one) => String.fromCharCode(one)).join(""));
  return { ...answers, rgb, width: pixels.width, height: pixels.height };
}"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def read_by(page, content):
    """Return what the page answers to the bytes of a picture, and the pixels (H, W, 3) it saw."""
    found = page.evaluate(READ, b64encode(content).decode())
    sides = (found["height"], found["width"], 3)
    return found, np.frombuffer(b64decode(found["rgb"]), np.uint8).reshape(sides)


@pytest.fixture(scope="module")
def runtime():
    """Leave these tests out where neither npm nor an earlier download has the network's runtime."""
    try:
        return find_runtime()
    except SettingsError as error:
        if "npm is not installed" not in str(error):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def site(tmp_path_factory, runtime):
    folder = tmp_path_factory.mktemp("web") / "site"
    model = predictor(link=LINK, rule=Threshold((0.3, 0.4, 0.5, 0.6, 0.7)))
    export_web(model, spec(model), folder, pictures(), range(2), exact_resize=False)
    return folder


@pytest.fixture(scope="module")
def browser():
    with pytest.MonkeyPatch.context() as patched:
        flags = [*browser_setup.FLAGS, "--js-flags=--liftoff-only"]
        patched.setattr(browser_setup, "FLAGS", flags)
        with browser_setup.launched() as browser:
            yield browser


@contextmanager
def opened(browser, site):
    """Yield the page of a folder, ready, and the list of all it asked for and complained of."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    context = browser.new_context(viewport={"width": 390, "height": 800})
    context.set_default_timeout(1000 * PATIENCE)
    page, heard = context.new_page(), []
    home = f"http://127.0.0.1:{server.server_port}/"
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on("request", lambda r: r.url.startswith((home, "blob:", "data:")) or heard.append(r.url))
    try:
        page.goto(home)
        page.wait_for_selector("body[data-ready=yes]", timeout=1000 * PATIENCE)
        yield page, heard
    finally:
        context.close()
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def page(site, browser):
    """To load it takes seconds, of the runtime's compiler; what tests read leaves it as it is."""
    with opened(browser, site) as page:
        yield page


def test_it_answers_as_python_does_on_the_same_pixels(page, site):
    file = OnnxModel.load(site / "model.onnx")
    sizes = [(90, 70), (48, 48), (20, 33), (1, 1), (300, 60), (60, 301)]
    for seed, size in enumerate(sizes):
        picture = pictures(1, size, seed).pixels[0]
        found, seen = read_by(page[0], encoded(Image.fromarray(picture), "PNG"))
        np.testing.assert_array_equal(seen, picture)
        expected = file.answers(file.pixels(picture)[None])
        np.testing.assert_allclose(found["logits"], expected.logits[0], atol=1e-5)
        np.testing.assert_allclose(found["probability"], expected.probability[0], atol=1e-6)
        np.testing.assert_allclose(found["none"], expected.none, atol=1e-6)
        assert [bool(one) for one in found["label"]] == expected.label[0].tolist()
    assert page[1] == []


def test_photos_are_shown_with_their_labels_at_phone_width(page, site, tmp_path):
    file = OnnxModel.load(site / "model.onnx")
    paths = []
    for seed in range(3):
        paths.append(tmp_path / f"{seed}.png")
        Image.fromarray(pictures(1, (90, 70), seed).pixels[0]).save(paths[-1])
    (tmp_path / "broken.png").write_bytes(b"no picture")
    page[0].set_input_files("#files", [*paths, tmp_path / "broken.png"])
    page[0].locator(".bars").nth(2).wait_for()
    page[0].wait_for_selector(".failed")
    words = page[0].locator(".photo .decided").all_text_contents()
    for seed, text in enumerate(reversed(words[1:])):
        answers = file.answers(file.pixels(pictures(1, (90, 70), seed).pixels[0])[None])
        order = (-answers.probability[0]).argsort(kind="stable")
        names = [file.space.names[k] for k in order if answers.label[0, k]]
        assert text.startswith(", ".join(names) or "none")
    assert "cannot be tagged" in words[0]
    assert page[0].locator(".photo img").count() == 3
    assert page[0].evaluate("document.documentElement.scrollWidth") <= 390
    assert "3 photos tagged" in page[0].locator("#status").text_content()


def test_png_files_have_one_probability_everywhere_and_jpeg_files_by_their_decoders(
    browser, tmp_path
):
    """The same graph on the browser's own pixels gives the browser's answer, by any rule."""
    model, site = predictor("test_resnet", link=LINK, rule=ExpectedF()), tmp_path / "site"
    photos = [photo(number) for number in range(56) if number % 10 and number % 7 in (0, 1, 2, 3)]
    export_web(model, spec(model), site, as_images(photos), range(2))
    with opened(browser, site) as (page, _):
        answers = [read_by(page, content) for content in photos]
    file, expected = OnnxModel.load(site / "model.onnx"), model.predict(photos)
    for row, (found, seen) in enumerate(answers):
        if photos[row].startswith(b"\x89PNG"):
            np.testing.assert_allclose(found["probability"], expected.probs[row], atol=1e-5)
            assert [bool(one) for one in found["label"]] == expected.sets[row].tolist()
            continue
        read = read_picture(photos[row])
        assert seen.shape == read.shape
        assert np.abs(seen.astype(int) - read).max() <= 3  # levels, between two decoders
        same = file.answers(file.pixels(seen)[None]).probability[0]
        np.testing.assert_allclose(found["probability"], same, atol=1e-5)


def test_the_page_holds_any_label_name(tmp_path, runtime):
    model = predictor(link=Sigmoid())
    object.__setattr__(model.space, "names", ("</script>", "b", "c", "d", "e"))
    export_web(model, spec(model), tmp_path / "site", pictures(), [0])
    text = (tmp_path / "site" / "index.html").read_text()
    data = text.split('type="application/json">')[1].split("</script>")[0]
    assert json.loads(data)["labels"][0] == "</script>"
    with pytest.raises(SettingsError, match="is there already"):
        export_web(model, spec(model), tmp_path / "site", pictures(), [0])


def test_without_npm_or_with_another_package_the_way_out_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SettingsError, match=r"npm is not installed; fetch .* --runtime"):
        find_runtime()
    (tmp_path / "x.tgz").write_bytes(b"no archive")
    with pytest.raises(SettingsError, match="is not the npm package onnxruntime-web"):
        find_runtime(tmp_path / "x.tgz")
