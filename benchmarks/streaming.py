"""Training data in shards: ``python benchmarks/streaming.py [--quick]``.

stream     an epoch of JPEGs in tar or Parquet shards, shuffled, to batches of a network's inputs:
           against the same pictures decoded, resized and stacked by hand from bytes in memory (the
           lower bound of the work), and against files of their own. CPU seconds of one worker;
           above 1 streaming is faster.
features   peak memory while features of more and more images are computed into a file and read in
           a random order, against what the features would take in memory. Memory that is mapped
           from files, which the system takes back, is not counted.
"""

import argparse
import io
import multiprocessing
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from scoring_gpu import noisy_photo
from torch import Tensor

from labelwise.learn.backbones import Backbone
from labelwise.pictures import FileImages, Transform
from labelwise.pictures.decode import decode
from labelwise.tables import LabelTable, load
from labelwise.training import features
from labelwise.training import loader as pixels
from labelwise.training.loader import Loader

SIZE, BATCH, SHARDS = (500, 375), 32, 4
MIB = 2**20


def write_shards(folder: Path, contents: list[bytes]) -> None:
    """Write files, tar shards and Parquet shards of the same pictures."""
    for kind in ("files", "tar", "parquet"):
        (folder / kind).mkdir()
    for number, content in enumerate(contents):
        (folder / "files" / f"{number:05d}.jpg").write_bytes(content)
    for shard in range(SHARDS):
        numbers = range(shard, len(contents), SHARDS)
        with tarfile.open(folder / "tar" / f"train-{shard}.tar", "w") as tar:
            for number in numbers:
                for suffix, content in (("jpg", contents[number]), ("cls", b"0")):
                    member = tarfile.TarInfo(f"{number:05d}.{suffix}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
        columns = {
            "image": [{"bytes": contents[number], "path": None} for number in numbers],
            "labels": [["a"] for _ in numbers],
        }
        pq.write_table(
            pa.table(columns), folder / "parquet" / f"{shard}.parquet", row_group_size=32
        )


def cpu_seconds(work: Callable[[], object], repeats: int = 3) -> float:
    found = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)


def measure_stream(count: int) -> None:
    pixels.CPU_LIMIT = 0  # pictures are decoded in every epoch, as those of large data are
    transform = Transform(224, crop=0.875)
    contents = [noisy_photo(SIZE, seed) for seed in range(count)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_shards(folder, contents)
        names = [f"{number:05d}.jpg" for number in range(count)]
        table = LabelTable.from_arrays(
            ("a",), FileImages(folder / "files", names), np.ones((count, 1), bool)
        )

        def by_hand() -> None:
            for at in range(0, count, BATCH):
                some = [decode(one, "x", transform.at_least()) for one in contents[at : at + BATCH]]
                transform.normalise(torch.stack([transform.pixels(image) for image in some]))

        def epoch(source: LabelTable) -> Callable[[], None]:
            loader = Loader(source, transform, batch_size=BATCH, shuffle=True, workers=1)

            def run() -> None:
                assert sum(len(batch.images) for batch in loader.epoch(0)) == count

            return run

        hand, files = cpu_seconds(by_hand), cpu_seconds(epoch(table))
        print(f"{count} JPEGs of {SIZE[0]} x {SIZE[1]}: by hand {count / hand:.0f} per CPU second")
        for kind in ("tar", "parquet"):
            ours = cpu_seconds(epoch(load(f"file://{folder / kind}")))
            print(
                f"  streamed from {kind:8}{count / ours:6.0f} per CPU second, "
                f"{hand / ours:.2f} x by hand, {files / ours:.2f} x files"
            )


def private_bytes() -> int:
    """Return the memory of this process that no file stands behind."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status does not tell RssAnon")


def peak_of(work: Callable[[], object]) -> int:
    """Return the most memory that a call adds, looked at every few milliseconds."""
    before, most, over = private_bytes(), [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.005):
            most[0] = max(most[0], private_bytes() - before)

    thread = threading.Thread(target=watch)
    thread.start()
    work()
    over.set()
    thread.join()
    return most[0]


class Patches(Backbone):
    """One convolution over patches: as many numbers per image as usual, at once computed."""

    def __init__(self) -> None:
        super().__init__("patches", 320, Transform(32))
        self.convolution = torch.nn.Conv2d(3, 320, 16, 16)

    def forward(self, images: Tensor) -> Tensor:
        return self.convolution(images)


def picture_names(count: int) -> Iterator[str]:
    return (f"{number % 8}.png" for number in range(count))


def child(folder: str, count: int, answer: object) -> None:
    """Compute features of so many images and read them all, twice: the first time warms up."""
    torch.set_num_threads(1)
    features.IN_MEMORY = 0  # they are mapped, as those of more than 2 GiB are
    backbone = Patches()
    transform = backbone.transform

    def work(rows: int, cache: Path) -> int:
        images = FileImages(folder, list(picture_names(rows)))
        table = LabelTable.from_arrays(("a",), images, np.ones((rows, 1), bool))
        found = features.compute(table, backbone, cache, pooled=False, workers=1)
        for _ in Loader(found, transform, batch_size=256, shuffle=True).epoch(0):
            pass
        return found.images.features.nbytes

    with tempfile.TemporaryDirectory() as cache:
        work(512, Path(cache) / "warm")
        sizes: list[int] = []
        peak = peak_of(lambda: sizes.append(work(count, Path(cache) / "all")))
    answer.send((peak, sizes[0]))


def measure_features(counts: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for number in range(8):
            values = np.random.default_rng(number).integers(0, 256, (32, 32, 3), np.uint8)
            Image.fromarray(values).save(Path(folder) / f"{number}.png")
        context = multiprocessing.get_context("spawn")
        for count in counts:
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=child, args=(folder, count, theirs))
            process.start()
            peak, whole = ours.recv()
            process.join()
            print(
                f"features of {count:,} images: {whole / MIB:.0f} MiB in a file, peak memory "
                f"{peak / MIB:.0f} MiB, {peak / count:.0f} bytes per image"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--part", choices=("all", "stream", "features"), default="all")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.part in ("all", "stream"):
        measure_stream(128 if given.quick else 512)
    if given.part in ("all", "features"):
        measure_features([2048, 8192] if given.quick else [4096, 16384, 32768])


if __name__ == "__main__":
    main()
