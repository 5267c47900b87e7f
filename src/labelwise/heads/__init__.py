"""Heads: from a feature map to one logit per label."""

from labelwise.heads.base import Head
from labelwise.heads.boost import BoostHead
from labelwise.heads.dual_prompts import DualPrompts
from labelwise.heads.linear import LinearHead
from labelwise.heads.ml_decoder import MLDecoder, WordDecoder
from labelwise.heads.query import GroupLinear, QueryDecoder, sine_position
from labelwise.heads.two_head import TwoHead

__all__ = [
    "BoostHead",
    "DualPrompts",
    "GroupLinear",
    "Head",
    "LinearHead",
    "MLDecoder",
    "QueryDecoder",
    "TwoHead",
    "WordDecoder",
    "sine_position",
]
