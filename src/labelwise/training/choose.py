"""The method ``auto``: what the comparisons in docs/reproduction.md recommend for a training set.

The first line that applies decides:

    no label is known to be absent        wan
    some labels are unknown               bce
    an image has several labels           bce
    every image has exactly one label     softmax
    otherwise                             softmax-or-none
"""

from labelwise.data import LabelTable
from labelwise.training.settings import AUTO, Settings

__all__ = ["choose_method", "with_chosen_method"]


def choose_method(table: LabelTable) -> tuple[str, str]:
    """Return the name of a method for a training split, and why."""
    present, unknown = table.present.sizes(), table.unknown.sizes()
    if not (present + unknown < len(table.space)).any():
        return "wan", "no label is known to be absent"
    if unknown.any() or present.max() > 1:
        return "bce", "images may have several labels"
    if present.min() == 1:
        return "softmax", "every image has exactly one label"
    return "softmax-or-none", "no image has more than one label"


def with_chosen_method(settings: Settings, table: LabelTable) -> tuple[Settings, str]:
    """Return the settings with a method in the place of ``auto``, and what to say of it."""
    if settings.method != AUTO:
        return settings, ""
    name, reason = choose_method(table)
    return settings.model_copy(update={"method": name}), f"method {name}: {reason}"
