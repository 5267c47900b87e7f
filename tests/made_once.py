"""A folder that is costly to make is made once for all processes of tests, and copied."""

import os
import shutil
from pathlib import Path

from patience import wait_until


def made_once(tmp_path_factory, name, make) -> Path:
    """Return a copy of the folder that ``make(folder)`` fills, in whichever process comes first."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    whole, begun, part = (shared / f"{name}{end}" for end in ("", ".begun", ".part"))
    try:
        begun.mkdir()
    except FileExistsError:
        wait_until(lambda: whole.exists() or (shared / f"{name}.failed").exists())
        assert whole.exists(), f"{name} could not be made, as another test says"
    else:
        try:
            part.mkdir()
            make(part)
        except BaseException:
            (shared / f"{name}.failed").touch()
            raise
        part.rename(whole)  # `begun` stays: nobody makes it twice
    return Path(shutil.copytree(whole, tmp_path_factory.mktemp(name) / name))
