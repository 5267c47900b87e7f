"""Take the pictures of the pages that README and docs show, with Chromium.

    python docs/images/make_pages.py RUN INDEX COMPARISON LIBRARY PHOTO... -o docs/images

RUN is served with INDEX as anyone would serve it; PHOTO are tagged. COMPARISON is a page that
`compare` wrote; LIBRARY are photos to label, with the table labels.csv. `make pictures` does so
with the open photos.
"""

import argparse
import csv
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

SIZE = {"width": 1280, "height": 720}
MOST_BYTES = 600_000  # of all pictures together
WORD = "animal"  # what is asked about first on the page that labels


@contextmanager
def chromium() -> Iterator[Any]:
    """Open a page in Debian's own browser."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, reduced_motion="reduce", bypass_csp=True)
        page.set_default_timeout(120_000)
        yield page
        browser.close()


def shoot(page: Any, address: str, photos: list[Path], out: Path, query: str) -> list[Path]:
    """Write a picture of each view of a server; return where they are."""
    page.goto(f"{address}#tag")
    page.set_input_files("#files", [str(photo) for photo in photos])
    page.locator(".card .bars").nth(len(photos) - 1).wait_for()
    page.locator(".bars button").first.click()
    page.wait_for_function("document.querySelector('.told').textContent.includes('held-out')")
    page.wait_for_function("document.getElementById('toast').textContent === ''")
    made = [_saved(page, out / "tag.jpg")]
    for view, ready in (("search", "#newest img"), (f"search/{query}", "#grid img")):
        page.goto(f"{address}#{view}")
        page.locator(ready).first.wait_for()
        page.wait_for_function(LOADED)
        made.append(_saved(page, out / f"{'search' if '/' in view else 'serve'}.jpg"))
    return made


def shoot_labelling(page: Any, address: str, table: Path, out: Path) -> Path:
    """Write a picture of the page that asks about photos, answered as the table says."""
    page.goto(address)
    page.locator("#grid img").first.wait_for()
    page.wait_for_function(LOADED)
    with table.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    shown = {Path(row["image"]).name for row in rows if WORD in row["labels"].split("|")}
    for tile in page.locator("#grid button").all():
        if str(tile.get_attribute("aria-label")).rpartition(":")[0].rpartition("/")[2] in shown:
            tile.click()
    page.evaluate("scrollTo(0, 0)")
    return _saved(page, out / "label.jpg")


def shoot_file(page: Any, file: Path, out: Path) -> Path:
    """Write a picture of the top of a page that a command wrote."""
    page.goto(file.resolve().as_uri())
    return _saved(page, out / f"{file.stem}.jpg")


LOADED = """() => [...document.images]
  .filter((one) => one.offsetParent && one.getBoundingClientRect().top < innerHeight)
  .every((one) => one.complete && one.naturalWidth)"""


def _saved(page: Any, path: Path) -> Path:
    """Write what the window shows, in all its colours."""
    picture = Image.open(BytesIO(page.screenshot())).convert("RGB")
    picture.save(path, quality=80, optimize=True, progressive=True)
    return path


@contextmanager
def served(*words: str) -> Iterator[str]:
    """Yield the address at which a command of labelwise serves."""
    command = [sys.executable, "-m", "labelwise", *words, "--port", "0"]
    serving = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        said = (word for line in serving.stdout or () for word in line.split())
        yield next(word for word in said if word.startswith("http"))
    finally:
        serving.terminate()
        serving.wait()


def main() -> None:
    """Serve a run and photos to label, and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("run", "index", "comparison", "library"):
        parser.add_argument(name, type=Path)
    parser.add_argument("photos", type=Path, nargs="+")
    parser.add_argument("--query", default="water, -building")
    parser.add_argument("-o", "--out", type=Path, required=True)
    given = parser.parse_args()
    with chromium() as page, tempfile.TemporaryDirectory() as spare:
        with served("serve", str(given.run), str(given.index)) as address:
            made = shoot(page, address, given.photos, given.out, given.query)
        words = Path(spare) / "words.txt"
        words.write_text("\n".join((WORD, "building", "flower", "water")))
        asking = ("label", str(given.library), "--page", "--words", str(words))
        with served(*asking, "--out", f"{spare}/answers.csv") as address:
            made.append(shoot_labelling(page, address, given.library / "labels.csv", given.out))
        for file in (given.run / "report.html", given.comparison):
            made.append(shoot_file(page, file, given.out))
    for path in made:
        print(f"{path}: {path.stat().st_size:,} bytes")
    size = sum(path.stat().st_size for path in made)
    if size > MOST_BYTES:
        sys.exit(f"the pictures have {size:,} bytes together; {MOST_BYTES:,} is the limit")


if __name__ == "__main__":
    main()
