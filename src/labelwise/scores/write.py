"""What is written of fitted scores: the link, probabilities anyone can read, thresholds."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from labelwise.decide import Rule, Threshold
from labelwise.errors import SettingsError
from labelwise.evaluate import Evaluation
from labelwise.files import replacing
from labelwise.links import Link
from labelwise.methods import link_to_spec, rule_to_spec
from labelwise.predictions import Predictions
from labelwise.scores.judging import Judged

__all__ = ["comparison", "decision", "save_calibration", "save_json", "save_probabilities"]


def save_json(path: Path, value: Any) -> None:
    """Write plain data as JSON."""
    with replacing(path) as temporary:
        temporary.write_text(
            json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n",
            encoding="utf-8",
        )


@torch.no_grad()
def save_probabilities(path: Path, predictions: Predictions, link: Link) -> None:
    """Write the columns ``id``, ``score:NAME`` (probabilities), ``label:NAME`` as Parquet."""
    probs = link(predictions.logits).float().numpy()
    columns: dict[str, Any] = {"id": pa.array(list(predictions.ids), pa.string())}
    for number, name in enumerate(predictions.names):
        columns[f"score:{name}"] = pa.array(probs[:, number])
    labels = predictions.labels.numpy()
    known = None if predictions.observed is None else predictions.observed.numpy()
    for number, name in enumerate(predictions.names):
        hidden = None if known is None else ~known[:, number]
        columns[f"label:{name}"] = pa.array(labels[:, number], pa.int8(), mask=hidden)
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
            "log loss": part.log_loss,
            "Brier": part.brier,
        }
        for part in parts
    }


def save_calibration(folder: Path, judged: Judged, predictions: Predictions) -> None:
    """Write the fitted link, ``predictions`` under it, their probabilities, and the figures."""
    link = judged.link
    if link is None:
        raise SettingsError("scores that only rank need a calibrator, got none")
    save_json(folder / "link.json", link_to_spec(link))
    predictions.with_link(link).save(folder / "predictions.parquet")
    save_probabilities(folder / "probabilities.parquet", predictions, link)
    save_json(folder / "before-after.json", comparison(judged.evaluation))


def decision(judged: Judged) -> dict[str, Any]:
    """Return a rule as plain data: itself, its thresholds by label, the link it needs, figures."""
    rule, link = judged.made.rule, judged.link
    sets = judged.evaluation.sets
    return {
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
    if not isinstance(rule, Threshold):
        return None
    values = rule.value if isinstance(rule.value, tuple) else (rule.value,) * len(names)
    return dict(zip(names, values, strict=True))
