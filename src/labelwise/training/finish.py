"""After training: predictions of every split, a calibrated link, a rule, figures, the predictor.

Link and rule are fitted on validation alone and measured on test alone.
"""

from collections.abc import Mapping
from pathlib import Path
from warnings import catch_warnings, simplefilter

import numpy as np
import torch
from torch import Tensor

from labelwise.calibrate import expect_zero_share
from labelwise.data import LabelTable
from labelwise.decide import Rule, Threshold
from labelwise.errors import DataError, SettingsError
from labelwise.evaluate import Evaluation, evaluate
from labelwise.links import Link
from labelwise.objectives import Objective, QuasibinaryLink, precise_normalizer
from labelwise.predictions import Predictions
from labelwise.predictor import HeadSpec, Model, Predictor
from labelwise.training.fitting import fit_calibrator, fit_rule
from labelwise.training.settings import Settings

__all__ = ["dense_targets", "finish"]


def finish(
    settings: Settings,
    folder: Path,
    splits: Mapping[str, LabelTable],
    logits: Mapping[str, Tensor],
    model: Model,
    head: HeadSpec,
    objective: Objective,
) -> Evaluation:
    """Write predictions, evaluation and model to ``folder``; return the evaluation."""
    own = None if objective.link is None else objective.link.cpu()
    if isinstance(own, QuasibinaryLink):
        own = precise_normalizer(logits["train"], *dense_targets(splits["train"]))
    predictions = {
        name: _predictions(name, table, logits[name], own) for name, table in splits.items()
    }
    for name, table in predictions.items():
        table.save(folder / "predictions" / f"{name}.parquet")
    notes: list[str] = []
    judged = predictions.get("test")
    if judged is None:
        judged = predictions.get("val", predictions["train"])
        notes.append(f"There is no test split; these figures are of {judged.split}, too good.")
    with catch_warnings(record=True) as caught:
        simplefilter("always")
        fitted, words, rule, rule_words = _fit(settings, splits, predictions, own, notes)
    notes += [str(warning.message) for warning in caught]
    evaluation = evaluate(
        judged,
        own,
        rule,
        calibrated=fitted,
        calibrator=words or None,
        rule_words=rule_words,
        train_counts=splits["train"].present.counts().tolist(),
        seed=settings.seed,
        notes=notes,
    )
    model.cpu()
    space = splits["train"].space
    Predictor(model, head, space, fitted or own, rule, settings.method).save(folder)
    evaluation.save(folder / "evaluation.json")
    return evaluation


def _fit(
    settings: Settings,
    splits: Mapping[str, LabelTable],
    predictions: Mapping[str, Predictions],
    own: Link | None,
    notes: list[str],
) -> tuple[Link | None, str, Rule, str]:
    """Return the calibrated link and the rule, each with words; what cannot be fitted is noted."""
    if "val" not in splits:
        notes.append("There is no validation split, so nothing was calibrated or tuned.")
        return None, "", Threshold(0.5), "p >= 0.5, not tuned"
    val, group = predictions["val"], splits["val"].group
    fitted, words = None, ""
    try:
        groups = None if group is None else np.array(list(group))
        fitted, words = fit_calibrator(settings.calibrate, val, own, groups)
        if fitted is None and settings.calibrate != "none":
            notes.append("No calibrator was better than the model's own probabilities.")
    except DataError as error:
        notes.append(f"Not calibrated: {error}.")
    link = fitted or own
    if link is None:
        notes.append("The model only ranks labels, so it has no probabilities and no tuned rule.")
        return fitted, words, Threshold(0.5), "p >= 0.5, not tuned"
    if settings.zero_share is not None:
        link = fitted = _shifted(link, val, settings.zero_share)
        shift = f"shifted to {settings.zero_share:.0%} images without labels"
        words = f"{words}; {shift}" if words else shift
    return fitted, words, *fit_rule(settings.rule, val, link)


def _shifted(link: Link, val: Predictions, share: float) -> Link:
    try:
        return expect_zero_share(link, val.labels, share, val.observed)
    except ValueError as error:
        raise SettingsError(f"zero_share cannot be used with {val.split}: {error}") from None


def dense_targets(table: LabelTable) -> tuple[Tensor, Tensor | None]:
    """Return labels (N, K) and which are known, as tensors."""
    labels, observed = table.targets()
    return torch.from_numpy(labels), None if observed is None else torch.from_numpy(observed)


def _predictions(split: str, table: LabelTable, logits: Tensor, link: Link | None) -> Predictions:
    return Predictions(table.ids, logits, *dense_targets(table), table.space.names, split, link)
