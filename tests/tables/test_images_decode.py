"""Pictures of every kind become RGB. Oracle: Pillow, whose pixels and refusals they are."""

import io
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageOps

from labelwise.errors import ImageError, SettingsError
from labelwise.pictures import ArrayImages, BytesImages, CropImages, FeatureRows, FileImages
from labelwise.pictures import decode as module
from labelwise.pictures.decode import decode
from labelwise.pictures.sources import JoinedImages


def saved(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def gradient(width=40, height=24):
    ramp = np.linspace(0, 255, width, dtype=np.uint8)
    return Image.fromarray(np.repeat(np.tile(ramp, (height, 1))[..., None], 3, 2))


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "CMYK", "YCbCr", "LA", "RGBA"])
def test_every_common_mode_becomes_rgb(mode):
    kind = "JPEG" if mode in ("CMYK", "YCbCr") else "PNG"
    image = decode(saved(gradient().convert(mode), kind), "x")
    assert (image.mode, image.size) == ("RGB", (40, 24))
    assert image.getpixel((39, 12))[0] - image.getpixel((0, 12))[0] > 200


def rotated(orientation):
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = orientation, "maker"
    return exif


def test_exif_rotation_is_applied():
    image = decode(saved(gradient(40, 24), "JPEG", exif=rotated(6)), "x")
    assert image.size == (24, 40)
    assert image.getpixel((12, 39))[0] - image.getpixel((12, 0))[0] > 200


def test_first_frame_of_an_animation_and_a_smaller_jpeg_but_not_too_small():
    frames = [Image.new("RGB", (5, 5), color) for color in ("red", "blue")]
    content = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decode(content, "x").getpixel((0, 0)) == (255, 0, 0)
    content = saved(gradient(800, 400), "JPEG")
    for at_least, size in ((100, (200, 100)), (401, (800, 400)), (None, (800, 400))):
        assert decode(content, "x", at_least).size == size


def huge_png(width=30_000, height=30_000):
    def chunk(kind, body):
        check = struct.pack(">I", zlib.crc32(kind + body))
        return struct.pack(">I", len(body)) + kind + body + check

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(b"\0" * 100))
    return b"\x89PNG\r\n\x1a\n" + header + body + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"no image at all", "not an image file"),
        (huge_png(), "more than .* pixels"),
        (huge_png(1, 80_000_000), "a side has 80,000,000 pixels"),
        (saved(gradient(), "JPEG")[:-200], "cannot be read"),
        (saved(gradient())[:60], "cannot be read"),
        (saved(Image.new("F", (3, 3), 0.5), "TIFF"), "mode F has no agreed white"),
    ],
)
def test_broken_bytes_are_named(content, reason):
    with pytest.raises(ImageError, match=rf"photo\.jpg: .*{reason}"):
        decode(content, "photo.jpg")


def test_other_formats_never_reach_their_readers(monkeypatch):
    """PostScript would be handed to Ghostscript, whatever the name of the file says."""
    content = saved(gradient(), "EPS")
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *given, **more: 1 / 0)
    with pytest.raises(ImageError, match=r"photo\.jpg: this is not an image file"):
        decode(content, "photo.jpg")


def test_every_listed_format_is_read_by_a_new_process(tmp_path):
    """Pillow knows only five formats until it is asked for more, and WEBP is none of them."""
    for kind in ("WEBP", "AVIF", "BMP", "GIF", "JPEG", "MPO", "PNG", "PPM", "TIFF"):
        options = {"save_all": True, "append_images": [gradient()]} if kind == "MPO" else {}
        (tmp_path / kind).write_bytes(saved(gradient(), kind, **options))
    code = (
        "import sys; from pathlib import Path; from labelwise.pictures.decode import decode\n"
        "for path in sorted(Path(sys.argv[1]).iterdir(), reverse=True):\n"
        "    assert decode(path.read_bytes(), path.name).size == (40, 24), path"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def test_a_missing_or_impossible_path_is_named(tmp_path):
    images = FileImages(tmp_path, ["gone.jpg", "nul\0byte.jpg", "."])
    for row, name in enumerate(["gone.jpg", "nul", str(tmp_path)]):
        with pytest.raises(ImageError, match=name):
            images.read(row)


def test_sources_read_subset_and_compare(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (3, 8, 8, 3), np.uint8)
    contents = [saved(Image.fromarray(picture)) for picture in pixels]
    names = ["0.png", "1.png", "2.png"]
    for name, content in zip(names, contents, strict=True):
        (tmp_path / name).write_bytes(content)
    arrays, blobs = ArrayImages(pixels, names), BytesImages(contents, names)
    joined = JoinedImages([arrays.subset(np.array([0])), blobs.subset(np.array([1, 2]))])
    for source in (arrays, blobs, FileImages(tmp_path, names), joined):
        picked = source.subset(np.array([2, 0]))
        assert list(picked.ids) == ["2.png", "0.png"]
        read = [np.asarray(picked.read(row)) for row in range(2)]
        np.testing.assert_array_equal(read, pixels[[2, 0]])
        assert picked.content(0) != picked.content(1)
    boxes = np.array([[2, 1, 6, 5.2], [-4, -4, 3, 3], [7, 7, 7, 9]])
    crops = CropImages(arrays, boxes, ["a", "b", "c"])
    second = crops.subset(np.array([1]))
    for crop, expected in (
        (crops.read(0), pixels[0, 1:5, 2:6]),
        (second.read(0), pixels[1, :3, :3]),
    ):
        np.testing.assert_array_equal(np.asarray(crop), expected)
    with pytest.raises(ImageError, match="c: the box"):
        crops.read(2)
    with pytest.raises(ImageError, match="features, not images"):
        FeatureRows(np.zeros((2, 3), np.float32)).read(1)
    with pytest.raises(ValueError, match=r"uint8 \(N, H, W, 3\)"):
        ArrayImages(np.zeros((2, 3, 8, 8), np.uint8))


def test_scans_are_refused_by_default_and_read_on_request(monkeypatch):
    """Oracle: the size of the scan, 90 million pixels, and the limit as it was set."""
    scan = saved(Image.new("L", (10_000, 9_000)), "JPEG")
    with pytest.raises(
        ImageError, match=r"^scan: .* more than 89,478,485 pixels; set LABELWISE_MA"
    ):
        decode(scan, "scan")
    scan = saved(Image.new("L", (1_000, 900)), "JPEG")
    monkeypatch.setenv("LABELWISE_MAX_PIXELS", "900000")
    assert decode(scan, "scan").size == (1000, 900)
    monkeypatch.setenv("LABELWISE_MAX_PIXELS", "899999")
    with pytest.raises(ImageError, match="more than 899,999 pixels"):
        decode(scan, "scan")
    for odd in ("many", "0", "-1", "1e9"):
        monkeypatch.setenv("LABELWISE_MAX_PIXELS", odd)
        with pytest.raises(SettingsError, match="must be a whole number"):
            decode(scan, "scan")


PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


@pytest.mark.parametrize(
    "options",
    [
        *({"exif": rotated(orientation)} for orientation in range(1, 9)),
        *({"subsampling": name} for name in ("4:4:4", "4:2:2", "4:2:0")),
        {"icc_profile": PROFILE},
        {"restart_marker_blocks": 3},
        {"comment": "a comment"},
        {"keep_rgb": True},
        {"progressive": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_pixels_of_jpegs_are_pillows_to_the_bit(options):
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (10, 14, 3), np.uint8))
    for mode in ("RGB", "L"):
        photo = coarse.resize((101, 67), Image.Resampling.BICUBIC).convert(mode)
        content = saved(photo, "JPEG", **options)
        expected = ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB")
        np.testing.assert_array_equal(np.asarray(decode(content, "x")), np.asarray(expected))


def test_too_many_pixels_are_refused_before_anything_is_decoded(monkeypatch):
    content = bytearray(saved(gradient(16, 16), "JPEG"))
    struct.pack_into(">HH", content, content.index(b"\xff\xc0") + 5, 60_000, 60_000)
    monkeypatch.setattr(module, "upright_rgb", lambda *given: 1 / 0)
    with pytest.raises(ImageError, match=r"more than .* pixels"):
        decode(bytes(content), "x")
