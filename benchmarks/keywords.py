"""From the keywords of a library to tags that are promised: what is found, what is wrong.

    python benchmarks/keywords.py --data DIR [--photos 2000] [--checked 1800] [--hidden 0.6]

COCO photos (coco80-*.parquet in DIR) become a library of JPEG files. Each true label is hidden
with the chance ``--hidden``; the rest is written by exiftool, into one half of the photos as XMP
and IPTC, and beside the other half as side-cars with digiKam's and Lightroom's lists. Then:

    labelwise data keywords library -o library.csv --least 5
    labelwise train 'train=library.csv;val=checked-val.csv;test=checked-test.csv' --method wan
    labelwise index library --model run
    labelwise tag photos.index --xmp --wrong-at-most 0.2

The checked photos, a third of them for validation, are answered whole, as a person would do it.
Written tags are held to the truth: which share of those that were not there before is wrong, and
which share of the hidden ones is found. Goal: the promise holds on the library. The
library's photos are those that the model learned from, so this is no test of photos it never saw.
"""

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from labelwise.errors import DataError
from labelwise.photos import Index
from labelwise.photos.tagging import promised_rule, tags_of
from labelwise.photos.xmp import entries
from labelwise.tables import load

LEVELS = (0.05, 0.1, 0.2)
Truth = dict[str, set[str]]


def typed(folder: Path, *words: str) -> str:
    """Run a command of labelwise in a folder; return what it said, or end with its complaint."""
    command = [sys.executable, "-m", "labelwise", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr}")
    return done.stdout


def photos_of(data: Path, split: str, count: int) -> Iterable[tuple[bytes, set[str]]]:
    """Yield encoded photos of COCO and the names of their labels."""
    left = count
    for file in sorted(data.glob("coco80-*.parquet")):
        table = pq.read_table(file, columns=["image", "labels", "split"])
        for row in table.to_pylist():
            if left and row["split"] == split:
                left -= 1
                yield row["image"], set(row["labels"])


def write_photos(folder: Path, rows: Iterable[tuple[bytes, set[str]]]) -> Truth:
    """Write photos as JPEG files; return their true labels by name."""
    folder.mkdir()
    truth: Truth = {}
    for number, (content, labels) in enumerate(rows):
        name = f"{number:05d}.jpg"
        with Image.open(BytesIO(content)) as image:
            image.convert("RGB").save(folder / name, quality=92)
        truth[name] = labels
    return truth


def write_keywords(folder: Path, shown: Truth) -> None:
    """Let exiftool write keywords into one half of the photos, and beside the other half."""
    inside: list[dict[str, object]] = []
    for number, (name, labels) in enumerate(shown.items()):
        words = sorted(labels)
        if not words:
            continue
        if number % 2:
            command = ["exiftool", "-q", *(f"-XMP-dc:Subject={word}" for word in words)]
            command += [f"-XMP-digiKam:TagsList={word}" for word in words]
            command += [f"-XMP-lr:HierarchicalSubject={word}" for word in words]
            subprocess.run([*command, str(folder / f"{name}.xmp")], check=True)
        else:
            own = {"SourceFile": str(folder / name), "XMP-dc:Subject": words}
            inside.append(own | {"IPTC:Keywords": words})
    listed, files = folder.parent / "inside.json", folder.parent / "files.txt"
    listed.write_text(json.dumps(inside))
    files.write_text("\n".join(str(one["SourceFile"]) for one in inside))
    command = ["exiftool", "-q", "-overwrite_original", "-codedcharacterset=utf8"]
    subprocess.run([*command, f"-json={listed}", "-@", str(files)], check=True)


def write_checked(folder: Path, name: str, truth: Truth, names: Sequence[str]) -> None:
    """Write a table of photos that a person answered whole: nothing in it is unknown."""
    with (folder / f"{name}.csv").open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["path", "labels", "unknown"])
        for path, labels in truth.items():
            rows.writerow([f"{name}/{path}", "|".join(sorted(labels & set(names))), ""])


def judged(folder: Path, level: float, truth: Truth, shown: Truth) -> str:
    """Return how the tags of a promised rule stand to the truth, or why there is no promise."""
    with Index(folder / "photos.index") as index:
        try:
            made = promised_rule(index, level, 0.95)
        except DataError as error:
            return f"no promise: {error}"
        paths = index.store.paths_of(range(len(index)))
        given = {
            Path(paths[row][0]).name: {one.label for one in keywords}
            for row, keywords in tags_of(index, made.rule)
        }
    tags = sum(map(len, given.values()))
    wrong = sum(len(given[name] - truth[name]) for name in given)
    new = sum(len(given[name] - shown[name]) for name in given)
    hidden = sum(len(truth[name] - shown[name]) for name in truth)
    found = sum(len((given[name] & truth[name]) - shown[name]) for name in given)
    kept = "kept" if wrong <= level * tags else "BROKEN"
    return (
        f"{tags:,} tags, {wrong / max(tags, 1):.1%} wrong ({kept}); {new:,} of them new, "
        f"{wrong / max(new, 1):.1%} of these wrong; {found:,} of {hidden:,} hidden tags found "
        f"({found / max(hidden, 1):.1%})"
    )


def report(folder: Path, given: argparse.Namespace) -> None:
    """Make the library, run the commands, and print what came out."""
    random = np.random.default_rng(0)
    truth = write_photos(folder / "library", photos_of(given.data, "train", given.photos))
    shown = {
        name: {label for label in sorted(labels) if random.random() >= given.hidden}
        for name, labels in truth.items()
    }
    write_keywords(folder / "library", shown)
    print(typed(folder, "data", "keywords", "library", "-o", "library.csv", "--least", "5"), end="")
    names = load(folder / "library.csv").space.names
    for part, split, count in (("val", "val", given.checked // 3), ("test", "test", 0)):
        count = count or given.checked - given.checked // 3
        rows = photos_of(given.data, split, count)
        checked = write_photos(folder / f"checked-{part}", rows)
        write_checked(folder, f"checked-{part}", checked, names)
    source = "train=library.csv;val=checked-val.csv;test=checked-test.csv"
    print(typed(folder, "train", source, "-o", "run", "--method", given.method), end="")
    typed(folder, "index", "library", "--model", "run", "-o", "photos.index")
    own = {name: labels & set(names) for name, labels in truth.items()}
    known = {name: labels & set(names) for name, labels in shown.items()}
    for level in LEVELS:
        print(f"--wrong-at-most {level}: {judged(folder, level, own, known)}")
    try:
        print(typed(folder, "tag", "photos.index", "--xmp", "--wrong-at-most", "0.2"), end="")
    except SystemExit as end:
        print(end)
        return
    lost = sum(
        len(known[name] - entries((folder / "library" / f"{name}.xmp").read_bytes())["dc"])
        for name in known
        if (folder / "library" / f"{name}.xmp").exists()
    )
    print(f"keywords of people that a side-car lost: {lost}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--photos", type=int, default=2000)
    parser.add_argument("--checked", type=int, default=1800)
    parser.add_argument("--hidden", type=float, default=0.6)
    parser.add_argument("--method", default="wan")
    given = parser.parse_args()
    with TemporaryDirectory() as scratch:
        report(Path(scratch), given)


if __name__ == "__main__":
    main()
