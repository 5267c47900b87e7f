"""A scikit-learn estimator over images, trained, calibrated and decided as by labelwise train.

    model = LabelwiseClassifier(backbone="resnet18").fit(paths, Y)
    model.predict_proba(paths), model.predict(paths)

``X`` is a list of paths, Pillow images or uint8 arrays (H, W, 3), or a float array (N, D) of
features for ``backbone="identity"``. ``Y`` is (N, K) of 0 and 1; a photo without labels is a row of
zeros. ``predict_proba`` returns (N, K), as scikit-learn's OneVsRestClassifier does.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_array, check_is_fitted

from labelwise.base.arrays import Values
from labelwise.contrib.sklearn import needs_labels
from labelwise.errors import LabelwiseError
from labelwise.metrics import confusion
from labelwise.models import DeployedModel, Scored
from labelwise.models.run_folder import RunFolder
from labelwise.pictures import ImageSource, as_images
from labelwise.tables import LabelTable
from labelwise.tables.derived import with_validation
from labelwise.training.run import train
from labelwise.training.settings import SHORT_NAMES, read_settings

Array = Values
Pictures = Sequence[Any] | Array


class LabelwiseClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A multi-label classifier of images with calibrated probabilities and a rule for the sets.

    ``settings`` are those of ``labelwise train``: ``{"epochs": 10, "rule": "best-f"}``. A share of
    the images (``val_share``, a tenth unless set) is kept from training, for calibration and rule.
    ``labels`` names the columns of ``Y``; without it they have the names of its columns where it
    has such, or numbers. ``folder`` keeps the run, with its report; without it nothing stays.
    """

    def __init__(
        self,
        backbone: str = "auto",
        method: str = "auto",
        settings: Mapping[str, Any] | None = None,
        labels: Sequence[str] | None = None,
        folder: str | Path | None = None,
        random_state: int = 0,
    ) -> None:
        self.backbone = backbone
        self.method = method
        self.settings = settings
        self.labels = labels
        self.folder = folder
        self.random_state = random_state

    def fit(self, X: Pictures, y: Array, mask: Array | None = None) -> Self:  # noqa: N803
        """Train on images and labels ``y`` (N, K); where ``mask`` is False the label is unknown."""
        images = _images(X)
        labels = check_array(y, dtype=None, ensure_all_finite=mask is None)
        if len(labels) != len(images):
            raise ValueError(f"y must have a row per image, {len(images)}, got {len(labels)}")
        names = self.labels if self.labels is not None else getattr(y, "columns", None)
        names = range(labels.shape[1]) if names is None else names
        own: dict[str, Any] = {"data": "table", "seed": self.random_state}
        own |= {"method": self.method, "backbone": self.backbone}
        given = self.settings or {}
        flags = {SHORT_NAMES.get(name, name): value for name, value in given.items()}
        if twice := sorted(set(own) & set(flags)):
            raise ValueError(
                f"{twice[0]} must not be in settings: LabelwiseClassifier has a parameter for it"
            )
        try:
            table = LabelTable.from_arrays(
                [str(name) for name in names],
                images,
                labels,
                mask,
                split=["train"] * len(images),
                name="table",
            )
            resolved = read_settings(None, {**flags, **own})
            if resolved.val_share:
                table = with_validation(table, share=resolved.val_share)
            with TemporaryDirectory(prefix="labelwise-") as scratch:
                folder = Path(self.folder or Path(scratch) / "run")
                if train(resolved, folder, table=table, fresh=True) is None:
                    raise ValueError("a process beside the first cannot fit; use one device")
                self.predictor_: DeployedModel = RunFolder(folder).model()
        except LabelwiseError as error:
            raise ValueError(str(error)) from None
        self.classes_ = np.array(self.predictor_.space.names, dtype=object)
        return self

    def predict_proba(self, X: Pictures) -> Array:  # noqa: N803
        return self._scored(X).probabilities

    def decision_function(self, X: Pictures) -> Array:  # noqa: N803
        return np.asarray(self._scored(X).logits)

    def predict(self, X: Pictures) -> Array:  # noqa: N803
        return np.asarray(self._scored(X).sets, np.int64)

    def score(self, X: Pictures, y: Array, mask: Array | None = None) -> float:  # noqa: N803
        """Return the mean F1 of the labels; one neither present nor chosen is left out."""
        return confusion(self.predict(X), np.asarray(y), mask).f_score().value

    def __sklearn_tags__(self) -> Any:
        tags = needs_labels(super().__sklearn_tags__())
        tags.input_tags.two_d_array, tags.input_tags.string = False, True
        tags.classifier_tags.multi_class, tags.classifier_tags.multi_label = False, True
        return tags

    def _scored(self, pictures: Pictures) -> Scored:
        check_is_fitted(self, "predictor_")
        return self.predictor_.predict(_images(pictures))


def _images(pictures: Pictures) -> ImageSource:
    """Return a list, or an array of paths as scikit-learn cuts it, as images."""
    if isinstance(pictures, np.ndarray) and pictures.dtype.kind in "OUS":
        return as_images(pictures.tolist())
    if isinstance(pictures, str | Path | bytes):
        raise ValueError("X must be a list of images, got a single one; write [image]")
    return as_images(pictures)
