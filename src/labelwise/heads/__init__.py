"""Heads: from a feature map to one logit a label."""

from labelwise.heads.base import Head
from labelwise.heads.linear import LinearHead

__all__ = ["Head", "LinearHead"]
