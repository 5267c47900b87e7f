"""When the page of a local server first shows something, by Chromium's own clock.

    python benchmarks/first_paint.py RUN INDEX          writes results/first_paint.json

Each view is opened five times, with nothing cached, at two widths. The goal is 300 ms. The time of
a page without scripts and styles, served by Python, says what the machine itself takes.
"""

import argparse
import functools
import http.server
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
VIEWS = ("search", "tag", "trust", "review")


def milliseconds(browser: Browser, address: str, width: int, times: int = 5) -> float:
    """Return the median time of the first paint with text or a picture."""
    found = []
    for _ in range(times):
        page = browser.new_context(viewport={"width": width, "height": 820}).new_page()
        page.goto(address)
        page.wait_for_function(f"({PAINT}) !== null")
        found.append(page.evaluate(PAINT))
        page.context.close()
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("index", type=Path)
    given = parser.parse_args()
    command = [sys.executable, "-m", "labelwise", "serve", str(given.run), str(given.index)]
    serving = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        Path(folder, "index.html").write_text("<!doctype html><title>a</title><p>text", "utf-8")
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
        plain = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=plain.serve_forever, daemon=True).start()
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = play.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            words = (word for line in serving.stdout or () for word in line.split())
            address = next(word for word in words if word.startswith("http"))
            empty = milliseconds(browser, f"http://127.0.0.1:{plain.server_port}/", 1280)
            paints = {
                f"{view}, {width} pixels": round(milliseconds(browser, f"{address}#{view}", width))
                for view in VIEWS
                for width in (1280, 390)
            }
        finally:
            serving.terminate()
            serving.wait()
            browser.close()
            plain.shutdown()
    result = {
        "command": "python benchmarks/first_paint.py RUN INDEX",
        "machine": f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}",
        "load of the machine": round(os.getloadavg()[0], 1),
        "goal, ms": 300,
        "a page of one word, ms": round(empty),
        "median first paint, ms": paints,
    }
    path = Path(__file__).parent / "results" / "first_paint.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(path.read_text("utf-8"))


if __name__ == "__main__":
    main()
