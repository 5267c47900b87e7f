"""What was fitted on scores, as files: written and read again.

    link.json         names (of the labels), scores (what it reads), link
    thresholds.json   names, scores, rule, thresholds by label, probabilities (the link it needs)

Names are kept because columns are matched by them, never by place.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from labelwise.calibration import FewLabels
from labelwise.calibration.link_specs import link_from_spec, link_to_spec
from labelwise.decide import Rule, Threshold
from labelwise.decide.specs import rule_from_spec, rule_to_spec
from labelwise.errors import DataError, LabelwiseError, SettingsError
from labelwise.evaluation import Evaluation
from labelwise.links import Link
from labelwise.models.spec import require_fit
from labelwise.predictions import Predictions
from labelwise.scores.cross_validate import Judged
from labelwise.scores.tables import FITTED_FORMAT, Kind
from labelwise.system.files import replacing
from labelwise.system.pydantic_errors import first_fault
from labelwise.system.text import one_line_of
from labelwise.types import LabelSpace


def save_json(path: Path, value: Any) -> None:
    """Write plain data as JSON."""
    with replacing(path) as temporary:
        temporary.write_text(
            json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n",
            encoding="utf-8",
        )


def save_probabilities(path: Path, predictions: Predictions, link: Link) -> None:
    """Write the columns ``id``, ``score:NAME`` (probabilities), ``label:NAME`` as Parquet."""
    probs = link(predictions.logits).astype(np.float32)
    columns: dict[str, Any] = {"id": pa.array(list(predictions.ids), pa.string())}
    for number, name in enumerate(predictions.names):
        columns[f"score:{name}"] = pa.array(probs[:, number])
    labels = predictions.labels
    kind = pa.float32() if predictions.has_soft_labels() else pa.int8()
    known = predictions.observed
    for number, name in enumerate(predictions.names):
        hidden = None if known is None else ~known[:, number]
        columns[f"label:{name}"] = pa.array(labels[:, number], kind, mask=hidden)
    with replacing(path) as temporary:
        pq.write_table(pa.table(columns), temporary)


def save_intervals(
    path: Path, ids: Sequence[str], names: Sequence[str], logits: NDArray[Any], fitted: FewLabels
) -> None:
    """Write ``id``, ``score:NAME`` (probabilities), ``low:NAME`` and ``high:NAME`` as Parquet."""
    probs = fitted.link(logits.astype(np.float64))
    low, high = fitted.interval(logits)
    columns: dict[str, Any] = {"id": pa.array(list(ids), pa.string())}
    for mark, values in (("score", probs), ("low", low), ("high", high)):
        for number, name in enumerate(names):
            columns[f"{mark}:{name}"] = pa.array(values[:, number])
    with replacing(path) as temporary:
        pq.write_table(pa.table(columns), temporary)


def comparison(evaluation: Evaluation) -> dict[str, dict[str, float | None]]:
    """Return the calibration figures by stage, before and after."""
    parts = [part for part in (evaluation.before, evaluation.after) if part is not None]
    return {
        part.stage: {
            "ECE": part.pooled.ece,
            "ACE": part.pooled.ace,
            "MCE": part.pooled.mce,
            "ECE, mean over labels": part.label_mean_ece,
            f"ECE, top {part.k}": part.top_k.ece,
            "log loss": inf if part.infinite else part.log_loss,
            "Brier": part.brier,
        }
        for part in parts
    }


def save_calibration(folder: Path, judged: Judged, predictions: Predictions) -> None:
    """Write the fitted link, ``predictions`` under it, their probabilities, and the figures."""
    link = judged.link
    if link is None:
        raise SettingsError("scores that only rank need a calibrator, got none")
    record = {
        "format": FITTED_FORMAT,
        "names": list(predictions.names),
        "scores": judged.kind,
        "link": link_to_spec(link),
        "fitted_on": judged.fitted_on,
    }
    save_json(folder / "link.json", record)
    predictions.with_link(link).save(folder / "predictions.parquet")
    save_probabilities(folder / "probabilities.parquet", predictions, link)
    stages = comparison(judged.evaluation)
    plain = {
        stage: {name: "infinite" if value == inf else value for name, value in figures.items()}
        for stage, figures in stages.items()
    }
    save_json(folder / "before-after.json", plain)


def decision(judged: Judged) -> dict[str, Any]:
    """Return a rule as plain data: itself, its thresholds by label, the link it needs, figures."""
    rule, link = judged.made.rule, judged.link
    sets = judged.evaluation.sets
    return {
        "format": FITTED_FORMAT,
        "names": list(judged.predictions.names),
        "scores": judged.kind,
        "rule": None if rule is None else rule_to_spec(rule),
        "words": judged.made.rule_words,
        "thresholds": _by_label(rule, judged.predictions.names),
        "probabilities": None if link is None else link_to_spec(link),
        "fitted_on": judged.fitted_on,
        "figures": None
        if sets is None
        else {
            "macro_f1": sets.macro_f1,
            "micro_f1": sets.micro_f1,
            "sample_f1": sets.sample_f1,
            "subset_accuracy": sets.subset_accuracy,
            "mean_size": sets.mean_size,
            "how": f"{sets.rule}. {sets.how}",
        },
    }


def _by_label(rule: Rule | None, names: tuple[str, ...]) -> dict[str, float] | None:
    values = None if rule is None else rule.thresholds(len(names))
    return None if values is None else dict(zip(names, values, strict=True))


class FittedRecord(BaseModel):
    """The parts of link.json and thresholds.json that are applied."""

    model_config = ConfigDict(strict=True)

    names: tuple[str, ...] = Field(strict=False)
    scores: Kind
    link: dict[str, Any] | None = None
    rule: dict[str, Any] | None = None
    probabilities: dict[str, Any] | None = None


@dataclass(frozen=True, eq=False)
class FittedFile:
    """A link.json (it has a link) or a thresholds.json (it has a rule and the link it needs)."""

    source: str
    labels: tuple[str, ...]
    kind: Kind
    link: Link | None
    rule: Rule | None


def read_fitted(path: Path) -> FittedFile:
    """Return what ``labelwise calibrate`` wrote."""
    if path.is_dir():
        raise DataError(f"{path} is a folder; give the file in it, such as {path / 'link.json'}")
    try:
        facts = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {one_line_of(error)}") from None
    if not isinstance(facts, dict) or not {"link", "rule"} & facts.keys() or "names" not in facts:
        raise DataError(
            f"{path} must be a link.json or a thresholds file of "
            "`labelwise calibrate -o`, with the names of its labels; write it again"
        )
    if facts.get("format") != FITTED_FORMAT:
        raise DataError(f"{path} must have format {FITTED_FORMAT}, got {facts.get('format')!r}")
    try:
        record = FittedRecord.model_validate(facts)
        spec = record.link or record.probabilities
        names = LabelSpace(record.names).names
        link = None if spec is None else link_from_spec(spec)
        rule = None if record.rule is None else rule_from_spec(record.rule)
        require_fit(LabelSpace(names), link=lambda: link, rule=lambda: rule or Threshold(0.5))
    except ValidationError as error:
        raise DataError(f"{path} cannot be used: {first_fault(error)}") from None
    except (LabelwiseError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} cannot be used: {error}") from None
    return FittedFile(str(path), names, record.scores, link, rule)
