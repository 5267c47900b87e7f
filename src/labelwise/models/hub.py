"""Models on the Hugging Face Hub, or on another server that speaks its API.

    hf://OWNER/NAME              the newest version of a model that ``export --format hf`` wrote
    hf://OWNER/NAME@REVISION     that branch, tag or commit

Only the description and the weights are fetched, into the hub's own cache, and only where an
address says ``hf://``. HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE are the hub's own settings.
"""

import re
from pathlib import Path
from typing import Any

from labelwise import __version__
from labelwise.errors import CheckpointError, SettingsError
from labelwise.system.text import one_line_of

HUB = "hf://"
NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
ADDRESS = re.compile(r"hf://(?P<name>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?/?", re.ASCII)


def fetched_from_hub(
    address: str,
    files: tuple[str, ...],
    optional: tuple[str, ...] = (),
    lacking: str = "so it is not a model of labelwise; `labelwise export RUN --format hf` writes "
    "one",
) -> Path:
    """Return a folder with some files of a model, fetched unless this user's cache has them.

    ``lacking`` says what a model is not that has not all ``files``.
    """
    from huggingface_hub import snapshot_download

    found = ADDRESS.fullmatch(address)
    if found is None:
        raise SettingsError(
            f"a model on a hub is hf://OWNER/NAME, or hf://OWNER/NAME@REVISION, got {address}"
        )
    try:
        folder = Path(
            snapshot_download(
                found["name"],
                revision=found["revision"],
                allow_patterns=[*files, *optional],
                library_name="labelwise",
                library_version=__version__,
            )
        )
    except Exception as error:  # of the hub's many kinds, and of the network's
        raise CheckpointError(f"{address} cannot be fetched: {_reason(error)}") from None
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(f"{address} has no {missing[0]}, {lacking}")
    return folder


def push_to_hub(folder: Path, name: str) -> str:
    """Put the files of a folder into a repository of a hub, a new one private; return its address.

    A repository that exists keeps its visibility, and files of other names.
    """
    from huggingface_hub import HfApi

    check_repository(name)
    api = HfApi(library_name="labelwise", library_version=__version__)
    try:
        place: Any = api.create_repo(name, private=True, exist_ok=True)
        api.upload_folder(
            repo_id=name, folder_path=str(folder), commit_message="Model from labelwise"
        )
    except Exception as error:  # of the hub's many kinds, and of the network's
        raise CheckpointError(
            f"{name} cannot be written: {_reason(error)}; log in with `hf auth login`. The folder "
            f"{folder} is complete, and can be pushed with `hf upload {name} {folder}`"
        ) from None
    return str(place)


def check_repository(name: str) -> None:
    """Raise unless a name can be one of a hub's repositories."""
    if not NAME.fullmatch(name):
        raise SettingsError(f"a repository on a hub is OWNER/NAME, got {name!r}")


def _reason(error: Exception) -> str:
    return one_line_of(error)[:300]
