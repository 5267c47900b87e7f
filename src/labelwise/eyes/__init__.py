"""Networks that see photos, as ONNX files, and what is computed with their features."""

from labelwise.eyes.eye import BUILT_IN, Eye, find_eye
from labelwise.eyes.feature_cache import features

__all__ = ["BUILT_IN", "Eye", "features", "find_eye"]
