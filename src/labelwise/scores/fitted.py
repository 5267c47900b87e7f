"""What was fitted on scores, as files, and applied to scores without labels.

    link.json         names (of the labels), scores (what it reads), link
    thresholds.json   names, scores, rule, thresholds by label, probabilities (the link it needs)

Columns are matched by name, never by place.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelwise.base.files import replacing, write_text
from labelwise.base.table_files import write_csv
from labelwise.base.text import as_cell
from labelwise.calibration import FewLabels
from labelwise.calibration.auto import link_from_spec, link_to_spec
from labelwise.decide import Rule, Threshold
from labelwise.decide.rules import rule_from_spec, rule_to_spec
from labelwise.errors import DataError, LabelwiseError, SettingsError
from labelwise.evaluation import Evaluation
from labelwise.links import Link, Sigmoid
from labelwise.models.spec import require_fit
from labelwise.predictions import Predictions
from labelwise.scores.fit import Judged
from labelwise.scores.read import Detections, UnlabelledScores
from labelwise.scores.tables import FITTED_FORMAT, places, write_columns
from labelwise.tables.rows import read_as
from labelwise.tables.score_files import Kind
from labelwise.types import LabelSpace, matching_columns

Array = NDArray[np.floating[Any]] | NDArray[np.integer[Any]]


def save_json(path: Path, value: object) -> None:
    """Write plain data as JSON."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _save_columns(
    path: Path,
    ids: Sequence[str],
    names: Sequence[str],
    parts: Mapping[str, NDArray[np.generic]],
    **more: object,
) -> None:
    """Write ``id``, ``more`` columns and MARK:NAME of each of the parts (N, K) as Parquet."""
    columns: dict[str, object] = {"id": pa.array(list(ids), pa.string()), **more}
    for mark, values in parts.items():
        columns |= {f"{mark}:{name}": values[:, k] for k, name in enumerate(names)}
    write_columns(path, columns, "scores")


def save_probabilities(path: Path, predictions: Predictions, link: Link) -> None:
    """Write the columns ``id``, ``score:NAME`` (probabilities), ``label:NAME`` as Parquet."""
    probs = link(predictions.logits).astype(np.float32)
    labels = predictions.labels.astype(np.float32 if predictions.has_soft_labels() else np.int8)
    if predictions.observed is not None:
        labels = np.ma.masked_array(labels, ~predictions.observed)
    _save_columns(path, predictions.ids, predictions.names, {"score": probs, "label": labels})


def save_intervals(
    path: Path, ids: Sequence[str], names: Sequence[str], logits: Array, fitted: FewLabels
) -> None:
    """Write ``id``, ``score:NAME`` (probabilities), ``low:NAME`` and ``high:NAME`` as Parquet."""
    low, high = fitted.interval(logits)
    parts = {"score": fitted.link(logits.astype(np.float64)), "low": low, "high": high}
    _save_columns(path, ids, names, parts)


def comparison(evaluation: Evaluation) -> dict[str, dict[str, float | None]]:
    """Return the calibration figures by stage, before and after."""
    return {
        stage.stage: {
            "ECE": stage.pooled.ece,
            "ACE": stage.pooled.ace,
            "MCE": stage.pooled.mce,
            "ECE, mean over labels": stage.label_mean_ece,
            f"ECE, top {stage.k}": stage.top_k.ece,
            "log loss": inf if stage.infinite else stage.log_loss,
            "Brier": stage.brier,
        }
        for stage in (evaluation.before, evaluation.after)
        if stage is not None
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
    plain = {
        stage: {name: "infinite" if value == inf else value for name, value in figures.items()}
        for stage, figures in comparison(judged.evaluation).items()
    }
    save_json(folder / "before-after.json", plain)


def decision(judged: Judged) -> dict[str, object]:
    """Return a rule as plain data: itself, its thresholds by label, the link it needs, figures."""
    rule, link, names = judged.made.rule, judged.link, judged.predictions.names
    sets, figures = judged.evaluation.sets, None
    values = None if rule is None else rule.thresholds(len(names))
    if sets is not None:
        shown = ("macro_f1", "micro_f1", "sample_f1", "subset_accuracy", "mean_size")
        figures = {name: getattr(sets, name) for name in shown}
        figures["how"] = f"{sets.rule}. {sets.how}"
    return {
        "format": FITTED_FORMAT,
        "names": list(names),
        "scores": judged.kind,
        "rule": None if rule is None else rule_to_spec(rule),
        "words": judged.made.rule_words,
        "thresholds": values and dict(zip(names, values, strict=True)),
        "probabilities": None if link is None else link_to_spec(link),
        "fitted_on": judged.fitted_on,
        "figures": figures,
    }


@dataclass
class FittedRecord:
    """What is applied of a link.json or a thresholds.json."""

    names: list[str]
    scores: Kind
    format: int = 0
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
    record = read_as(path, FittedRecord)
    if record.format != FITTED_FORMAT or not (record.link or record.rule):
        what = f"must have format {FITTED_FORMAT} and a link or a rule"
        raise DataError(f"{path} {what}; write it again with `labelwise calibrate -o`")
    try:
        spec = record.link or record.probabilities
        names = LabelSpace(tuple(record.names)).names
        link = None if spec is None else link_from_spec(spec)
        rule = None if record.rule is None else rule_from_spec(record.rule)
        require_fit(LabelSpace(names), link=lambda: link, rule=lambda: rule or Threshold(0.5))
    except (LabelwiseError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} cannot be used: {error}") from None
    return FittedFile(str(path), names, record.scores, link, rule)


APPLIED_SUFFIXES = (".parquet", ".csv", ".jsonl")


@dataclass(frozen=True, eq=False)
class Applied:
    """Probabilities (N, K) of rows, and their labels, surest first, where a rule was given."""

    ids: tuple[str, ...]
    names: tuple[str, ...]
    probs: Array
    labels: list[list[str]] | None


def apply(fitted: Sequence[FittedFile], scores: UnlabelledScores) -> Applied:
    """Return the probabilities of scores under a fitted link, and the labels of a fitted rule."""
    source, link, rule = _source_of(fitted, scores.kind, scores.source)
    columns = matching_columns(source.labels, scores.names, of=source.source, in_=scores.source)
    names, logits, labels = source.labels, scores.logits[:, columns], None
    probs = link(logits.astype(np.float64))
    if rule is not None and rule.rule is not None:
        order = matching_columns(rule.labels, names, of=rule.source, in_=source.source)
        sets = np.empty(probs.shape, bool)
        sets[:, order] = rule.rule(link.decision_probs(logits)[:, order])
        surest = np.argsort(-probs, axis=1, kind="stable")
        labels = [
            [names[column] for column in row[chosen[row]].tolist()]
            for row, chosen in zip(surest, sets, strict=True)
        ]
    return Applied(scores.ids, names, probs, labels)


def _source_of(
    fitted: Sequence[FittedFile], kind: Kind, scores: str
) -> tuple[FittedFile, Link, FittedFile | None]:
    """Return the file whose link gives probabilities, that link, and the file with a rule."""
    links = [file for file in fitted if file.rule is None]
    rules = [file for file in fitted if file.rule is not None]
    if len(links) > 1 or len(rules) > 1 or not fitted:
        got = f"{len(links)} and {len(rules)}"
        raise SettingsError(f"give one link.json, one thresholds.json or one of each, got {got}")
    source = (links or rules)[0]
    if source.link is None:
        raise SettingsError(f"{source.source} holds no link, so it gives no probabilities")
    if source.kind != kind:
        raise SettingsError(f"{source.source} was fitted on {source.kind}, {scores} holds {kind}")
    needed = rules[0].link if links and rules else source.link
    as_in_a_file = bool(rules) and rules[0].kind == "probs" and isinstance(needed, Sigmoid)
    same = needed is not None and link_to_spec(source.link) == link_to_spec(needed)
    if not same and not as_in_a_file:
        raise SettingsError(
            f"{rules[0].source} was fitted on other probabilities than those of "
            f"{source.source}; leave {source.source} out, or fit the rule on its probabilities"
        )
    return source, source.link, (rules[0] if rules else None)


def save_detections(path: Path, found: Detections, fitted: Sequence[FittedFile]) -> tuple[int, int]:
    """Write each detection with the probability that it is right, and whether a rule chooses it.

    Return how many there are and how many are chosen (all, without a rule). Columns: file, start,
    label, score, probability and, with a rule, chosen.
    """
    source, link, rule = _source_of(fitted, found.kind, found.source)
    names = source.labels
    own = places(found.names, names)
    if (own < 0).any():
        lost = f"{found.names[int(own.argmin())]!r}, which {found.source} has"
        way = "check some of its detections and calibrate again, or leave its rows out"
        raise DataError(f"{source.source} was fitted without {lost}; {way}")
    moved = replace(found, names=names, label=own[found.label])
    columns: dict[str, object] = {
        "file": _spelled(moved.files, moved.file),
        "start": moved.start,
        "label": _spelled(names, moved.label),
        "score": moved.scores,
        "probability": moved.by_label(link),
    }
    chosen = np.ones(len(moved), bool)
    if rule is not None and rule.rule is not None:
        cuts = rule.rule.thresholds(len(rule.labels))
        if cuts is None:
            way = "detections need a rule with a threshold per label, such as precision-0.9"
            raise SettingsError(f"{rule.source} chooses by comparing labels of a clip; {way}")
        order = matching_columns(rule.labels, names, of=rule.source, in_=source.source)
        limits = np.empty(len(names))
        limits[order] = cuts
        chosen = moved.by_label(link.decision_probs) >= limits[moved.label]
        columns["chosen"] = chosen
    write_columns(path, columns, "detections")
    return len(moved), int(chosen.sum())


def _spelled(names: Sequence[str], codes: NDArray[np.int64]) -> pa.Array:
    words = pa.array([as_cell(name) for name in names], pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(codes), words).cast(pa.string())


def check_output(path: Path) -> None:
    """Raise unless probabilities can be written to such a file."""
    if path.suffix not in APPLIED_SUFFIXES:
        suffixes = ", ".join(APPLIED_SUFFIXES)
        raise SettingsError(f"the output must end in {suffixes}, got {path.name!r}")


def save_applied(path: Path, applied: Applied) -> None:
    """Write ids, label sets and probabilities as .parquet, .csv or .jsonl.

    The first two have the columns ``id``, ``labels`` (with a rule) and ``score:NAME``; JSON Lines
    are those of ``labelwise predict``. All three can be read again as probabilities.
    """
    check_output(path)
    names, labels, probs = applied.names, applied.labels, applied.probs
    if path.suffix == ".parquet":
        sets = {} if labels is None else {"labels": pa.array(labels, pa.list_(pa.string()))}
        _save_columns(path, applied.ids, names, {"score": probs}, **sets)
        return
    chosen = repeat(None, len(probs)) if labels is None else labels
    rows = zip(applied.ids, chosen, probs.tolist(), strict=True)
    if path.suffix == ".csv":
        text_of = json.dumps if any("|" in name for name in names) else "|".join
        header = ["id", *([] if labels is None else ["labels"]), *(f"score:{n}" for n in names)]
        cells = ([name, *([] if own is None else [text_of(own)]), *p] for name, own, p in rows)
        write_csv(path, header, cells)
        return
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as stream:
        for name, own, p in rows:
            sets = {} if own is None else {"labels": own}
            record = {"path": name, **sets, "probs": dict(zip(names, p, strict=True))}
            stream.write(json.dumps(record, ensure_ascii=False) + "\n")
