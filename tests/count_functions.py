"""How much of labelwise four everyday things pass through: functions, files and rooms that run.

    python tests/count_functions.py        # functions, files and rooms on each road

A function is counted once however often it runs, in whichever thread; what happens in processes of
their own is not seen, so pictures are opened in threads. The body of a class, which runs when its
module is first imported, is not a function. Rooms are the folders of the package.
"""

import inspect
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

from search_setup import picture, save_model
from web_setup import encoded, running

import labelwise

HOME = str(Path(labelwise.__file__).parent) + "/"


class Counter:
    """Notes which functions of the package begin while it counts."""

    def __init__(self, until=None):
        self.seen, self.counts, self.until = set(), False, until

    def __call__(self, frame, event, _):
        if not self.counts or event != "call":
            return
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        if is_function and code.co_filename.startswith(HOME):
            place = code.co_filename[len(HOME) :]
            self.seen.add((place, code.co_qualname))
            if self.until is not None and self.until(place, code.co_name):
                self.counts = False

    @contextmanager
    def counting(self):
        threading.setprofile(self)
        sys.setprofile(self)
        self.counts = True
        try:
            yield
        finally:
            self.counts = False
            sys.setprofile(None)
            threading.setprofile(None)

    def __str__(self):
        files = {place for place, _ in self.seen}
        rooms = {place.split("/")[0] for place in files}
        return f"{len(self.seen)} / {len(files)} / {len(rooms)}"


def request(folder):
    counter = Counter()
    threading.setprofile(counter)
    try:
        with running(save_model(folder / "run"), decoders=0) as server:
            server.upload(("warm.png", encoded()))  # what is made once is not counted
            counter.counts = True
            assert server.upload(("a.png", encoded(seed=1)))[0] == 200
            counter.counts = False
    finally:
        threading.setprofile(None)
    return counter


def index(folder):
    from labelwise.photos import update_index

    try:
        from labelwise.system.progress import Silent
    except ImportError:  # where it was before
        from labelwise.system.progress import Silent

    for number in range(4):
        picture(folder / "photos" / f"{number}.png", number)
    run, counter = save_model(folder / "run"), Counter()
    with counter.counting():
        update_index(folder / "photos.index", [folder / "photos"], model=run, watch=Silent())
    return counter


def loss(folder):
    lines = ["path,labels,split"]
    for number in range(24):
        picture(folder / f"{number}.png", number)
        split = "val" if number % 3 == 0 else "train"
        lines.append(f"{number}.png,{'dog' if number % 2 else 'cat'},{split}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    counter = Counter(
        until=lambda place, name: place.startswith("objectives/") and name == "forward"
    )
    options = {"method": "bce", "backbone": "small-cnn", "batch_size": 4, "epochs": 1}
    options["accelerator"] = "cpu"
    with counter.counting():
        labelwise.train(folder / "labels.csv", folder / "run", progress=False, **options)
    return counter


def onnx(folder):
    from labelwise.exports.onnx_file import export_onnx

    try:
        from labelwise.pictures import PictureImages
    except ImportError:  # where it was before
        from labelwise.data import PictureImages
    run, counter = save_model(folder / "run"), Counter()
    photos = PictureImages([picture(folder / f"{number}.png", number) for number in range(4)])
    with counter.counting():
        opened = labelwise.RunFolder(run)
        export_onnx(opened.model(), opened.spec, folder / "model.onnx", photos)
    return counter


def main():
    """Print functions / files / rooms of each."""
    for name, path in (
        ("photo in a request -> JSON", request),
        ("folder -> index", index),
        ("CSV -> loss", loss),
        ("run -> ONNX", onnx),
    ):
        with tempfile.TemporaryDirectory() as folder:
            print(f"{name:28} {path(Path(folder))}", flush=True)


if __name__ == "__main__":
    main()
