"""What tests/same_answers.py starts from, and what a person does in it: all by seeds."""

import csv
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

COLOURS = {"red": (220, 30, 30), "green": (30, 190, 40), "blue": (40, 50, 220)}
SIDE_CAR = """<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF
 xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description
 xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:xmp="http://ns.adobe.com/xap/1.0/"
 xmp:Rating="{}"><dc:subject><rdf:Bag><rdf:li>grandma</rdf:li></rdf:Bag></dc:subject>
</rdf:Description></rdf:RDF></x:xmpmeta>"""


def draw_photos(folder: Path, places: Iterable[str], seed: int) -> list[dict[str, Any]]:
    """Write JPEGs with a date and a camera, and return the rows of their table."""
    random, rows = np.random.default_rng(seed), []
    for number, place in enumerate(places):
        there = [name for name in (*COLOURS, "stripe", "dark") if random.random() < 0.35]
        pixels = random.integers(60, 130, (48, 64, 3)).astype(float)
        for name in [name for name in there if name in COLOURS]:
            top, left = random.integers(0, 24), random.integers(0, 32)
            pixels[top : top + 24, left : left + 32] = COLOURS[name]
        pixels[::4] += 60 * ("stripe" in there)
        pixels *= 0.5 if "dark" in there else 1
        exif = Image.Exif()
        exif[0x0110] = "X-T5" if number % 3 else "Box"
        taken = f"202{3 + number % 2}:{1 + number % 12:02d}:05 10:00:{number % 60:02d}"
        exif.get_ifd(0x8769)[0x9003] = taken
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
        picture.save(folder / place, exif=exif, quality=90)
        rows.append({"path": place, "labels": "|".join(there), "group": f"g{number // 2}"})
    return rows


def write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)


def draw_inputs(folder: Path) -> None:
    """Write the photos and tables that everything starts from."""
    from words_setup import save_words_model

    rows = draw_photos(folder, [f"photos/{row}.jpg" for row in range(260)], 1)
    write_table(folder / "photos.csv", rows)
    for at, row in enumerate(rows):
        del row["group"]
        row["split"] = ("train", "train", "val", "train", "test")[at // 2 % 5]
    write_table(folder / "split.csv", rows)
    for row in rows:  # of a training photo one label is known
        row["unknown"] = "*" if row["split"] == "train" else ""
        row["labels"] = row["labels"].split("|")[0] if row["unknown"] else row["labels"]
    write_table(folder / "few.csv", rows)
    photos = draw_photos(folder, [f"library/{2023 + row % 2}/{row}.jpg" for row in range(60)], 2)
    write_table(folder / "library.csv", photos)
    shutil.copy2(folder / "library/2023/0.jpg", folder / "library/2024/copy.jpg")
    Image.open(folder / "library/2023/2.jpg").save(folder / "library/2023/near.jpg", quality=60)
    (folder / "library/broken.jpg").write_bytes(b"no picture")
    for row in range(0, 60, 4):
        (folder / f"library/2023/{row}.xmp").write_text(SIDE_CAR.format(1 + row % 5))
    write_table(folder / "kinds.csv", [{"child": name, "parent": "colour"} for name in COLOURS])
    (folder / "words.txt").write_text("\n".join(COLOURS))
    save_words_model(folder / "words-model")
    for name, end in (("", 40), ("-later", 60)):
        words = [
            {"path": row["path"], **{w: int(w in row["labels"]) for w in COLOURS}} for row in photos
        ]
        write_table(folder / f"said{name}.csv", words[:end])
        checked = [{"path": row["path"], "answer": "yes" if row["red"] else "no"} for row in words]
        write_table(folder / f"checked{name}.csv", checked[:end])
    random = np.random.default_rng(3)
    for name, count in (("scores", 500), ("plain", 300), ("new", 40)):
        truth = random.random((count, 4)) < (0.5, 0.3, 0.2, 0.1)
        odds = (random.normal(size=(count, 4)) + 2 * truth - 1) * (1, 2, 0.5, 1)
        table = [
            {"id": f"{row}.jpg", **{f"score:{at}": odds[row, at] for at in range(4)}}
            for row in range(count)
        ]
        for row, line in enumerate(table if name != "new" else ()):
            line |= {
                f"label:{at}": int(truth[row, at]) if (row + at) % 19 else "" for at in range(4)
            }
            line["site"] = row % 6 // 2
            if name == "scores":
                line |= {"split": ("val", "test")[row % 4 // 2], "group": row // 2}
        write_table(folder / f"{name}.csv", table)


def answer_questions(path: Path) -> None:
    """Fill in a table of questions."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    write_table(path, [row | {"answer": "no" if at % 3 else "yes"} for at, row in enumerate(rows)])


def answer_on_page(folder: Path, rows: range) -> Any:
    """Say of photos on the labelling page whether they are red; return what it then shows."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = f"serve --label library --words words.txt --answers paged.csv --port {port}".split()
    server = subprocess.Popen(
        [sys.executable, "-m", "labelwise", *words], cwd=folder,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    address = f"http://127.0.0.1:{port}/api/v1"
    try:
        while True:
            try:
                asked = urllib.request.urlopen(f"{address}/questions?label=red&who=ada&count=100")
                break
            except OSError:
                if server.poll() is not None:
                    return "no server"
                time.sleep(0.1)
        asked, states = json.load(asked), ("present", "absent", "unsure")
        given = {f"{row}.jpg": states[row % 3] for row in rows}
        given = {one["id"]: given[one["name"]] for one in asked["photos"] if one["name"] in given}
        body = json.dumps({"label": "red", "who": "ada", "states": given}).encode()
        head = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{address}/answers", body, head, method="PUT")
        view = json.load(urllib.request.urlopen(request))
    finally:
        server.terminate()
        server.wait()
    return {"left": asked["left"], "view": view}
