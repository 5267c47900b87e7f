"""``make client``: the client of the server's API, from the description of a running server."""

import sys
import tempfile
from pathlib import Path

from search_setup import picture, save_model
from web_setup import running

from labelwise.photos import update_index
from labelwise.system.progress import Silent

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs" / "_reference"))

from client_source import client_source  # noqa: E402

PLACE = ROOT / "src" / "labelwise" / "client" / "generated.py"


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        run = save_model(Path(temporary) / "tiny")
        picture(Path(temporary) / "photos" / "a.png", 0)
        index = Path(temporary) / "photos.index"
        update_index(index, [Path(temporary) / "photos"], model=run, watch=Silent())
        with running(run, index, decoders=0) as server:
            PLACE.write_text(client_source(server.get("/openapi.json")))


if __name__ == "__main__":
    main()
