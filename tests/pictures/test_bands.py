"""Pictures that are not 8-bit RGB. Oracles: tifffile, pydicom, numpy, torch's resize, formulas."""

import json
import time
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from traceback import format_exception

import numpy as np
import pydicom
import pytest
import tifffile
import timm
import torch
from band_files import GEO, band_folder, dicom, npy, tiff
from PIL import Image
from pydicom import Dataset, dcmread
from pydicom.pixels.processing import apply_modality_lut, apply_voi_lut, apply_windowing
from safetensors.torch import save_file
from torch.nn.functional import interpolate

from labelwise.errors import ImageError, SettingsError
from labelwise.learn.backbones import create_backbone
from labelwise.learn.backbones.weights import with_channels_of
from labelwise.pictures import ArrayImages, BytesImages, FileImages, PictureImages, Transform
from labelwise.pictures.batches import read_ahead
from labelwise.pictures.decode import decode, install_for
from labelwise.pictures.multiband import open_cube
from labelwise.pictures.transform import Bands, BandScale, Window, named_bands
from labelwise.pictures.worker import Kind, Work

NAMES = ("B02", "B03", "B04", "B08")
BANDS = Bands(NAMES, ("B04", "B03", "B02"))
SCALE = BandScale(BANDS, (2000.0, 1500.0, 1000.0, 500.0), (400.0, 300.0, 200.0, 100.0))
DEEP = np.random.default_rng(0).integers(0, 65536, (20, 30, 4)).astype(np.uint16)
GREY = Bands(("grey",), ("grey",))
WINDOWED = replace(GREY, window="file")
XRAY = np.random.default_rng(1).integers(0, 4096, (12, 10)).astype(np.uint16)


def read_bands(content, name, bands):
    return BytesImages([content], [name]).read_bands(0, bands)


def transform(size=16, **options):
    return Transform(size, **options).with_bands(SCALE)


@pytest.mark.parametrize(
    "content",
    [
        tiff(DEEP),
        tiff(DEEP, compression="deflate"),
        tiff(DEEP, compression="lzw", predictor=2),
        tiff(DEEP, tile=(16, 16)),
        tiff(DEEP.transpose(2, 0, 1), planarconfig="separate"),
        tiff(DEEP.transpose(2, 0, 1), planarconfig=None),  # one page per band
        tiff(DEEP, byteorder=">"),
        tiff(DEEP, bigtiff=True),
        *(tiff(DEEP.astype(kind)) for kind in (np.float32, np.float64, np.int32)),
        tiff(DEEP, tags=GEO),
        npy(DEEP),
        npy(np.asfortranarray(DEEP)),
    ],
)
def test_every_layout_gives_the_values_that_were_written(content):
    found = read_bands(content, "tile", BANDS)
    np.testing.assert_array_equal(found, DEEP)


def test_bands_are_taken_by_the_names_of_the_file():
    content = tiff(DEEP, names=("B08", "B04", "B03", "B02"))
    np.testing.assert_array_equal(read_bands(content, "tile", BANDS), DEEP[:, :, ::-1])
    some = Bands(("B03",), ("B03",))
    np.testing.assert_array_equal(read_bands(content, "tile", some), DEEP[:, :, 2:3])
    colours = np.random.default_rng(0).integers(0, 256, (8, 6, 3)).astype(np.uint8)
    cube = open_cube(dicom(colours, "RGB", bits=8), "x.dcm")
    np.testing.assert_array_equal(cube.values, colours)
    assert cube.found_names == ("red", "green", "blue")


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setattr("labelwise.pictures.multiband.HAS_TIFF", False)
    monkeypatch.setattr("labelwise.pictures.multiband.HAS_DICOM", False)
    for content, extra in ((tiff(DEEP), "bands"), (dicom(XRAY), "dicom")):
        with pytest.raises(ImageError, match=rf"tile: .*pip install 'labelwise\[{extra}\]'"):
            read_bands(content, "tile", BANDS)
    assert install_for([".dcm", ".heic", ".nef"]) == "pip install 'labelwise[dicom,photos]'"


def test_pixels_without_data_are_the_mean_of_their_band():
    values = DEEP.copy()
    values[3:7, 5:9, 1] = 65535
    values[0, 0, 2] = 65534
    found = read_bands(tiff(values, nodata=65535), "tile", BANDS)
    np.testing.assert_array_equal(np.isnan(found), values == 65535)
    whole = transform(20, crop=None)
    square = replace(whole, interpolation="nearest").resize_bands(found[:, :20])
    np.testing.assert_array_equal(square[3:7, 5:9, 1], np.float32(1500.0))
    normal = whole.normalise(torch.from_numpy(square).permute(2, 0, 1)[None])
    assert (normal[0, 1, 3:7, 5:9] == 0).all()

    # Of a file in which white is zero: 65535 less what was written, its mark is a stored value.
    film = tiff(np.array([[0, 7], [65535, 9]], np.uint16), nodata=0, photometric="miniswhite")
    found = read_bands(film, "film", GREY)
    np.testing.assert_array_equal(found[:, :, 0], [[np.nan, 65528], [0, 65526]])


def test_nan_is_no_data_and_infinity_is_refused():
    values = DEEP.astype(np.float32)
    values[1, 2, 3] = np.nan
    np.testing.assert_array_equal(read_bands(tiff(values), "tile", BANDS), values)
    values[1, 2, 3] = np.inf
    with pytest.raises(ImageError, match="tile: holds infinite values; write NaN"):
        read_bands(tiff(values), "tile", BANDS)


def test_a_folder_of_single_bands_is_one_picture(tmp_path):
    coarse = DEEP[:10, :15, 3]
    bands = {"B02": DEEP[:, :, 0], "B03": DEEP[:, :, 1], "B04": DEEP[:, :, 2], "B08": coarse}
    band_folder(tmp_path / "S2A_patch_1", bands)
    images = FileImages(tmp_path, ["S2A_patch_1"])
    found = images.read_bands(0, BANDS)
    np.testing.assert_array_equal(found[:, :, :3], DEEP[:, :, :3])
    np.testing.assert_array_equal(found[:, :, 3], coarse.repeat(2, 0).repeat(2, 1))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ImageError, match=r"empty: the image cannot be opened \(it is a folder\)"):
        FileImages(tmp_path, ["empty"]).read_bands(0, BANDS)
    band_folder(tmp_path / "odd", {"B02": DEEP[:, :, 0], "B03": DEEP[:7, :, 1]})
    with pytest.raises(ImageError, match="B03 has 30 x 7 pixels, which do not divide the 30 x 20"):
        FileImages(tmp_path, ["odd"]).read_bands(0, BANDS)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "the image is empty"),
        (tiff(DEEP[:, :, :3]), "has 3 bands without names, and 4 are wanted"),
        (tiff(DEEP, names=("a", "b", "c", "d")), "has no band 'B02'; its bands are a, b, c, d"),
        (tiff(DEEP)[:2000], "the image cannot be read"),
        (npy(DEEP)[:2000], "the file ends early"),
        (npy(DEEP[None]), r"must be \(height, width\) or \(..., bands\)"),
        (npy(np.array([{}], object)), "must hold numbers, got object"),
        (npy(DEEP.astype(np.complex64)), "must hold numbers, got complex64"),
        (tiff(DEEP, tags=[(274, "H", 1, 6, True)]), "is stored turned"),
        (b"no picture at all", "cannot be read"),
    ],
)
def test_what_cannot_be_used_gets_one_sentence(content, sentence):
    with pytest.raises(ImageError, match=f"tile: .*{sentence}") as caught:
        read_bands(content, "tile", BANDS)
    assert "\n" not in str(caught.value)


def test_a_picture_with_too_many_pixels_is_not_decoded(monkeypatch):
    monkeypatch.setenv("LABELWISE_MAX_PIXELS", "500")
    for content in (tiff(DEEP), npy(DEEP), dicom(np.zeros((30, 30), np.uint16))):
        with pytest.raises(ImageError, match="more than 500 pixels"):
            read_bands(content, "tile", BANDS)


# DICOM


@pytest.mark.parametrize(
    ("stored", "options"),
    [
        (XRAY, {"RescaleSlope": "2.5", "RescaleIntercept": "-1024"}),
        (XRAY.astype(np.int16) - 2048, {"signed": True}),
        ((XRAY >> 4).astype(np.uint8), {"bits": 8}),
    ],
)
def test_dicom_values_are_the_modality_s(stored, options):
    content = dicom(stored, **options)
    file = dcmread(BytesIO(content))
    expected = apply_modality_lut(file.pixel_array, file)
    found = read_bands(content, "x.dcm", GREY)
    np.testing.assert_allclose(found[:, :, 0], expected, rtol=1e-6)


def test_monochrome1_is_turned_round_within_the_stored_range():
    for slope, shift in ((1, 0), (2, -10)):
        content = dicom(XRAY, "MONOCHROME1", RescaleSlope=slope, RescaleIntercept=shift)
        found = read_bands(content, "x.dcm", GREY)[:, :, 0]
        np.testing.assert_array_equal(found, slope * (4095 - XRAY.astype(np.float32)) + shift)


@pytest.mark.parametrize("function", [None, "LINEAR", "LINEAR_EXACT", "SIGMOID"])
def test_windows_are_those_of_pydicom(function):
    facts = {"WindowCenter": [1800, 2000], "WindowWidth": [900, 4000]}
    facts |= {} if function is None else {"VOILUTFunction": function}
    content = dicom(XRAY, RescaleSlope=1, RescaleIntercept=-100, **facts)
    file = dcmread(BytesIO(content))
    shares = apply_windowing(apply_modality_lut(file.pixel_array, file), file)
    expected = (shares + 100) / 4095  # pydicom gives the range of the rescaled values
    turned = dicom(XRAY, "MONOCHROME1", RescaleSlope=1, RescaleIntercept=-100, **facts)
    for one, shown in ((content, expected), (turned, 1 - expected)):
        found = read_bands(one, "x.dcm", WINDOWED)[:, :, 0]
        np.testing.assert_allclose(found, shown, atol=1e-6)


def test_a_voi_lut_is_used_where_there_is_no_window():
    table = Dataset()
    levels = (np.arange(4096) // 5).astype("<u2")
    table.LUTDescriptor, table.LUTData = [4096, 0, 10], levels.tobytes()
    for kind, turned in (("MONOCHROME2", False), ("MONOCHROME1", True)):
        content = dicom(XRAY, kind, VOILUTSequence=[table])
        file = dcmread(BytesIO(content))
        shares = apply_voi_lut(file.pixel_array, file) / 1023
        found = read_bands(content, "x.dcm", WINDOWED)[:, :, 0]
        np.testing.assert_allclose(found, 1 - shares if turned else shares, atol=1e-6)
    window = {"WindowCenter": 2000, "WindowWidth": 1000}
    both, plain = dicom(XRAY, VOILUTSequence=[table], **window), dicom(XRAY, **window)
    np.testing.assert_array_equal(
        read_bands(both, "x.dcm", WINDOWED), read_bands(plain, "x.dcm", WINDOWED)
    )


def test_each_file_that_pydicom_ships_is_read_or_named_in_time():
    """One of them, image_dfl.dcm, has bytes after its deflated stream."""
    folder = Path(pydicom.__file__).parent / "data" / "test_files"
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert len(files) > 100
    read = {}
    for path in files:
        for window in ("none", "file"):
            begun = time.process_time()
            with suppress(ImageError):
                read[path.name, window] = open_cube(path.read_bytes(), path.name, window)
            assert time.process_time() - begun < 20
    deflated = dcmread(folder / "image_dfl.dcm").pixel_array
    np.testing.assert_array_equal(read["image_dfl.dcm", "none"].values[:, :, 0], deflated)
    assert len(read) > 60


def saved(file):
    stream = BytesIO()
    file.save_as(stream, enforce_file_format=True)
    return stream.getvalue()


def without_pixels():
    file = dcmread(BytesIO(dicom(XRAY)))
    del file.PixelData
    return saved(file)


@pytest.mark.parametrize(
    ("content", "window", "sentence"),
    [
        (dicom(XRAY, NumberOfFrames=3), "none", "holds 3 frames, and a picture has one"),
        (without_pixels(), "none", "this DICOM file holds no pixels"),
        (dicom(XRAY), "file", "states no window; train with --window none"),
        (dicom(XRAY, WindowCenter=9, WindowWidth=0), "file", "width of its window must be"),
        (dicom(XRAY), "none", "has 1 bands without names, and 4 are wanted"),
    ],
)
def test_dicoms_that_cannot_be_used_get_one_sentence(content, window, sentence):
    with pytest.raises(ImageError, match=f"x.dcm: .*({sentence})") as caught:
        read_bands(content, "x.dcm", replace(BANDS, window=window))
    assert "Doe" not in str(caught.value)
    assert "4711" not in str(caught.value)


@pytest.mark.parametrize(
    ("element", "window", "sentence"),
    [
        (0x00280010, "none", "cannot be read (ValueError; values of a DICOM file are not shown)"),
        (0x00280004, "none", "cannot be read (ValueError, element (0028,0004); values of a"),
        (0x00281056, "file", "its window has an unknown shape (VOI LUT Function)"),
    ],
)
def test_no_value_of_a_damaged_dicom_is_told(element, window, sentence):
    """Files that lost some bytes hold names where numbers belong, and pydicom quotes them."""
    file = dcmread(BytesIO(dicom(XRAY, WindowCenter=9, WindowWidth=2)))
    file.add_new(element, "LO", "Doe^Jane")
    with pytest.raises(ImageError) as caught:
        open_cube(saved(file), "x.dcm", window)
    told = "".join(format_exception(caught.value))
    assert sentence in told
    assert "Doe" not in told


# Inputs


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("crop", [None, 0.8])
def test_inputs_are_torch_s_resize_of_what_tifffile_reads(tmp_path, interpolation, crop):
    path = tmp_path / "tile.tif"
    path.write_bytes(tiff(DEEP))
    own = transform(16, interpolation=interpolation, crop=crop)
    (batch,) = read_ahead(
        FileImages(tmp_path, ["tile.tif"]), own, [np.array([0])], device=torch.device("cpu")
    )
    planes = torch.from_numpy(tifffile.imread(path).astype(np.float32)).permute(2, 0, 1)[None]
    size = (16, 16) if crop is None else (20, 30)
    expected = interpolate(planes, size, mode=interpolation, antialias=True)
    if crop is not None:
        expected = expected[:, :, 2:18, 7:23]
    torch.testing.assert_close(batch.values, expected, rtol=0, atol=0)
    mean, std = (torch.tensor(one).view(-1, 1, 1) for one in (SCALE.mean, SCALE.std))
    torch.testing.assert_close(own.inputs(batch.values), (expected - mean) / std)


def test_all_kinds_of_source_give_the_same_input(tmp_path):
    (tmp_path / "a.tif").write_bytes(tiff(DEEP))
    sources = [
        FileImages(tmp_path, ["a.tif"]),
        BytesImages([npy(DEEP)], ["a"]),
        PictureImages([DEEP], any_depth=True),
        PictureImages([tmp_path / "a.tif"]),
        ArrayImages(DEEP[None], any_depth=True),
    ]
    expected = transform().resize_bands(DEEP.astype(np.float32))
    for images in sources:
        (batch,) = read_ahead(images, transform(), [np.array([0])], device=torch.device("cpu"))
        np.testing.assert_array_equal(batch.values[0].permute(1, 2, 0).numpy(), expected)
    window = Window(area=0.25, log_shape=0.0, x=0.0, y=1.0)  # is cut from full depth
    left, top, right, bottom = window.box(30, 20)
    part = DEEP[int(top) : int(np.ceil(bottom)), int(left) : int(np.ceil(right))]
    planes = torch.from_numpy(part.astype(np.float32)).permute(2, 0, 1)[None]
    expected = interpolate(planes, (8, 8), mode="bilinear", antialias=True)[0].permute(1, 2, 0)
    found = transform(8).resize_bands(DEEP.astype(np.float32), window)
    np.testing.assert_array_equal(found, expected.numpy())


def test_the_composite_spreads_two_deviations_to_each_side():
    values = np.zeros((1, 3, 4), np.float32)
    values[0, :, 2] = (1000 - 400, 1000, 1000 + 400)  # B04 is shown as red
    values[0, :, 1] = 1500
    values[0, :, 0] = np.nan
    image = np.asarray(transform().composite(values))
    np.testing.assert_array_equal(image[0, :, 0], [0, 128, 255])
    assert (image[0, :, 1] == 128).all()
    assert (image[0, :, 2] == 0).all()


def test_a_transform_of_bands_is_the_same_after_json():
    own = transform(16, crop=0.8)
    assert Transform(**json.loads(json.dumps(own.spec()))) == own
    assert "bands" not in Transform(16).spec()
    assert Work.from_json(Work(Kind.RESIZED, own).to_json()).transform == own


def test_pictures_of_8_bit_rgb_are_what_they_were():
    with pytest.raises(ImageError, match="DICOM file, which is not 8-bit RGB; train with --bands"):
        decode(dicom(XRAY), "x.dcm")
    with pytest.raises(ImageError, match="holds bands, not 8-bit RGB; train with --bands"):
        decode(tiff(DEEP), "tile.tif")
    with pytest.raises(ImageError, match=r"cannot be read .*; if it holds bands, train with --ban"):
        decode(tiff(np.zeros((4, 9, 9), np.uint16), planarconfig="separate"), "planes.tif")
    with pytest.raises(ImageError, match=r"must be uint8 \(H, W, 3\), got uint16"):
        PictureImages([DEEP], any_depth=True).read(0)
    pixels = np.random.default_rng(0).integers(0, 256, (9, 9, 3)).astype(np.uint8)
    rgb = Bands(("red", "green", "blue"), ("red", "green", "blue"))
    for values, bands in ((pixels, rgb), (XRAY, GREY)):
        stream = BytesIO()
        Image.fromarray(values).save(stream, "PNG")
        found = read_bands(stream.getvalue(), "x.png", bands)
        np.testing.assert_array_equal(found.squeeze(), values)


# Names and networks


def test_names_and_what_is_shown():
    found = named_bands("all", None, "none", ("red", "green", "blue", "nir"))
    assert found.composite == ("red", "green", "blue")
    assert named_bands("a, b", None, "none", None) == Bands(("a", "b"), ("a",))
    for names, composite, window, sentence in (
        ("a,a", None, "none", "different names"),
        ("a,b", "a,b", "none", "one or three of the bands a, b"),
        ("a", None, "3,0", "window must be none, file or CENTER,WIDTH"),
    ):
        with pytest.raises(SettingsError, match=sentence):
            named_bands(names, composite, window, None)


def test_weights_of_three_channels_are_adapted_as_timm_does(tmp_path):
    """Oracle: timm's own loading of the same weights with ``in_chans``."""
    torch.manual_seed(0)
    original = timm.create_model("lcnet_035")
    save_file(original.state_dict(), tmp_path / "w.safetensors")
    overlay = {"state_dict": original.state_dict()}
    for bands in (SCALE, BandScale(GREY, (0.0,), (1.0,))):
        count = len(bands.bands)
        theirs = timm.create_model(
            "lcnet_035", pretrained=True, in_chans=count, pretrained_cfg_overlay=overlay
        )
        given = {"weights": str(tmp_path / "w.safetensors"), "image_size": 32, "bands": bands}
        state = create_backbone("lcnet_035", **given).state_dict()
        for key, value in theirs.state_dict().items():
            if not key.startswith("classifier."):
                torch.testing.assert_close(state[f"network.{key}"], value)
        assert state["network.conv_stem.weight"].shape[1] == count
        own = {key.removeprefix("network."): value for key, value in state.items()}
        assert with_channels_of(theirs, own) is own  # of a run with these bands: as they are
    with pytest.raises(SettingsError, match="takes three channels, and the pictures have 4 bands"):
        create_backbone("torchvision/resnet18", bands=SCALE)
