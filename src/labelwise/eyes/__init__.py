"""Networks that see photos, as ONNX files, and linear classifiers on their features."""

from labelwise.eyes.eye import BUILT_IN, Eye, find_eye
from labelwise.eyes.feature_cache import features
from labelwise.eyes.fit import Fitted, deal_folds

__all__ = ["BUILT_IN", "Eye", "Fitted", "deal_folds", "features", "find_eye"]
