"""CVAT: a model as an auto-annotation function, which gives the photos of a task their tags.

    cvat-cli task auto-annotate 7 --function-module labelwise.contrib.cvat \\
        -p model=str:runs/photos

CVAT calls :func:`create` with the parameters given by ``-p``, asks for the labels, and for the tags
of each photo. Labels are matched by name with those of the task. Where CVAT sends a confidence, a
label is given if its calibrated probability is at least that; otherwise the model's rule decides.
"""

from functools import cached_property
from typing import Any, final

from PIL import Image

from labelwise.errors import SettingsError
from labelwise.models import load_model, score
from labelwise.models.scoring import raise_failure, require_probabilities
from labelwise.pictures import as_images


@final
class CvatTagger:
    """Tags photos as ``cvat_sdk.auto_annotation.DetectionFunction`` wants it."""

    def __init__(self, model: str) -> None:
        try:
            import cvat_sdk.auto_annotation
        except ModuleNotFoundError as error:
            raise SettingsError(
                f"this needs {error.name}; install it with: pip install cvat-sdk"
            ) from None
        self._sdk: Any = cvat_sdk.auto_annotation
        self.model = load_model(model)
        require_probabilities(self.model)

    @cached_property
    def spec(self) -> Any:
        """The labels of the model, all of them tags, numbered by their columns."""
        spec, names = self._sdk.label_spec, enumerate(self.model.space.names)
        labels = [spec(name, number, type="tag") for number, name in names]
        return self._sdk.DetectionFunctionSpec(labels=labels)

    def detect(self, context: Any, image: Image.Image) -> list[Any]:
        (joined,) = score(self.model, as_images([image]))
        raise_failure(joined)
        if context.conf_threshold is None:
            chosen = [self.model.space.column(name) for name in joined.labels[0]]
        else:
            chosen = (joined.probs[0] >= context.conf_threshold).nonzero()[0].tolist()
        return [self._sdk.tag(column) for column in chosen]


def create(model: str) -> CvatTagger:
    """Return the function of a run, or of a model in any form, for CVAT."""
    return CvatTagger(model)
