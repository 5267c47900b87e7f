"""The pictures of the docs are taken from today's pages. Oracle: Pillow, and the limit on bytes."""

import runpy
from pathlib import Path

from PIL import Image

SCRIPT = Path(__file__).parents[2] / "docs" / "images" / "make_pages.py"


def test_every_view_is_taken_in_all_its_colours_and_together_they_are_small(
    server, photos, tmp_path
):
    script = runpy.run_path(str(SCRIPT))
    given = sorted(photos.glob("*.png"))[:2]
    with script["chromium"]() as page:
        made = script["shoot"](page, f"{server.address}/", given, tmp_path, "dog")
    assert [one.name for one in made] == ["tag.jpg", "serve.jpg", "search.jpg"]
    for path in made:
        with Image.open(path) as picture:
            assert (picture.mode, picture.size) == ("RGB", (1280, 720))
            assert len(picture.getcolors(1 << 20)) > 256
    assert sum(one.stat().st_size for one in made) < script["MOST_BYTES"]
