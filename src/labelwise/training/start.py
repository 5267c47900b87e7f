"""Start: a run that begins where an earlier one ended, with another recipe or method.

The head alone first, then everything (linear initialisation, Cole et al.): a run with ``freeze=-1``
and one that starts from it. A label keeps its place in the head, so both must have the same labels;
for others ``weights`` takes the backbone alone. Where a method keeps estimates of the training
labels, these go on too, if the training images are the same.
"""

from pathlib import Path

from torch import Tensor

from labelwise.data import LabelTable
from labelwise.errors import SettingsError
from labelwise.objectives import Objective
from labelwise.predictor import Model, Predictor
from labelwise.training import checkpoint

__all__ = ["start_from"]


def start_from(
    folder: Path, model: Model, objective: Objective, train: LabelTable, fingerprint: str
) -> str:
    """Load the model of a finished run and what its objective knew; return the words for it."""
    earlier = Predictor.load(folder)
    if earlier.space != train.space:
        raise SettingsError(
            f"the run in {folder} has other labels; take its backbone alone with weights={folder}"
        )
    try:
        model.load_state_dict(earlier.model.state_dict())
    except RuntimeError:
        raise SettingsError(
            f"the run in {folder} has another model ({earlier.model.backbone.name}, head "
            f"{earlier.head.name!r}); start needs the same backbone and head"
        ) from None
    state = _objective_of(folder, fingerprint)
    knew = state is not None and objective.start_from(state)
    return f"starting from {folder}" + (", with its estimates of the labels" if knew else "")


def _objective_of(folder: Path, fingerprint: str) -> dict[str, Tensor] | None:
    """Return the objective's last state, if the run was trained on the same images and labels."""
    found = checkpoint.load_latest(folder / "checkpoint", "objective")
    if found is None or found[1].get("data") != fingerprint:
        return None
    return found[0]
