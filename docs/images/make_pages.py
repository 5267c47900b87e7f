"""Take the pictures of the pages that README and docs show, with Chromium.

    python docs/images/make_pages.py RUN INDEX PHOTO... -o docs/images

RUN is served with INDEX as anyone would serve it; PHOTO are tagged. `make pictures` does so with
the quickstart's photos.
"""

import argparse
import shutil
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

SIZE = {"width": 1280, "height": 720}
MOST_BYTES = 600_000  # of all pictures together


def shoot(
    address: str, photos: list[Path], out: Path, query: str, report: Path | None = None
) -> list[Path]:
    """Write a picture of each view of a server, and of a report; return where they are."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, reduced_motion="reduce", bypass_csp=True)
        page.set_default_timeout(120_000)
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
        page.goto(f"{address}#trust")
        page.locator("#trust-body svg").wait_for()
        made.append(_saved(page, out / "trust.jpg"))
        if report is not None:
            page.goto(report.resolve().as_uri())
            made.append(_saved(page, out / "report.jpg"))
        browser.close()
    size = sum(picture.stat().st_size for picture in made)
    if size > MOST_BYTES:
        sys.exit(f"the pictures have {size:,} bytes together; {MOST_BYTES:,} is the limit")
    return made


LOADED = """() => [...document.images]
  .filter((one) => one.offsetParent && one.getBoundingClientRect().top < innerHeight)
  .every((one) => one.complete && one.naturalWidth)"""


def _saved(page: Any, path: Path) -> Path:
    """Write what the window shows, in all its colours."""
    picture = Image.open(BytesIO(page.screenshot())).convert("RGB")
    picture.save(path, quality=80, optimize=True, progressive=True)
    return path


def main() -> None:
    """Serve a run, and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("index", type=Path)
    parser.add_argument("photos", type=Path, nargs="+")
    parser.add_argument("--query", default="cat")
    parser.add_argument("-o", "--out", type=Path, required=True)
    given = parser.parse_args()
    command = [sys.executable, "-m", "labelwise", "serve", str(given.run), str(given.index)]
    serving = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        words = (word for line in serving.stdout or () for word in line.split())
        address = next(word for word in words if word.startswith("http"))
        report = given.run / "report.html"
        for path in shoot(address, given.photos, given.out, given.query, report):
            print(f"{path}: {path.stat().st_size:,} bytes")
    finally:
        serving.terminate()
        serving.wait()


if __name__ == "__main__":
    main()
