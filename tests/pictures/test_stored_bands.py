"""Bands go to a device in their file's type. Oracles: NumPy, tifffile, torch's resize, bytes."""

import numpy as np
import pytest
import tifffile
import torch
from band_files import npy, tiff
from faulty_decoders import COMMAND, started_by
from test_batches import fed
from torch.nn.functional import interpolate

from labelwise.pictures import FileImages, Transform
from labelwise.pictures.sources import Location
from labelwise.pictures.transform import Bands, BandScale
from labelwise.pictures.worker import HEADER, SLOT_BYTES, Item, Kind, Work, fill

SIDE = 5  # odd, so that a tile of bytes leaves the next one between two places
BANDS = Bands(("B02", "B03", "B04"), ("B04",))
TRANSFORM = Transform(SIDE).with_bands(BandScale(BANDS, (7.0, 8.0, 9.0), (1.0, 2.0, 3.0)))
RNG = np.random.default_rng(0)
TILE = RNG.integers(0, 65536, (SIDE, SIDE, 3)).astype(np.uint16)
BYTES = RNG.integers(0, 256, (SIDE, SIDE, 3)).astype(np.uint8)
SIGNED = RNG.integers(-32768, 32768, (SIDE, SIDE, 3)).astype(np.int16)
LARGE = RNG.integers(0, 65536, (8, 9, 3)).astype(np.uint16)
PLAIN = {"bytes.npy": BYTES, "tile.npy": TILE, "signed.npy": SIGNED, "again.npy": BYTES}
OTHERS = {
    "float.npy": TILE.astype(np.float32) / 7,
    "wide.npy": TILE.astype(np.int32) * 50,
    "reversed.npy": TILE.astype(">u2"),
    "columns.npy": np.asfortranarray(TILE),
    "large.npy": LARGE,
}


@pytest.fixture(autouse=True, scope="module")
def started_and_ended():
    with started_by(COMMAND):
        yield


@pytest.fixture
def folder(tmp_path):
    for name, values in (PLAIN | OTHERS).items():
        (tmp_path / name).write_bytes(npy(values))
    (tmp_path / "tile.tif").write_bytes(tiff(TILE, compression="lzw"))
    (tmp_path / "gap.tif").write_bytes(tiff(TILE, nodata=int(TILE[0, 0, 0])))
    (tmp_path / "flat.npy").write_bytes(npy(TILE[:, :, 0]))
    (tmp_path / "short.npy").write_bytes(npy(TILE)[:-1])
    (tmp_path / "longer.npy").write_bytes(npy(TILE) + b"more")
    return tmp_path


def by_hand(path):
    """Return the input (3, 5, 5) of a file, by the reader of its kind and torch's resize."""
    values = tifffile.imread(path) if path.suffix == ".tif" else np.load(path)
    planes = torch.from_numpy(values.astype(np.float32)).permute(2, 0, 1)
    if path.name == "gap.tif":
        gaps = torch.from_numpy(values == TILE[0, 0, 0]).permute(2, 0, 1)
        planes = torch.where(gaps, torch.tensor(TRANSFORM.mean)[:, None, None], planes)
    if planes.shape[1:] == (SIDE, SIDE):
        return planes
    return interpolate(planes[None], (SIDE, SIDE), mode="bilinear", antialias=True)[0]


@pytest.mark.parametrize("processes", [False, True])
def test_every_type_and_size_gives_the_numbers_of_the_file(folder, processes):
    names = ["tile.tif", *PLAIN, "short.npy", *OTHERS, "gap.tif", "gone.npy", "flat.npy"]
    names += ["longer.npy", *PLAIN]
    parts = fed(FileImages(folder, names), TRANSFORM, processes=processes)
    reasons = {one.id: one.reason for part in parts for one in part.failures}
    assert set(reasons) == {"short.npy", "gone.npy", "flat.npy"}
    assert "ends early" in reasons["short.npy"]
    assert "has 1 bands without names" in reasons["flat.npy"]
    found = torch.cat([part.values for part in parts])
    expected = [by_hand(folder / name) for name in names if name not in reasons]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=0)


def test_a_tile_takes_the_bytes_of_its_own_type_in_a_slot(folder):
    slot = np.zeros(SLOT_BYTES, np.uint8)
    items = [Item(Location(str(folder / name))) for name in [*PLAIN, "tile.tif", "float.npy"]]
    entries = fill(Work(Kind.PIXELS, TRANSFORM), items, slot, lambda: None)
    kinds = ["uint8", "uint16", "int16", "uint8", "uint16", "float32"]
    assert [entry.dtype for entry in entries] == kinds
    assert [entry.size for entry in entries] == [75, 150, 150, 75, 150, 300]
    assert entries[0].offset == HEADER
    assert all(entry.offset % np.dtype(entry.dtype).itemsize == 0 for entry in entries)
    for entry, values in zip(entries, [*PLAIN.values(), TILE, OTHERS["float.npy"]], strict=True):
        stored = slot[entry.offset : entry.offset + entry.size].view(entry.dtype)
        np.testing.assert_array_equal(stored.reshape(SIDE, SIDE, 3), values)


def test_files_in_the_middle_of_a_crop_are_scaled(folder):
    """Crop .5 scales the shorter side to twice the input, so no tile is the input as it is."""
    cropped = Transform(SIDE, crop=0.5).with_bands(TRANSFORM.band_scale)
    assert TRANSFORM.takes_as_stored(TILE)
    assert not cropped.takes_as_stored(TILE)
    items = [Item(Location(str(folder / "tile.npy")))]
    slot = np.zeros(SLOT_BYTES, np.uint8)
    (entry,) = fill(Work(Kind.PIXELS, cropped), items, slot, lambda: None)
    assert (entry.kind, entry.dtype) == (Kind.RESIZED, "float32")
