"""The resize inside an exported file. Oracle: Pillow, one side after the other.

Scaled along one side only, all versions of Pillow agree; which side comes first is a matter of the
version, and a file does as Pillow 13.
"""

import numpy as np
import PIL
import pytest
from onnx import TensorProto, helper
from PIL import Image

from labelwise.exports.graph import Graph
from labelwise.exports.onnx_file import write_resize
from labelwise.models.graph_file import open_session
from labelwise.pictures import Transform

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


def by_pillow(transform, image):
    """Return the pixels that Transform gives with Pillow 13, with any Pillow."""
    if transform.crop is not None:  # of a thin picture the middle 16 squares are left
        (width, height), most = image.size, 16 * min(image.size)
        left, top = max(0, (width - most) // 2), max(0, (height - most) // 2)
        image = image.crop((left, top, width - left, height - top))
    (width, height), (wide, tall) = image.size, transform.scale_size(*image.size)
    height_first = height - tall > 2 * max(width - wide, 0)
    between = (width, tall) if height_first else (wide, height)
    for size in (between, (wide, tall)):
        image = image.resize(size, transform.resampling)
    return transform.pixels(image).numpy()


@pytest.mark.skipif(int(PIL.__version__.split(".")[0]) < 13, reason="another order of the sides")
@pytest.mark.parametrize("size", SIZES)
def test_the_oracle_is_what_a_model_sees(size):
    for transform in (Transform(64, interpolation="bicubic", crop=0.875), Transform(48)):
        expected = transform.pixels(noise(*size)).numpy()
        np.testing.assert_array_equal(by_pillow(transform, noise(*size)), expected)


@pytest.mark.parametrize("crop", [None, 0.875, 1.0])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos", "nearest"])
def test_exact_resize_is_pillow_to_the_bit(interpolation, crop):
    transform = Transform(64, interpolation=interpolation, crop=crop)
    pixels = resize(transform, exact=True)
    for size in SIZES:
        expected = by_pillow(transform, noise(*size))
        np.testing.assert_array_equal(pixels(noise(*size)), expected, err_msg=str(size))


@pytest.mark.parametrize("crop", [None, 0.875])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_the_quick_resize_is_a_level_away_at_most(interpolation, crop):
    transform = Transform(64, interpolation=interpolation, crop=crop)
    pixels = resize(transform, exact=False)
    for size in SIZES:
        apart = pixels(noise(*size)).astype(int) - by_pillow(transform, noise(*size))
        assert np.abs(apart).max() <= 1, size
        assert (apart != 0).mean() < 0.02, size
