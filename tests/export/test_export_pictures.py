"""The resize inside an exported file. Oracle: Transform, which is Pillow."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from PIL import Image

from labelwise.backbones import Transform
from labelwise.export.graph import Graph
from labelwise.export.pictures import write_resize
from labelwise.export.session import open_session

SIZES = [(64, 64), (200, 150), (150, 200), (77, 60), (1, 1), (3000, 10), (10, 900), (90, 700)]
SIZES += [(65, 64), (128, 128), (100, 301), (640, 480), (40, 48)]


def resize(transform, *, exact):
    graph = Graph()
    graph.named(write_resize(graph, transform, "image", exact=exact), "pixels")
    image = helper.make_tensor_value_info("image", TensorProto.UINT8, ["h", "w", 3])
    pixels = helper.make_empty_tensor_value_info("pixels")
    model = helper.make_model(
        graph.body("resize", [image], [pixels]),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=10,
    )
    session = open_session(model, threads=1)
    return lambda picture: session.run(None, {"image": np.asarray(picture)})[0]


def noise(width, height):
    rng = np.random.default_rng(width * 10_000 + height)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))


@pytest.mark.parametrize("crop", [None, 0.875, 1.0])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos", "nearest"])
def test_exact_resize_is_pillow_to_the_bit(interpolation, crop):
    transform = Transform(64, interpolation=interpolation, crop=crop)
    pixels = resize(transform, exact=True)
    for size in SIZES:
        expected = transform.pixels(noise(*size)).numpy()
        np.testing.assert_array_equal(pixels(noise(*size)), expected, err_msg=str(size))


@pytest.mark.parametrize("crop", [None, 0.875])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_the_quick_resize_is_a_level_away_at_most(interpolation, crop):
    transform = Transform(64, interpolation=interpolation, crop=crop)
    pixels = resize(transform, exact=False)
    for size in SIZES:
        apart = pixels(noise(*size)).astype(int) - transform.pixels(noise(*size)).numpy()
        assert np.abs(apart).max() <= 1, size
        assert (apart != 0).mean() < 0.02, size
