"""A finished run as scores: its saved predictions, with the link and rule of its model."""

from dataclasses import dataclass
from pathlib import Path

from labelwise.decide import Rule
from labelwise.links import Link
from labelwise.methods import link_to_spec
from labelwise.predictions import Predictions
from labelwise.runs import RunFolder

__all__ = ["RunScores", "read_run"]


@dataclass(frozen=True, eq=False)
class RunScores:
    """Predictions of one split under the model's own link, its calibrated link, and its rule."""

    predictions: Predictions
    calibrated: Link | None
    rule: Rule


def read_run(folder: Path, split: str) -> RunScores:
    """Return the predictions of a split of a run; nothing is computed again."""
    run = RunFolder(folder)
    spec, predictions = run.spec, run.predictions(split)
    same = _same(spec.made_link, predictions.link)
    return RunScores(predictions, None if same else spec.made_link, spec.made_rule)


def _same(one: Link | None, other: Link | None) -> bool:
    if one is None or other is None:
        return one is other
    return link_to_spec(one) == link_to_spec(other)
