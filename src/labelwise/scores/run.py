"""A finished run as scores: its saved predictions, with the link and rule of its model."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labelwise.decide import Rule
from labelwise.errors import CheckpointError, LabelwiseError
from labelwise.links import Link
from labelwise.methods import link_from_spec, link_to_spec, rule_from_spec
from labelwise.predictions import Predictions

__all__ = ["RunScores", "read_history", "read_run"]


@dataclass(frozen=True, eq=False)
class RunScores:
    """Predictions of one split under the model's own link, its calibrated link, and its rule."""

    predictions: Predictions
    calibrated: Link | None
    rule: Rule


def read_run(folder: Path, split: str) -> RunScores:
    """Return the predictions of a split of a run; nothing is computed again."""
    facts = _facts(folder / "model.json")
    path = folder / "predictions" / f"{split}.parquet"
    if not path.exists():
        there = sorted(found.stem for found in (folder / "predictions").glob("*.parquet"))
        raise CheckpointError(
            f"{folder} has no predictions of {split!r}; there are: {', '.join(there) or 'none'}"
        )
    predictions = Predictions.load(path)
    try:
        link = None if facts["link"] is None else link_from_spec(facts["link"])
        rule = rule_from_spec(facts["rule"])
    except (KeyError, TypeError, ValueError, LabelwiseError) as error:
        raise CheckpointError(
            f"{folder / 'model.json'}: no usable link and rule ({error})"
        ) from None
    same = _same(link, predictions.link)
    return RunScores(predictions, None if same else link, rule)


def read_history(folder: Path) -> list[dict[str, Any]]:
    """Return the records of ``metrics.jsonl``; an unfinished last line is left out."""
    path = folder / "metrics.jsonl"
    records = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return [record for record in records if isinstance(record, dict)]


def _same(one: Link | None, other: Link | None) -> bool:
    if one is None or other is None:
        return one is other
    return link_to_spec(one) == link_to_spec(other)


def _facts(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist; give the folder of a finished run") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error})") from None
    if not isinstance(facts, dict):
        raise CheckpointError(f"{path} is not the description of a model")
    return facts
