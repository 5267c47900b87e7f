"""Exported files against torch on this machine: latency at batch 1 and 32, eight bits, file sizes.

    python benchmarks/export.py [--backbone NAME] [--weights FILE] [--compile] [--browser]

Peers, in one run, each the median of alternating rounds on the same pixels: torch eager, OpenVINO
where it is installed, and torch.compile with ``--compile`` (a program of its own for each batch
size; its compiler needs minutes, which are not counted). All ratios are to torch eager, or of int8
to float32. Photos are made here, so the figures of mAP and calibration that ``--int8`` prints mean
nothing and are not shown. What the resize costs is shown by itself, exact and fast against Pillow.
``--browser`` times the page's own ``answer`` on photos of 640 x 480 in headless Chromium against
the same file in Python with one thread, from picture to answer. The page has SIMD but one thread:
browsers let threads share memory only in pages with headers that a static server need not send.
"""

import argparse
import importlib.util
import tempfile
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from onnx import ModelProto
from PIL import Image

from labelwise.decide import Threshold
from labelwise.exports import int8
from labelwise.exports.onnx_file import assemble, export_network, export_onnx, facts_of
from labelwise.exports.torch_programs import export_openvino
from labelwise.exports.web import export_web
from labelwise.learn.backbones import create_backbone
from labelwise.links import Sigmoid
from labelwise.models import HeadSpec, Model, Predictor
from labelwise.models.graph_file import Facts
from labelwise.models.graph_model import OnnxModel, OpenVinoModel
from labelwise.pictures import ArrayImages
from labelwise.tables import LabelTable
from labelwise.types import LabelSpace

LABELS = 80


def model(backbone: str, weights: str | None) -> Predictor:
    torch.manual_seed(0)
    network = create_backbone(backbone, weights=weights)
    head = HeadSpec("linear")
    names = LabelSpace(tuple(f"label {k}" for k in range(LABELS)))
    built = Model(network, head.make(network.channels, LABELS)).eval()
    return Predictor(built, head, names, Sigmoid(), Threshold(0.5), "bce")


def photos(count: int, side: int) -> ArrayImages:
    rng = np.random.default_rng(0)
    small = torch.from_numpy(rng.uniform(0, 255, (count, 3, 12, 12)).astype(np.float32))
    large = torch.nn.functional.interpolate(small, (side, side), mode="bicubic").clamp(0, 255)
    return ArrayImages(large.byte().permute(0, 2, 3, 1).contiguous().numpy())


def medians(rounds: int, **ways) -> dict[str, float]:
    """Return the median milliseconds of each way, measured in turn."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    for _ in range(rounds):
        for name, way in ways.items():
            start = perf_counter()
            way()
            times[name].append(1000 * (perf_counter() - start))
    return {name: float(np.median(spent)) for name, spent in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backbone", default="tf_efficientnet_lite0")
    parser.add_argument("--weights")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true", help="torch.compile too; minutes")
    parser.add_argument("--browser", action="store_true", help="the page in Chromium too")
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    predictor = model(options.backbone, options.weights)
    spec, side = predictor.spec("0" * 63 + "1"), predictor.transform.size
    images = photos(32, side)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        whole, _ = export_onnx(predictor, spec, path, images, range(4))
        float32 = OnnxModel.load(path, threads=options.threads)
        vino = None
        if importlib.util.find_spec("openvino"):
            place = Path(folder) / "openvino"
            vino_size, _ = export_openvino(predictor, spec, place, images, range(4))
            vino = OpenVinoModel.load(place, threads=options.threads)
    labels = np.random.default_rng(0).random((32, LABELS)) < 0.2
    table = LabelTable.from_arrays(predictor.space, images, labels)
    network: ModelProto = export_network(predictor.model, side)
    facts = facts_of(predictor, spec)
    small = int8._compacted(int8._quantise(network, int8._file(network, facts), table))
    eight = OnnxModel(int8._file(small, facts).proto, facts, threads=options.threads)
    size = len(eight.proto.SerializeToString())
    print(f"{options.backbone}, {LABELS} labels, input {side}, {options.threads} threads")
    print(f"file: float32 {whole / 1e6:.2f} MB, int8 {size / 1e6:.2f} MB, {whole / size:.2f}x")
    if vino is None:
        print("OpenVINO is not installed, so it is left out")
    else:
        print(f"OpenVINO's folder: {vino_size / 1e6:.2f} MB")
    compiled = torch.compile(predictor.model, dynamic=False)
    for batch in (1, 32):
        pixels = torch.from_numpy(
            np.stack([float32.pixels(images.pixels[k]) for k in range(batch)])
        )
        inputs = predictor.transform.normalise(pixels)
        ways = {
            "eager": lambda pixels=pixels: predictor.logits(pixels),
            "float32": lambda pixels=pixels: float32.answers(pixels.numpy()),
            "int8": lambda pixels=pixels: eight.answers(pixels.numpy()),
        }
        if vino is not None:
            ways["openvino"] = lambda pixels=pixels: vino.answers(pixels.numpy())
        if options.compile:

            def run_compiled(inputs=inputs):
                with torch.inference_mode():
                    compiled(inputs)

            ways["compiled"] = run_compiled
        took = medians(max(3, options.rounds // (1 if batch == 1 else 3)), **ways)
        for name, spent in took.items():
            print(
                f"batch {batch:2}  {name:8} {spent:8.1f} ms  {spent / took['eager']:.2f} of eager"
            )
        print(f"batch {batch:2}  int8 / float32 {took['int8'] / took['float32']:.2f}")
    fast = OnnxModel(*_fast(network, facts))
    for height, width in ((480, 640), (3000, 4000)):
        photo = np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8)
        took = medians(
            5,
            exact=lambda photo=photo: float32.pixels(photo),
            fast=lambda photo=photo: fast.pixels(photo),
            pillow=lambda photo=photo: predictor.transform.pixels(Image.fromarray(photo)),
        )
        words = ", ".join(f"{name} {spent / took['pillow']:.2f}" for name, spent in took.items())
        print(f"resize of {width} x {height}, relative to Pillow: {words}")
    if options.browser:
        in_browser(predictor, options.rounds)


def _fast(network: ModelProto, facts: Facts) -> tuple[ModelProto, Facts]:
    quick = replace(facts, exact_resize=False)
    return assemble(network, quick), quick


def in_browser(predictor: Predictor, rounds: int) -> None:
    from functools import partial
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
    from shutil import which
    from threading import Thread

    from playwright.sync_api import sync_playwright

    photo = np.random.default_rng(1).integers(0, 256, (480, 640, 3), np.uint8)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        site = Path(folder) / "site"
        export_web(predictor, predictor.spec("0" * 63 + "1"), site, photos(1, 96), [0])

        class Quiet(SimpleHTTPRequestHandler):
            """Serves files without a line for each."""

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site))
        Thread(target=server.serve_forever, daemon=True).start()
        chromium = which("chromium") or which("chromium-browser")
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        page.wait_for_selector("body[data-ready=yes]", timeout=120_000)
        spent = page.evaluate(
            """async ([bytes, rounds]) => {
              const tagger = await import("./tagger.js");
              const picture = { rgb: new Uint8Array(bytes), width: 640, height: 480 };
              const times = [];
              for (let k = 0; k <= rounds; k++) {
                const start = performance.now();
                await tagger.answer(picture);
                times.push(performance.now() - start);
              }
              return times.slice(1);
            }""",
            [photo.ravel().tolist(), rounds],
        )
        shared = page.evaluate("globalThis.crossOriginIsolated")
        model = OnnxModel.load(site / "model.onnx", threads=1)
        took = medians(rounds, python=lambda: model.answers(model.pixels(photo)[None]))
        browser.close()
        server.shutdown()
    here = float(np.median(spent))
    threads = "threads" if shared else "no threads, since the page came without their headers"
    print(
        f"browser: {here:.0f} ms per photo, {here / took['python']:.2f} of Python's one thread; "
        f"WASM with SIMD, {threads}"
    )


if __name__ == "__main__":
    main()
