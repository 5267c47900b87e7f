"""After training: predictions of every split, a calibrated link, a rule, figures, the predictor.

Link and rule are fitted on validation alone and measured on test alone. With a taxonomy the link
takes the calibrated probabilities to the nearest ones that obey it, and the rule adds parents to
sets. Of labels that exclude each other the link makes one distribution, and the rule takes one.
What cannot be fitted is said and left out: the trained model is saved in any case, and the same
command with another rule, calibrator or ``zero_share`` fits them again on the saved predictions,
without training.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
from numpy.typing import NDArray

from labelwise.calibration import expect_zero_share
from labelwise.data import LabelTable
from labelwise.decide import Promise, Promised, Rule, Threshold, WithParents, find_promise
from labelwise.errors import DataError, LabelwiseError, SettingsError
from labelwise.evaluation import Evaluation, evaluate
from labelwise.links import Consistent, Link
from labelwise.models import Model, Predictor
from labelwise.models.seen_photos import HeldOutCopies
from labelwise.numeric.arrays import to_numpy
from labelwise.pictures import FeatureRows
from labelwise.predictions import Predictions
from labelwise.scores.fit import (
    check_promises,
    cross_fitted,
    fit_calibrator,
    fit_groups,
    fit_rule,
    make_promise,
    one_per_group,
)
from labelwise.training.prepare import Training


@dataclass(frozen=True)
class Fitted:
    """What was fitted on validation: a calibrated link (None: the model's own), and a rule."""

    link: Link | None
    calibrator: str
    rule: Rule
    rule_words: str
    promises: tuple[Promise, ...] = ()


def _known(training: Training, split: str) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    labels, observed = training.targets(split)
    return to_numpy(labels), None if observed is None else to_numpy(observed)


def finish(training: Training, model: Model) -> Evaluation | None:
    """Write predictions, evaluation and model to the run's folder; None in helper processes."""
    found = {name: training.inferred(name, model) for name in training.splits}
    if not training.is_first:
        return None
    own = training.objective.final_link(found["train"].logits, *training.targets("train"))
    predictions = {
        name: Predictions(
            table.ids,
            to_numpy(found[name].logits),
            *_known(training, name),
            table.space.names,
            name,
            own,
            table.group,
        )
        for name, table in training.splits.items()
    }
    for name, rows in predictions.items():
        rows.save(training.run.predictions_path(name))
    looks = {name: one.looks.numpy() for name, one in found.items() if one.looks is not None}
    features = isinstance(training.splits["train"].images, FeatureRows)
    copies = HeldOutCopies.among_features if features and looks else HeldOutCopies.among
    copies(looks).save(training.run.path)
    return _fit_and_measure(training, predictions, own, model.cpu())


def finish_again(training: Training) -> Evaluation:
    """Fit link and rule once more on the saved predictions, and measure again; no training."""
    run = training.run
    predictions = {
        name: _in_groups(run.predictions(name), training.splits.get(name)) for name in run.splits
    }
    model = run.model()
    return _fit_and_measure(training, predictions, predictions["train"].link, model.model)


def _in_groups(rows: Predictions, table: LabelTable | None) -> Predictions:
    """Return the rows with the groups of their table: runs used to save predictions without."""
    if rows.group is not None or table is None or list(rows.ids) != list(table.ids):
        return rows
    return replace(rows, group=table.group)


def _fit_and_measure(
    training: Training,
    predictions: Mapping[str, Predictions],
    own: Link | None,
    model: Model,
) -> Evaluation:
    settings, folder = training.settings, training.run.path
    fits = "val" in predictions
    what = "fitting the calibrator and the rule on validation, " if fits else ""
    training.watch.say(f"{what}measuring on {'test' if 'test' in predictions else 'what is there'}")
    notes: list[str] = []
    judged = predictions.get("test")
    if judged is None:
        judged = predictions.get("val", predictions["train"])
        notes.append(
            f"There is no test split: these figures are of {judged.split}, which took part in "
            "fitting the model, and so are too good. `labelwise data split --shares` draws one."
        )
    copies = HeldOutCopies.of_run(folder).sentence()
    notes += [copies] if copies else []
    with catch_warnings(record=True) as caught:
        simplefilter("always")
        fitted = _fit(training, predictions, own, notes)
    notes += [str(warning.message) for warning in caught]
    link, space = fitted.link or own, training.table.space
    promises = tuple(promise.spec() for promise in fitted.promises)
    if training.frozen is not None and model.backbone.name == "identity":
        model = training.frozen.deployed(model)
    parts = (model, training.head, space, link, fitted.rule, settings.method, promises)
    Predictor(*parts, training.taxonomy).save(folder)
    evaluation = evaluate(
        judged,
        own,
        fitted.rule,
        calibrated=fitted.link,
        calibrator=fitted.calibrator or None,
        rule_words=fitted.rule_words,
        train_counts=training.splits["train"].present.counts().tolist(),
        seed=settings.seed,
        taxonomy=training.taxonomy,
        curves=True,
        notes=notes,
    )
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
    link, words, calibrator = _fit_link(training, predictions, own, notes)
    promised = _promise(training, predictions, link or own, notes)
    if promised is None:
        rule, rule_words = _fit_rule(training, predictions, link or own, notes)
    else:
        if settings.cross_fit and link is not None:
            rows = predictions["val"].joined(predictions["promise"])
            try:
                promised, link = cross_fitted(promised, calibrator, link, own, rows)
                words += f", fitted again on all {len(rows):,} rows of validation"
            except LabelwiseError as error:
                _say_not_fitted(training, notes, f"not cross-fitted, {error}")
        _note_promises(promised, link or own, predictions.get("test"), notes)
        rule, rule_words = promised.rule, f"promised {settings.promise}"
    if training.tree is not None:
        rule = WithParents(rule, training.tree.parent)
    if training.attributes is not None:
        rule, rule_words = one_per_group(rule, rule_words, training.attributes)
    promises = () if promised is None else promised.promises
    return Fitted(link, words, rule, rule_words, promises)


def _fit_link(
    training: Training,
    predictions: Mapping[str, Predictions],
    own: Link | None,
    notes: list[str],
) -> tuple[Link | None, str, str]:
    """Return the link that is used instead of the model's own, None if that is kept.

    Beside it, what it is in words, and the name of the calibrator.
    """
    settings = training.settings
    fitted, words, calibrator = None, "", "none"
    val = predictions.get("val")
    if val is None:
        notes.append("There is no validation split, so nothing was calibrated or tuned.")
    else:
        try:
            fitted, words, choice = fit_calibrator(settings.calibrate, val, own, source=val.split)
            calibrator = settings.calibrate if choice is None else choice.name
            if fitted is None and settings.calibrate != "none":
                notes.append("No calibrator was better than the model's own probabilities.")
        except DataError as error:
            _say_not_fitted(training, notes, str(error))
    link = fitted or own
    if link is None:
        return None, words, calibrator
    if training.tree is not None:
        link = fitted = Consistent(link, training.tree.parent)
        words = f"{words or 'own probabilities'}, made consistent"
    if training.attributes is not None:
        fitted, words = fit_groups(val, link, training.attributes, words)
    if val is not None and settings.zero_share is not None:
        try:
            fitted = expect_zero_share(link, val.labels, settings.zero_share, val.observed)
            shift = f"shifted to {settings.zero_share:.0%} images without labels"
            words = f"{words}; {shift}" if words else shift
        except ValueError as error:
            _say_not_fitted(training, notes, f"zero_share cannot be used: {error}")
    return fitted, words, calibrator


def _fit_rule(
    training: Training,
    predictions: Mapping[str, Predictions],
    link: Link | None,
    notes: list[str],
) -> tuple[Rule, str]:
    """Return the rule fitted to the probabilities of validation, and what it is in words."""
    untuned = Threshold(0.5), "p >= 0.5, not tuned"
    if "val" not in predictions:
        return untuned
    if link is None:
        notes.append("The model only ranks labels, so it has no probabilities and no tuned rule.")
        return untuned
    try:
        return fit_rule(training.settings.rule, predictions["val"], link)
    except (SettingsError, ValueError) as error:
        _say_not_fitted(training, notes, str(error))
        return untuned


def _promise(
    training: Training, predictions: Mapping[str, Predictions], link: Link | None, notes: list[str]
) -> Promised | None:
    """Return the rule that keeps the promise, None where none is asked for or can be made."""
    settings = training.settings
    if settings.promise is None or link is None:
        return None
    kept = predictions["promise"]
    promised = make_promise(
        find_promise(settings.promise),
        link,
        kept,
        predictions["val"],
        photos=f"{len(kept):,} of validation that fitted nothing",
        confidence=settings.confidence,
        seed=settings.seed,
    )
    notes += [f"Not promised: {sentence}." for sentence in promised.refused]
    if not promised.promises:
        training.watch.say(f"{promised.refused[0]}; the rule {settings.rule} is used instead")
        return None
    return promised


def _note_promises(
    promised: Promised, link: Link | None, test: Predictions | None, notes: list[str]
) -> None:
    """Note each promise and how it stands on test."""
    sentences = [str(promise) for promise in promised.promises]
    if test is not None and link is not None:
        for number, check in enumerate(
            check_promises(promised.promises, promised.rule, test.with_link(link))
        ):
            sentences[number] += f"; on test {check}"
    sentences += [] if promised.warning is None else [promised.warning]
    notes += [f"{sentence[0].upper()}{sentence[1:]}." for sentence in sentences]


def _say_not_fitted(training: Training, notes: list[str], sentence: str) -> None:
    """Note what could not be fitted, and say how to try another without training again."""
    notes.append(f"Not fitted: {sentence}.")
    training.watch.say(
        f"{sentence}; the model is saved without it: the same command with another rule, "
        "calibrator or share will not train again"
    )
