"""A folder that is costly to make is made once for all processes of tests, and copied."""

import os
import shutil
from pathlib import Path

from patience import wait_until


def made_once(tmp_path_factory, name, make) -> Path:
    """Return a copy of the folder that ``make(folder)`` fills, in whichever process comes first."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    whole, begun = shared / name, shared / f"{name}.begun"
    try:
        begun.mkdir()
    except FileExistsError:
        wait_until(lambda: whole.exists() or (shared / f"{name}.failed").exists())
        assert whole.exists(), f"{name} could not be made, as another test says"
    else:
        try:
            make(begun)
        except BaseException:
            (shared / f"{name}.failed").touch()
            raise
        begun.rename(whole)
    return Path(shutil.copytree(whole, tmp_path_factory.mktemp(name) / name))
