"""Every figure of a GPU in one go: ``python benchmarks/gpu.py OUT``, within nine minutes.

    python benchmarks/gpu.py OUT whole first files nvjpeg

whole    ``labelwise train`` on 15,104 JPEGs, three epochs of EfficientNet-Lite0, command to report,
         and where its seconds went; then the same again, and with ``--deterministic``
first    first_minutes.py: first and later epochs, with graphs alone, compiled cold and warm, eager
files    training.py --part files: from JPEG against the step alone, five runs, ResNet-50; lite0
nvjpeg   scoring.py --device cuda: predict against its decoder and its network alone, both decoders
sizes    ``predict`` by nvJPEG with other portions, decoders and batches
same     first_minutes.py with kernels that compute the same bits each time

Parts run one after the other while the time lasts (``--seconds``); each writes its figures to
OUT/figures.jsonl as it goes (``limits.py keep`` takes them) and its output to OUT/log.txt. Wheels
in ``--wheels`` whose package is missing are unpacked for them.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections import Counter
from itertools import pairwise
from pathlib import Path

HERE = Path(__file__).parent
PARTS = {
    "whole": (220, "gpu.py --only whole"),
    "first": (190, "first_minutes.py --ways graphs eager same cold warm"),
    "nvjpeg": (120, "scoring.py --device cuda --decode both --sizes 500x375 --repeats 5"),
    "files": (100, "training.py --part files --steps 150 --backbones resnet50"),
    "sizes": (60, "gpu.py --only sizes"),
    "lite0": (110, "training.py --part files --steps 150 --backbones tf_efficientnet_lite0"),
    "same": (60, "first_minutes.py --ways eager same-eager"),
}
PHOTOS, LABELS, SIZE = 15_104, 20, (500, 375)


def unpack(wheels: Path, into: Path) -> None:
    """Unpack the wheels of packages that are not there."""
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as file:
            tops = {name.partition("/")[0] for name in file.namelist()}
            packages = [top for top in tops if "." not in top]
            if all(importlib.util.find_spec(name) for name in packages):
                continue
            file.extractall(into)
            print(f"unpacked {wheel.name}", flush=True)


def drive(given: argparse.Namespace) -> None:
    """Run parts in processes of their own, each with what is left of the time."""
    begun = time.monotonic()
    out = given.out
    out.mkdir(parents=True, exist_ok=True)
    library = Path(tempfile.mkdtemp())
    if given.wheels is not None:
        unpack(given.wheels, library)
    paths = [str(HERE.parent / "src"), str(library), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "LABELWISE_FIGURES": str(out / "figures.jsonl"),
        "PYTHONUNBUFFERED": "1",
    }
    for part in given.parts or PARTS:
        left = given.seconds - (time.monotonic() - begun)
        if left < 30:
            print(f"== {part}: no time left", flush=True)
            continue
        most, words = PARTS[part]
        program, *arguments = words.split()
        command = ["timeout", "-k", "5", str(int(min(left, most))), sys.executable]
        started = time.monotonic()
        with (out / "log.txt").open("a") as log:
            log.write(f"== {part}: python benchmarks/{words}\n")
            log.flush()
            done = subprocess.run(
                [*command, str(HERE / program), *arguments],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            took = time.monotonic() - started
            log.write(f"== {part}: status {done.returncode} after {took:.0f} s\n")
        print(f"== {part}: status {done.returncode} after {took:.0f} s", flush=True)
    print((out / "log.txt").read_text()[-11_000:])


def photo(number: int) -> tuple[bytes, list[int]]:
    """Return a JPEG and its labels, each of which brightens a field of its own."""
    from io import BytesIO

    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(number)
    coarse = rng.integers(0, 160, (24, 32, 3), np.uint8)
    labels = np.flatnonzero(rng.random(LABELS) < 0.15).tolist()
    for label in labels:
        down, right = divmod(label, 5)
        coarse[6 * down : 6 * down + 6, 6 * right : 6 * right + 6, label % 3] += 90
    smooth = np.asarray(Image.fromarray(coarse).resize(SIZE, Image.Resampling.BICUBIC))
    grain = rng.integers(-12, 12, smooth.shape, np.int16)
    pixels = (smooth.astype(np.int16) + grain).clip(0, 255).astype(np.uint8)
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=85)
    return buffer.getvalue(), labels


def whole(count: int, device: str) -> None:
    """Time the typed command, and print what its main thread was doing."""
    from multiprocessing import Pool

    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as root:
        folder, lines = Path(root), ["path,labels,split"]
        begun = time.monotonic()
        with Pool() as pool:
            for number, (content, labels) in enumerate(pool.imap(photo, range(count), 32)):
                (folder / f"{number}.jpg").write_bytes(content)
                split = ("val", "test")[number % 2] if number % 10 < 2 else "train"
                lines.append(f"{number}.jpg,{'|'.join(f'l{label}' for label in labels)},{split}")
        (folder / "photos.csv").write_text("\n".join(lines) + "\n")
        print(f"{count} photos made in {time.monotonic() - begun:.0f} s", flush=True)
        network = "tf_efficientnet_lite0"
        runs = (
            ("whole-run", "whole-run-first-epoch", []),
            ("whole-run-again", "whole-run-first-epoch-again", []),
            ("whole-run-same", "whole-run-first-epoch-same", ["--deterministic"]),
        )
        for name, first, more in runs:
            command = [sys.executable, __file__, "--only", "sampled", "train"]
            command += [str(folder / "photos.csv"), "--backbone", network, "--epochs", "3"]
            command += ["--weights", "pretrained", "--precision", "bf16", "--accelerator", device]
            command += ["--batch-size", "128", "--augment", "flip", "-o", str(folder / name), *more]
            begun = time.monotonic()
            done = subprocess.run(command)
            took = time.monotonic() - begun
            print(f"{name}: {took:.1f} s, status {done.returncode}", flush=True)
            if done.returncode == 0:
                record(name, took)
                journal = (folder / name / "metrics.jsonl").read_text().splitlines()
                epochs = [json.loads(line) for line in journal if '"epoch"' in line]
                seconds = [round(one["seconds"], 2) for one in epochs if "seconds" in one]
                print(f"  seconds of training after each epoch: {seconds}", flush=True)
                later = min(two - one for one, two in pairwise(seconds))
                record(first, seconds[0], later)


def sampled(words: list[str]) -> None:
    """Run ``labelwise WORDS`` and print the functions its main thread was in, by seconds."""
    every, main = 0.02, threading.main_thread().ident
    inner: Counter = Counter()
    outer: Counter = Counter()

    def sample() -> None:
        last = time.monotonic()
        while not ended.wait(every):
            spent, last = time.monotonic() - last, time.monotonic()
            frame, chain = sys._current_frames().get(main), []
            while frame is not None:
                code = frame.f_code
                chain.append(f"{Path(code.co_filename).stem}.{code.co_name}")
                frame = frame.f_back
            inner[chain[0] if chain else "none"] += spent
            for name in set(chain):
                outer[name] += spent

    begun, ended = time.monotonic(), threading.Event()
    sampling = threading.Thread(target=sample, daemon=True)
    sampling.start()
    from labelwise.cli import main as run

    sys.argv = ["labelwise", *words]
    status: object = 0
    try:
        run()
    except SystemExit as error:
        status = error.code
    took = time.monotonic() - begun
    ended.set()
    sampling.join()
    print(f"  {took:.1f} s in Python; of these in (functions by cumulative seconds):")
    for name, seconds in outer.most_common(60):
        print(f"    {seconds:7.1f} {name}")
    print("  innermost:")
    for name, seconds in inner.most_common(12):
        print(f"    {seconds:7.1f} {name}")
    sys.stdout.flush()
    os._exit(0 if status in (0, None) else 1)


def sizes(count: int) -> None:
    """Print the photos per second of ``predict`` by nvJPEG, at several sizes of its parts."""
    import torch
    from scoring import make_predictor
    from scoring_gpu import Bfloat16, noisy_photo

    from labelwise.models.scoring import score
    from labelwise.pictures import FileImages, batches

    predictor = make_predictor().fused()
    predictor.model.to("cuda", torch.bfloat16, memory_format=torch.channels_last)
    scorer = Bfloat16(predictor)
    batches.are_worth_it = lambda *given: True
    with tempfile.TemporaryDirectory(dir="/dev/shm") as root:
        for number in range(256):
            (Path(root) / f"{number}.jpg").write_bytes(noisy_photo(SIZE, number))
        images = FileImages(root, [f"{row % 256}.jpg" for row in range(count)])

        def run(batch: int) -> float:
            begun = time.perf_counter()
            for _ in score(scorer, images, batch_size=batch, workers=os.cpu_count(), decode="cuda"):
                pass
            return count / (time.perf_counter() - begun)

        tried = ((256, 2, 256), (512, 2, 256), (256, 3, 256), (256, 2, 512))
        for portion, decoders, batch in tried:
            batches.PORTION, batches.DECODERS = portion, decoders
            run(batch)
            rates = sorted(run(batch) for _ in range(3))
            print(
                f"portions of {portion}, {decoders} decoders, batches of {batch}: "
                f"{rates[0]:,.0f} to {rates[-1]:,.0f} photos/s",
                flush=True,
            )
            record(f"nvjpeg-{portion}-{decoders}-{batch}", rates[1])


def record(name: str, ours: float, peer: float | None = None) -> None:
    place = os.environ.get("LABELWISE_FIGURES")
    if place:
        with Path(place).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"name": name, "ours": ours, "peer": peer}) + "\n")


def main() -> None:
    if sys.argv[1:3] == ["--only", "sampled"]:
        sampled(sys.argv[3:])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, nargs="?", default=Path("figures"))
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []])
    parser.add_argument("--seconds", type=float, default=530)
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--photos", type=int, default=PHOTOS)
    parser.add_argument("--accelerator", default="cuda")
    parser.add_argument("--only", choices=("whole", "sizes"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only == "whole":
        whole(given.photos, given.accelerator)
    elif given.only == "sizes":
        sizes(given.photos)
    else:
        drive(given)


if __name__ == "__main__":
    main()
