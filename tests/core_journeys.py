"""The commands a person begins with, one after the other in this process.

    core_journeys.py OUT                  train, demo, export, and those below with the first model
    core_journeys.py OUT MODEL QUERY      predict, index, search, tag and its undo, serve

The photos are those of ``./photos``. They are indexed twice: in between one is replaced and another
removed. A photo is sent to the server over HTTP. The first model is trained on 96 scenes. What
each command said goes to OUT as JSON; the exit status is 1 if one of them failed.
"""

import io
import json
import re
import signal
import sys
import threading
import urllib.request
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path

from labelwise.cli.app import main
from labelwise.pictures.worker_starter import can_start
from labelwise.tables import scenes
from labelwise.tables.load import GENERATED

PHOTOS = 12
EXPECTED = {"serve": 130, "refused": 1}  # the server is stopped by Ctrl-C


class Said(dict):
    """What commands said, by their names; one that failed ends the program."""

    def __setitem__(self, name, one):
        super().__setitem__(name, one)
        if one["status"] != EXPECTED.get(name, 0) or isinstance(one.get("answer"), str):
            sys.exit(f"{name}: {one}")


class Heard(io.StringIO):
    """Keeps what is written and tells when an address was."""

    def __init__(self):
        super().__init__()
        self.has_address = threading.Event()

    def write(self, text):
        written = super().write(text)
        if "labelwise is at http" in self.getvalue():
            self.has_address.set()
        return written


def run(*words, heard=None):
    """Run a command as typed; return its exit status and what it said on both outputs."""
    heard, complaints, status = heard or io.StringIO(), io.StringIO(), 0
    sys.argv = ["labelwise", *map(str, words)]
    with redirect_stdout(heard), redirect_stderr(complaints):
        try:
            main()
        except SystemExit as end:
            status = end.code or 0
    return {"status": status, "said": heard.getvalue(), "complained": complaints.getvalue()}


def served(*words, photo):
    """Serve until one photo was tagged over HTTP; the answer to it is ``answer``."""
    heard, found = Heard(), {}

    def ask():
        heard.has_address.wait()
        try:
            address = re.search(r"http://\S+/", heard.getvalue())[0]
            kind = {"content-type": "image/png", "origin": address.rstrip("/")}
            place = f"{address}api/v1/predict"
            request = urllib.request.Request(place, photo.read_bytes(), kind)
            with urllib.request.urlopen(request) as answer:
                found["answer"] = json.load(answer)
        except Exception as error:
            found["answer"] = repr(error)
        finally:
            signal.raise_signal(signal.SIGINT)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    return run("serve", *words, heard=heard) | found | {"photo": str(photo)}


def write_table(photos, out):
    """Write a label table of the photos."""
    lines = ["path,labels,split"]
    for number in range(PHOTOS):
        part = ("train", "train", "val", "test")[number // 3 % 4]
        labels = ("3", "7", "3|7")[number % 3]
        lines.append(f"{photos}/scene-{number:03d}.png,{labels},{part}")
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")


def of_the_demo(said):
    """train, demo and export."""
    GENERATED["scenes"] = partial(scenes, 64, 16, 16)
    of_digits = ["--backbone", "small-cnn", "--augment", "shift", "--lr", "5e-3", "--epochs", "6"]
    said["train scenes"] = run("train", "scenes", "-o", "runs/demo", *of_digits)
    photos = Path("photos")
    photos.mkdir()
    new = scenes(0, 0, PHOTOS, seed=1).images
    for number in range(PHOTOS):
        new.read(number).resize((160, 160)).save(photos / f"scene-{number:03d}.png")
    write_table(photos, Path("table.csv"))
    said["demo"] = run("demo", "table.csv", "-o", "runs/tried")
    small = ["--backbone", "small-cnn", "--image-size", "32", "--epochs", "1", "--batch-size", "4"]
    said["train"] = run("train", "table.csv", "-o", "runs/own", *small)
    said["train again"] = run("train", "table.csv", "-o", "runs/own", *small, "--fresh")
    said["export"] = run("export", "runs/demo", "-o", "model.onnx")


def of_photos(said, model, label):
    """predict, index, search, tag and serve."""
    photos = Path("photos")
    said["predict"] = run("predict", model, photos, "-o", "answers.csv")
    index = ["index", photos, "--model", model, "-o", "photos.index"]
    said["index"] = run(*index)
    first, second, third, *_ = sorted(photos.iterdir())
    first.unlink()
    second.write_bytes(third.read_bytes())
    said["index again"] = run(*index)
    said["search"] = run("search", "photos.index", label, "--top", "5")
    said["tag"] = run("tag", "photos.index", "--xmp")
    said["undo"] = run("tag", "photos.index", "--undo")
    served_by = [model, "photos.index", "--port", "0"]
    if not can_start():
        said["refused"] = run("serve", *served_by, "--decoders", "1")
    said["serve"] = served(*served_by, photo=third)


if __name__ == "__main__":
    out, said = Path(sys.argv[1]), Said()
    try:
        if sys.argv[2:]:
            of_photos(said, *sys.argv[2:])
        else:
            of_the_demo(said)
            of_photos(said, "runs/demo", "three, -seven")
    finally:
        out.write_text(json.dumps(said), encoding="utf-8")
