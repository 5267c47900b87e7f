"""Networks that see photos, as ONNX files, and linear classifiers on their features."""

from typing import TYPE_CHECKING

from labelwise.base.lazy import imported_later

if TYPE_CHECKING:
    from labelwise.eyes.eye import BUILT_IN, Eye, find_eye
    from labelwise.eyes.feature_cache import features
    from labelwise.eyes.fit import Fitted, deal_folds

__all__ = ["BUILT_IN", "Eye", "Fitted", "deal_folds", "features", "find_eye"]

if not TYPE_CHECKING:  # else a checker would believe in any name
    __getattr__ = imported_later(
        __name__,
        {
            "eye": ("BUILT_IN", "Eye", "find_eye"),
            "feature_cache": ("features",),
            "fit": ("Fitted", "deal_folds"),
        },
    )
