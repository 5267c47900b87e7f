"""Heads: from a feature map to one logit per label."""

from labelwise.networks.heads.base import Head
from labelwise.networks.heads.boost import BoostHead
from labelwise.networks.heads.dual_prompts import DualPrompts
from labelwise.networks.heads.linear import LinearHead
from labelwise.networks.heads.ml_decoder import MLDecoder, WordDecoder
from labelwise.networks.heads.query import GroupLinear, QueryDecoder, sine_position
from labelwise.networks.heads.two_head import TwoHead

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
