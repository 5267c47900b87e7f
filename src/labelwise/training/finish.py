"""After training: predictions of every split, a calibrated link, a rule, figures, the predictor.

Link and rule are fitted on validation alone and measured on test alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from warnings import catch_warnings, simplefilter

import numpy as np

from labelwise.calibrate import expect_zero_share
from labelwise.decide import Rule, Threshold
from labelwise.errors import DataError, SettingsError
from labelwise.evaluate import Evaluation, evaluate
from labelwise.links import Link
from labelwise.predictions import Predictions
from labelwise.predictor import Model, Predictor
from labelwise.training.fitting import fit_calibrator, fit_rule
from labelwise.training.prepare import Training

__all__ = ["finish"]

UNTUNED = (Threshold(0.5), "p >= 0.5, not tuned")


@dataclass(frozen=True)
class Fitted:
    """What was fitted on validation: a calibrated link (None: the model's own), and a rule."""

    link: Link | None
    calibrator: str
    rule: Rule
    rule_words: str


def finish(training: Training, model: Model) -> Evaluation | None:
    """Write predictions, evaluation and model to the run's folder; None in helper processes."""
    settings, folder, splits = training.settings, training.folder, training.splits
    logits = {name: training.logits(name, model) for name in splits}
    if not training.is_first:
        return None
    training.watch.say("fitting the calibrator and the rule on validation, measuring on test")
    own = training.objective.final_link(logits["train"], *training.targets("train"))
    predictions = {
        name: Predictions(
            table.ids, logits[name], *training.targets(name), table.space.names, name, own
        )
        for name, table in splits.items()
    }
    for name, rows in predictions.items():
        rows.save(training.run.predictions_path(name))
    notes: list[str] = []
    judged = predictions.get("test")
    if judged is None:
        judged = predictions.get("val", predictions["train"])
        notes.append(f"There is no test split; these figures are of {judged.split}, too good.")
    with catch_warnings(record=True) as caught:
        simplefilter("always")
        fitted = _fit(training, predictions, own, notes)
    notes += [str(warning.message) for warning in caught]
    evaluation = evaluate(
        judged,
        own,
        fitted.rule,
        calibrated=fitted.link,
        calibrator=fitted.calibrator or None,
        rule_words=fitted.rule_words,
        train_counts=splits["train"].present.counts().tolist(),
        seed=settings.seed,
        notes=notes,
    )
    link, space = fitted.link or own, training.table.space
    Predictor(model.cpu(), training.head, space, link, fitted.rule, settings.method).save(folder)
    evaluation.save(training.run.evaluation_path)
    return evaluation


def _fit(
    training: Training,
    predictions: Mapping[str, Predictions],
    own: Link | None,
    notes: list[str],
) -> Fitted:
    """Return the calibrated link and the rule; what cannot be fitted is noted."""
    settings = training.settings
    if "val" not in predictions:
        notes.append("There is no validation split, so nothing was calibrated or tuned.")
        return Fitted(None, "", *UNTUNED)
    val, group = predictions["val"], training.splits["val"].group
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
        return Fitted(fitted, words, *UNTUNED)
    if settings.zero_share is not None:
        link = fitted = _shifted(link, val, settings.zero_share)
        shift = f"shifted to {settings.zero_share:.0%} images without labels"
        words = f"{words}; {shift}" if words else shift
    return Fitted(fitted, words, *fit_rule(settings.rule, val, link))


def _shifted(link: Link, val: Predictions, share: float) -> Link:
    try:
        return expect_zero_share(link, val.labels, share, val.observed)
    except ValueError as error:
        raise SettingsError(f"zero_share cannot be used with {val.split}: {error}") from None
