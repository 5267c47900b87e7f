"""Checkpoints: tensors in safetensors, the rest in JSON, each whole or not there at all.

    checkpoint/00000003/state.safetensors    model, average, objective, optimiser, random state
    checkpoint/00000003/state.json           position, figures so far, optimiser groups
    checkpoint/best-00000100.safetensors     the weights to deploy, as chosen so far

Checkpoints are numbered. Each is a folder written under a temporary name and renamed; the one
before it goes only after that. The best weights are written before the checkpoint that names them.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from labelwise.errors import CheckpointError
from labelwise.files import load_tensors, replacing, save_tensors

__all__ = ["is_there", "load_best", "load_latest", "save", "save_best"]


def save(folder: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write a new checkpoint and remove what it makes superfluous."""
    last = max((int(place.name) for place in _places(folder)), default=0)
    place = folder / f"{last + 1:08d}"
    with replacing(place) as temporary:
        temporary.mkdir()
        save_tensors(temporary / "state.safetensors", tensors)
        (temporary / "state.json").write_text(json.dumps(facts), encoding="utf-8")
    keep = {place.name, _best_name(facts.get("best_step"))}
    for other in folder.iterdir():
        if other.name not in keep:
            _remove(other)


def is_there(folder: Path) -> bool:
    """Return whether there is a checkpoint to go on from."""
    return bool(_places(folder))


def load_latest(
    folder: Path, part: str | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Return the tensors (perhaps of one part) and facts of the newest checkpoint, or None."""
    places = _places(folder)
    if not places:
        return None
    path = places[-1] / "state.json"
    try:
        tensors = load_tensors(places[-1] / "state.safetensors", part)
        return tensors, json.loads(path.read_bytes())
    except CheckpointError as error:
        raise CheckpointError(f"{error}; start over with --fresh") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}; start over with --fresh") from None


def save_best(folder: Path, step: int, tensors: Mapping[str, Tensor]) -> None:
    """Write the weights to deploy if nothing better comes."""
    with replacing(folder / _best_name(step)) as temporary:
        save_tensors(temporary, tensors)


def load_best(folder: Path, step: int) -> dict[str, Tensor]:
    """Return the weights that :func:`save_best` wrote at ``step``."""
    return load_tensors(folder / _best_name(step))


def _places(folder: Path) -> list[Path]:
    return sorted(place for place in folder.glob("[0-9]*") if place.is_dir())


def _best_name(step: int | None) -> str:
    return f"best-{step:08d}.safetensors" if step is not None else ""


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)  # what is left is superfluous, not in the way
    else:
        path.unlink(missing_ok=True)
