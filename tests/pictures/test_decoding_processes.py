"""Pictures decoded by processes. Oracle: the same, one at a time in this process."""

import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from band_files import npy, tiff
from faulty_decoders import COMMAND, harmful, started_by
from patience import PATIENCE, wait_until
from PIL import Image
from test_batches import BLOBS, BROKEN, SOURCE, by_hand, encoded, fed, joined
from torch.nn.functional import interpolate

from labelwise.errors import ImageError
from labelwise.pictures import (
    BytesImages,
    FileImages,
    JoinedImages,
    PictureImages,
    Transform,
    batches,
    processes,
    worker_starter,
)
from labelwise.pictures.batches import BatchRows, HostResizer
from labelwise.pictures.processes import are_worth_it, borrowed_processes, items_ahead
from labelwise.pictures.sources import SpanImages
from labelwise.pictures.transform import Bands, BandScale
from labelwise.pictures.worker import Kind, Limits, Work
from labelwise.pictures.worker_starter import Decoders
from labelwise.training.augment import ImageDraws, draw_windows
from labelwise.training.loader import DecodingStore

CPU = torch.device("cpu")
TRANSFORM = Transform(24, interpolation="bicubic", crop=0.875)


@pytest.fixture(autouse=True, scope="module")
def started_and_ended():
    with started_by(COMMAND):
        yield


def files(folder: Path) -> FileImages:
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"p {row}.img" for row in range(len(BLOBS))]
    for name, blob in zip(names, BLOBS, strict=True):
        (folder / name).write_bytes(blob)
    return FileImages(folder, names)


@pytest.mark.parametrize("kind", ["files", "bytes", "shard", "pictures", "joined"])
def test_every_source_gives_the_pixels_and_reasons_of_threads(kind, tmp_path):
    folder = files(tmp_path / "a folder")
    paths = [folder.path(row) for row in range(len(BLOBS))]
    (tmp_path / "all.bin").write_bytes(b"".join(BLOBS))
    sizes = np.array([len(blob) for blob in BLOBS])
    places = np.zeros(len(BLOBS), np.int64), np.cumsum(sizes) - sizes, sizes
    images = {
        "files": folder,
        "bytes": SOURCE,
        "shard": SpanImages(tmp_path, [tmp_path / "all.bin"], *places, SOURCE.ids),
        "pictures": PictureImages([paths[0], *BLOBS[1:4], *map(str, paths[4:])]),
        "joined": JoinedImages([SOURCE, folder]).subset(np.arange(len(BLOBS)) + 3),
    }[kind]
    by_threads, by_processes = fed(images, TRANSFORM), fed(images, TRANSFORM, processes=True)
    for before, after in zip(by_threads, by_processes, strict=True):
        assert before.failures == after.failures
        np.testing.assert_array_equal(before.rows, after.rows)
        assert torch.equal(before.values, after.values)
    if kind != "joined":
        np.testing.assert_array_equal(joined(by_processes)[1], by_hand(TRANSFORM)[1])


def test_workers_and_a_starter_that_dies_with_requests_in_its_hands_are_survived():
    """It was killed and takes requests until it is gone: stopped first, so that it surely does."""
    with borrowed_processes(2) as lent:
        for busy in lent._workers:
            busy.worker.await_start()
            os.kill(busy.worker.pid, signal.SIGKILL)
        starter = worker_starter._starter._process.pid
        os.kill(starter, signal.SIGSTOP)
        replace_worker = lent._replace

        def and_the_starter_dies(*given):
            replace_worker(*given)
            if len(replaced) == 1:  # both requests are with it
                os.kill(starter, signal.SIGKILL)
            replaced.append(given)

        replaced = []
        lent._replace = and_the_starter_dies
    by_processes = fed(SOURCE, TRANSFORM, processes=True)
    del lent._replace
    assert len(replaced) == 4
    np.testing.assert_array_equal(joined(by_processes)[1], by_hand(TRANSFORM)[1])


def test_paths_are_relative_to_where_the_program_is_now(tmp_path, monkeypatch):
    files(tmp_path / "here")
    with borrowed_processes(2):  # which start where it was before
        pass
    monkeypatch.chdir(tmp_path)
    images = FileImages("here", [f"p {row}.img" for row in range(len(BLOBS))])
    parts = fed(images, TRANSFORM, processes=True)
    assert joined(parts)[0] == by_hand(TRANSFORM)[0]
    assert [one.reason.split(":")[0] for part in parts for one in part.failures] == [
        os.path.join("here", f"p {row}.img") for row in BROKEN
    ]


def chunks_of(blobs, job, size=4):
    images = BytesImages(blobs, [f"p{row}" for row in range(len(blobs))])
    parts = [list(range(len(blobs)))[at : at + size] for at in range(0, len(blobs), size)]
    with borrowed_processes(2) as lent:
        for chunk in lent.run(job, items_ahead(images, parts, 2)):
            for one in chunk.entries:
                told = isinstance(one, str)
                yield (
                    one if told else (one, chunk.values[one.offset : one.offset + one.size].clone())
                )


@pytest.mark.parametrize("one_is_late", [False, True])
def test_slots_are_used_again_once_they_are_free(one_is_late, monkeypatch):
    """The late process waits until all slots are taken, and half a second more."""
    blobs = [encoded((30, 20), seed, "BMP") for seed in range(60)]
    work = Work(Kind.RESIZED, Transform(640))
    with borrowed_processes(2) as lent:
        for busy in lent._workers:
            busy.worker.await_start()
        late, slots, send = lent._workers[0].worker.pid, lent.slots, lent._send

        def counted_send(busy, work, chunk):
            if chunk.number == slots - 1:
                threading.Timer(0.5, os.kill, (late, signal.SIGCONT)).start()
            send(busy, work, chunk)

        if one_is_late:
            monkeypatch.setattr(lent, "_send", counted_send)
            os.kill(late, signal.SIGSTOP)
    found = list(chunks_of(blobs, work, size=3))
    for blob, (_, values) in zip(blobs, found, strict=True):
        expected = np.asarray(work.transform.resize(Image.open(BytesIO(blob))))
        np.testing.assert_array_equal(values, expected.flatten())


def test_a_picture_that_ends_its_process_or_takes_all_time_is_a_failure_of_its_own(monkeypatch):
    job = Work(Kind.RESIZED, Transform(24))
    blobs = [encoded((60, 40), seed) for seed in range(12)]
    blobs[6] = blobs[7] = harmful("die")
    blobs[9] = harmful("spin")
    processes.close_kept()
    monkeypatch.setattr(processes, "LIMITS", Limits(seconds=0.1))
    with pytest.warns(UserWarning, match=r"^of EXIF data$"):
        found = list(chunks_of([*blobs, harmful("warn of EXIF data", blobs[0])], job))
    processes.close_kept()
    assert [row for row, one in enumerate(found) if isinstance(one, str)] == [6, 7, 9]
    assert "the process that decoded the image ended" in found[6]
    for row in set(range(12)) - {6, 7, 9}:
        image = job.transform.resize(Image.open(BytesIO(blobs[row])))
        assert torch.equal(found[row][1].view(24, 24, 3), torch.from_numpy(np.array(image)))


def test_they_are_lent_to_one_at_a_time_and_kept_for_the_next():
    with borrowed_processes(2) as lent:
        assert are_worth_it(10**6, 2)
        with borrowed_processes(2) as other:
            assert other is None
        threads = fed(SOURCE, TRANSFORM, processes=True)
        np.testing.assert_array_equal(joined(threads)[1], by_hand(TRANSFORM)[1])
    with borrowed_processes(2) as again:
        assert again is lent
    assert are_worth_it(1, 2)


def by_processes(store):
    store.resizer = replace(store.resizer, processes=True)
    return store


def test_training_pixels_and_windows_are_those_of_threads(tmp_path, monkeypatch):
    good = [row for row in range(len(BLOBS)) if row not in BROKEN]
    images = files(tmp_path).subset(np.array(good))
    rows, draws = np.arange(len(good)), ImageDraws(3, torch.arange(len(good)))
    requests = [BatchRows(rows[::-1].copy()), BatchRows(rows, draw_windows(draws).one)]
    store = DecodingStore(images, TRANSFORM, CPU, 2)
    expected, aspects = list(store.batches(requests)), store.aspects
    monkeypatch.setattr(batches, "are_worth_it", lambda images, count: True)
    store = by_processes(DecodingStore(images, TRANSFORM, CPU, 2))
    with monkeypatch.context() as patch:
        patch.setattr(HostResizer, "by_threads", None)
        for before, after in zip(expected, store.batches(requests), strict=True):
            assert torch.equal(before, after)
    np.testing.assert_array_equal(store.aspects, aspects)
    store = by_processes(DecodingStore(files(tmp_path), TRANSFORM, CPU, 2))
    with pytest.raises(ImageError, match=re.escape(f"{tmp_path / 'p 3.img'}: this is not an im")):
        list(store.batches([BatchRows(np.arange(5))]))


PROGRAM = """
import os, sys, time
from labelwise.pictures import Transform
from labelwise.pictures import BytesImages, worker_starter
from labelwise.pictures.worker import Kind, Work
from labelwise.pictures.processes import borrowed_processes, items_ahead

images = BytesImages([b"no image"] * 8, [str(row) for row in range(8)])
work = Work(Kind.RESIZED, Transform(24))
with borrowed_processes(2) as lent:
    list(lent.run(work, items_ahead(images, [range(8)], 1)))
    fork = os.fork()
    if not fork:
        time.sleep(3600)
        os._exit(0)
    try:
        print(worker_starter._starter._process.pid, fork, flush=True)
        sys.stdin.read()
    except KeyboardInterrupt:
        (chunk,) = lent.run(work, items_ahead(images, [range(8)], 1))
        print(len(chunk.entries), flush=True)
    sys.stdin.read()
"""


def test_nothing_is_left_of_a_program_from_a_pipe_that_is_interrupted_and_killed():
    """All processes of the group get Ctrl-C; a killed program cannot clean up.

    A fork of it that lives on has closed what it would hold open.
    """
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; exec(sys.stdin.readline().replace('~', chr(10)))"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        program.stdin.write(PROGRAM.replace("\n", "~") + "\n")
        program.stdin.flush()
        parent, fork = map(int, program.stdout.readline().split())
        workers = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        assert workers
        for pid in (program.pid, parent, *map(int, workers)):
            os.kill(pid, signal.SIGINT)
        assert program.stdout.readline() == "8\n"
        program.kill()
    try:
        for pid in (parent, *map(int, workers)):
            wait_until(partial(_has_ended, pid))
        os.kill(fork, 0)  # which is there
    finally:
        os.kill(fork, signal.SIGKILL)


def _has_ended(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return True
    return state == "Z"  # dead; whoever took it over has not looked yet


# Bands of every type. Oracles: NumPy, tifffile, torch's resize, bytes.


SIDE = 5  # odd, so that a tile of bytes leaves the next one between two places
BANDS = Bands(("B02", "B03", "B04"), ("B04",))
TILED = Transform(SIDE).with_bands(BandScale(BANDS, (7.0, 8.0, 9.0), (1.0, 2.0, 3.0)))
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


@pytest.fixture
def tiles(tmp_path):
    for name, values in (PLAIN | OTHERS).items():
        (tmp_path / name).write_bytes(npy(values))
    (tmp_path / "tile.tif").write_bytes(tiff(TILE, compression="lzw"))
    (tmp_path / "gap.tif").write_bytes(tiff(TILE, nodata=int(TILE[0, 0, 0])))
    (tmp_path / "flat.npy").write_bytes(npy(TILE[:, :, 0]))
    (tmp_path / "short.npy").write_bytes(npy(TILE)[:-1])
    (tmp_path / "longer.npy").write_bytes(npy(TILE) + b"more")
    return tmp_path


def tile_by_hand(path):
    """Return the input (3, 5, 5) of a file, by the reader of its kind and torch's resize."""
    values = tifffile.imread(path) if path.suffix == ".tif" else np.load(path)
    planes = torch.from_numpy(values.astype(np.float32)).permute(2, 0, 1)
    if path.name == "gap.tif":
        gaps = torch.from_numpy(values == TILE[0, 0, 0]).permute(2, 0, 1)
        planes = torch.where(gaps, torch.tensor(TILED.mean)[:, None, None], planes)
    if planes.shape[1:] == (SIDE, SIDE):
        return planes
    return interpolate(planes[None], (SIDE, SIDE), mode="bilinear", antialias=True)[0]


@pytest.mark.parametrize("processes", [False, True])
def test_every_type_and_size_gives_the_numbers_of_the_file(tiles, processes):
    names = ["tile.tif", *PLAIN, "short.npy", *OTHERS, "gap.tif", "gone.npy", "flat.npy"]
    names += ["longer.npy", *PLAIN]
    parts = fed(FileImages(tiles, names), TILED, processes=processes)
    reasons = {one.id: one.reason for part in parts for one in part.failures}
    assert set(reasons) == {"short.npy", "gone.npy", "flat.npy"}
    assert "ends early" in reasons["short.npy"]
    assert "has 1 bands without names" in reasons["flat.npy"]
    found = torch.cat([part.values for part in parts])
    expected = [tile_by_hand(tiles / name) for name in names if name not in reasons]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=0)


def test_bands_of_strangers_are_read_and_shown_too():
    decoders = Decoders(TILED, 1, seconds=PATIENCE, memory=2 << 30)
    try:
        expected = TILED.resize_bands(LARGE.astype(np.float32))
        for content in (tiff(LARGE, compression="lzw"), tiff(LARGE, compression="zstd")):
            np.testing.assert_array_equal(decoders.pixels(content, "tile"), expected)
        assert decoders.thumbnail(npy(LARGE), "tile", 8).startswith(b"\xff\xd8")
        with pytest.raises(ImageError, match="tile: has 2 bands"):
            decoders.pixels(tiff(LARGE[:, :, :2]), "tile")
    finally:
        decoders.close()


def test_they_do_not_start_where_python_cannot_be_started(monkeypatch):
    worker_starter.close_starter()
    monkeypatch.setattr(worker_starter, "COMMAND", "raise SystemExit(1)")
    with borrowed_processes(1) as lent:
        assert lent is None
    worker_starter.close_starter()
