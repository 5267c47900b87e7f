"""schemathesis against a served library: ``run_schemathesis.py PROGRAM [OPTIONS]``.

Every request that it makes up from /openapi.json must get an answer that is no 5xx. It brings some
dozen packages of its own versions, so ``make schema`` installs it beside, not into, .venv; the
property test in tests/fuzz/test_fuzz_files.py is what runs with every change.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from search_setup import picture, save_model
from web_setup import running

from labelwise.base.progress import Silent
from labelwise.photos import update_index


def main() -> int:
    program, *options = sys.argv[1:]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        run, index = save_model(folder / "tiny"), folder / "photos.index"
        for number in range(24):
            picture(folder / "photos" / f"{number}.png", number)
        update_index(index, [folder / "photos"], model=run, watch=Silent())
        with running(run, index) as server:
            photo = server.get("/api/v1/search?q=dog")["hits"][0]["id"]
            known = folder / "known.toml"
            known.write_text(
                f'[parameters]\n"path.photo" = "{photo}"\n"path.model" = "{run.name}"\n'
            )
            command = [str(Path(program).absolute()), "--config-file", str(known), "run"]
            command += [f"{server.address}/openapi.json", "--checks", "not_a_server_error"]
            command += ["--no-color", *options]
            return subprocess.run(command, check=False, cwd=folder).returncode  # it leaves a cache


if __name__ == "__main__":
    raise SystemExit(main())
