"""One method to a file: its loss as a function, its link, its objective."""

from labelwise.objectives.base import Objective, Sum, Term, Weighted
from labelwise.objectives.cross_entropy import BCE, bce_loss

__all__ = ["BCE", "Objective", "Sum", "Term", "Weighted", "bce_loss"]
