"""The page of an exported model in Chromium, on 80 photos from their bytes. Oracle: the model.

A PNG gives the same pixels everywhere, so the same probabilities. Chromium decodes JPEG with a
library of its own, whose levels may be some apart from Pillow's; on the same pixels it agrees.
"""

import threading
from base64 import b64decode, b64encode
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from browser_setup import launched
from patience import PATIENCE
from turned_photos import predictor, write_turned_photos

from labelwise.calibration import Platt
from labelwise.exports.web import export_web
from labelwise.links import Sigmoid
from labelwise.models.graph_model import OnnxModel
from labelwise.pictures.labelwise_runtime import read_picture
from labelwise.pictures.memory import as_images

EXACT = 1e-5
PHOTOS = 80  # every turn of every kind of file, in colour and in grey, twice
LEVELS = 3  # of 255, between two JPEG decoders
# Bytes travel as text: a list of numbers is checked one by one on the way, which takes a minute.
ASK = """async (text) => {
  const tagger = await import("./tagger.js");
  const bytes = Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
  const pixels = await tagger.pixelsOf(new Blob([bytes]));
  const { probability } = await tagger.answer(pixels);
  const shape = [pixels.height, pixels.width];
  const rgb = btoa(Array.from(pixels.rgb, (one) => String.fromCharCode(one)).join(""));
  return { probability: [...probability], rgb, shape };
}"""


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def browser():
    with launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def answers(browser, tmp_path_factory):
    """Of each photo: its path, what the browser says, and what the model says."""
    folder = tmp_path_factory.mktemp("parity")
    (folder / "photos").mkdir()
    photos = write_turned_photos(folder / "photos", PHOTOS)
    model = predictor(Platt(Sigmoid(), [0.5, 1.0, 2.0, 0.25], [-1.0, 0.5, 0.0, 2.0], 1e4))
    site = folder / "site"
    export_web(model, model.spec("0" * 63 + "1"), site, as_images(photos), range(8))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        page = browser.new_page()
        page.set_default_timeout(1000 * PATIENCE)
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        page.wait_for_selector("body[data-ready=yes]", timeout=1000 * PATIENCE)
        found = [page.evaluate(ASK, b64encode(path.read_bytes()).decode()) for path in photos]
    finally:
        server.shutdown()
        server.server_close()
    expected = model.predict(photos).probs.numpy()
    return site, list(zip(photos, found, expected, strict=True))


def test_png_files_have_one_probability_everywhere(answers):
    _, rows = answers
    chosen = [row for row in rows if row[0].suffix == ".png"]
    assert len(chosen) == PHOTOS // 4
    apart = max(np.abs(np.array(found["probability"]) - own).max() for _, found, own in chosen)
    assert apart < EXACT


def test_jpeg_files_differ_by_their_decoders_alone(answers):
    """The same graph on the browser's own pixels gives the browser's answer."""
    site, rows = answers
    file = OnnxModel.load(site / "model.onnx")
    chosen = [row for row in rows if row[0].suffix == ".jpg"]
    assert len(chosen) == PHOTOS - PHOTOS // 4
    levels, by_decoder, by_graph = 0, 0.0, 0.0
    for path, found, own in chosen:
        seen = np.frombuffer(b64decode(found["rgb"]), np.uint8).reshape(*found["shape"], 3)
        read = read_picture(path.read_bytes())
        assert seen.shape == read.shape
        levels = max(levels, int(np.abs(seen.astype(int) - read).max()))
        same = file.answers(file.pixels(seen)[None]).probability[0]
        by_graph = max(by_graph, float(np.abs(found["probability"] - same).max()))
        by_decoder = max(by_decoder, float(np.abs(found["probability"] - own).max()))
    print(f"JPEG: {levels} levels, probabilities {by_decoder:.1e}; same pixels {by_graph:.1e}")
    assert levels <= LEVELS
    assert by_graph < EXACT
