"""Models: what is deployed, how it scores, and the folder of the run that it came from."""

from typing import TYPE_CHECKING

from labelwise.base.lazy import imported_later

if TYPE_CHECKING:
    from labelwise.models.loading import load_model
    from labelwise.models.run_folder import RunFolder
    from labelwise.models.scoring import DeployedModel, Scored, Scorer, score
    from labelwise.models.spec import MODEL_FILE, WEIGHTS_FILE, HeadSpec, ModelSpec

__all__ = [
    "MODEL_FILE",
    "WEIGHTS_FILE",
    "DeployedModel",
    "HeadSpec",
    "ModelSpec",
    "RunFolder",
    "Scored",
    "Scorer",
    "load_model",
    "score",
]

if not TYPE_CHECKING:  # else a checker would believe in any name
    __getattr__ = imported_later(
        __name__,
        {
            "loading": ("load_model",),
            "run_folder": ("RunFolder",),
            "scoring": ("DeployedModel", "Scored", "Scorer", "score"),
            "spec": ("MODEL_FILE", "WEIGHTS_FILE", "HeadSpec", "ModelSpec"),
        },
    )
