"""After training: link and rule are fitted on validation alone, and measured on test alone.

What cannot be fitted is left out with a note: the trained model is saved in any case.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from shlex import quote
from warnings import catch_warnings, simplefilter

import numpy as np

from labelwise.base.arrays import Mask
from labelwise.calibration import expect_zero_share
from labelwise.calibration.auto import SHRUNKEN
from labelwise.calibration.noted import shown_link
from labelwise.calibration.shrunken import LabelErrors, shrunken_with_errors
from labelwise.decide import Promise, Promised, Rule, Threshold, WithParents, find_promise
from labelwise.errors import CheckpointError, DataError, LabelwiseError, SettingsError
from labelwise.evaluation import Evaluation, TrainingRows, evaluate
from labelwise.links import Consistent, Link, Sigmoid
from labelwise.models.seen_photos import HeldOutCopies
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
from labelwise.tables.checks import without_training_photos
from labelwise.training.learning import LEARNING
from labelwise.training.plan import Prepared
from labelwise.training.settings import AUTO, differences, read_settings

Promises = tuple[Mapping[str, object], ...]
Save = Callable[[Link | None, Rule, Promises], None]
NEVER = 2.0  # a threshold that no probability reaches
FAR = 50.0  # log-odds beyond which nothing changes


class Finish:
    """Fits a calibrated link (None: the model's own) and a rule on validation, and measures.

    ``noted`` says that photos seem to show more labels than the one that is noted in training.
    """

    def __init__(
        self,
        training: Prepared,
        predictions: Mapping[str, Predictions],
        own: Link | None,
        *,
        noted: bool = False,
    ) -> None:
        self.noted = noted
        self.training, self.settings, self.own = training, training.settings, own
        self.predictions, self.val = predictions, predictions.get("val")
        self.test = predictions.get("test")
        self.notes: list[str] = []
        self.fitted: Link | None = None
        self.words, self.calibrator = "", "none"
        self.promises: tuple[Promise, ...] = ()
        self.errors = LabelErrors(0.0, 0.0)

    @property
    def link(self) -> Link | None:
        return self.fitted or self.own

    def measured(self, save: Save) -> Evaluation:
        """Fit link and rule, let ``save`` write the model with them, and return the figures."""
        training, settings, folder = self.training, self.settings, self.training.run.path
        rows = "out-of-fold predictions" if training.cross_fitted else "validation"
        what = "" if self.val is None else f"fitting the calibrator and the rule on {rows}, "
        training.watch.say(f"{what}measuring on {'what is there' if self.test is None else 'test'}")
        judged = self.test
        if judged is None:
            judged = self.predictions["train"] if self.val is None else self.val
            self.notes.append(
                f"There is no test split: these figures are of {judged.split}, which took part in "
                "fitting the model, and so are too good. `labelwise data split --shares` draws one."
            )
        if self.noted and not (judged.labels.sum(1) > 1).any():
            judged = replace(judged, observed=self._known(judged))
            self.notes.append(
                f"The photos of {judged.split} have one label noted each too. Figures count what "
                "was not noted as absent, and so are too low."
            )
        copies = HeldOutCopies.of_run(folder)
        self.notes += [copies.sentence()] if copies.sentence() else []
        about = (*training.table.notes, *without_training_photos(training.table))
        self.notes += [f"Labels: {note}." for note in about]
        with catch_warnings(record=True) as caught:
            simplefilter("always")
            self._fit_link()
            rule, rule_words = self._fit_rule()
        self.notes += [str(warning.message) for warning in caught]
        if self.errors.rate:
            review = f"labelwise data review {quote(str(folder))} --find wrong -o review.csv"
            self.notes.append(f"{self.errors}: `{review}`.")
        curves = (record.get(LEARNING) for record in training.run.journal.read())
        self.notes += [str(curve["sentence"]) for curve in curves if isinstance(curve, dict)]
        save(self.link, rule, tuple(promise.spec() for promise in self.promises))
        counts = training.splits["train"].present.counts().tolist()
        evaluation = evaluate(
            judged,
            self.own,
            rule,
            calibrated=self.fitted,
            calibrator=self.words or None,
            rule_words=rule_words,
            train_counts=counts,
            training=replace(
                TrainingRows.of(None if self.noted else self.val, self.link, counts),
                wrong=self.errors.rate,
            ),
            copies=copies.rows_of(judged),
            seed=settings.seed,
            taxonomy=training.taxonomy,
            curves=True,
            notes=self.notes,
        )
        training.run.measured(evaluation)
        return evaluation

    def _known(self, rows: Predictions) -> Mask | None:
        """Return what is known of rows in the table itself."""
        table = self.training.splits["train" if rows.split == "val" else rows.split]
        return table.targets()[1]

    def _fit_link(self) -> None:
        settings, training, val = self.settings, self.training, self.val
        if val is None:
            self.notes.append("There is no validation split, so nothing was calibrated or tuned.")
        else:
            name = self._calibrator()
            try:
                if self.noted and self.settings.calibrate == AUTO:
                    self.fitted, shown = shown_link(val.logits, val.labels, self.own)
                    self.words = "for photos of which one label was noted"
                    self.calibrator = "shown"
                    self.notes.append(shown.sentence())
                    training.watch.say(shown.sentence())
                elif name == SHRUNKEN:
                    fitted = shrunken_with_errors(val.logits, val.labels, self.own, val.observed)
                    self.fitted, self.errors = fitted
                    self.words, self.calibrator = "Platt per label, shrunk to a shared one", name
                else:
                    made = fit_calibrator(name, val, self.own, source=val.split)
                    self.fitted, self.words, choice = made
                    self.calibrator = name if choice is None else choice.name
                if self.fitted is None and name != "none":
                    self.notes.append("No calibrator beat the model's own probabilities.")
            except (DataError, ValueError) as error:
                self._not_fitted(str(error))
        link = self.link
        if link is None:
            return
        if val is not None and training.cross_fitted:
            as_odds(val.with_link(link)).save(training.run.folds_path)
        if training.tree is not None:
            link = self.fitted = Consistent(link, training.tree.parent)
            self.words = f"{self.words or 'own probabilities'}, made consistent"
        if training.attributes is not None:
            self.fitted, self.words = fit_groups(val, link, training.attributes, self.words)
        if val is not None and settings.zero_share is not None:
            try:
                self.fitted = expect_zero_share(link, val.labels, settings.zero_share, val.observed)
                shift = f"shifted to {settings.zero_share:.0%} images without labels"
                self.words = f"{self.words}; {shift}" if self.words else shift
            except ValueError as error:
                self._not_fitted(f"zero_share cannot be used: {error}")

    def _calibrator(self) -> str:
        """Return the calibrator: of a cross-fitted head one that no choice can make worse."""
        own, name = self.own, self.settings.calibrate
        if name != AUTO or not self.training.cross_fitted or own is None:
            return name
        return "none" if own.couples_labels else SHRUNKEN  # a softmax has its temperature

    def _fit_rule(self) -> tuple[Rule, str]:
        training, promised = self.training, self._promised()
        if promised is not None:
            self.promises = promised.promises
            rule, words = promised.rule, f"promised {self.settings.promise}"
        else:
            rule, words = Threshold(0.5), "p >= 0.5, not tuned"
            if self.val is not None and self.link is None:
                self.notes.append("The model only ranks labels, so no rule was tuned.")
            elif self.val is not None and self.link is not None:
                try:
                    text = self.settings.rule
                    if self.noted and text == AUTO:  # it needs no absences
                        text = "expected-f"
                    rule, words = fit_rule(text, self.val, self.link)
                except (SettingsError, ValueError) as error:
                    self._not_fitted(str(error))
        if training.tree is not None:
            rule = WithParents(rule, training.tree.parent)
        if training.attributes is not None:
            rule, words = one_per_group(rule, words, training.attributes)
        unseen = training.splits["train"].present.counts() == 0
        if isinstance(rule, Threshold) and promised is None and unseen.any():
            values = np.array(rule.thresholds(len(unseen)))
            values[unseen] = NEVER
            words = f"{words}; labels without photos in train are never given"
            rule = Threshold(tuple(values.tolist()))
        return rule, words

    def _promised(self) -> Promised | None:
        """Return the rule that keeps the promise, None where none is asked for or can be made."""
        settings, link = self.settings, self.link
        if settings.promise is None or link is None:
            return None
        val, kept = self.predictions["val"], self.predictions["promise"]
        promised = make_promise(
            find_promise(settings.promise),
            link,
            kept,
            val,
            photos=f"{len(kept):,} of validation that fitted nothing",
            confidence=settings.confidence,
            seed=settings.seed,
        )
        self.notes += [f"Not promised: {sentence}." for sentence in promised.refused]
        if not promised.promises:
            refused = promised.refused[0]
            self.training.watch.say(f"{refused}; the rule {settings.rule} is used instead")
            return None
        if settings.cross_fit and self.fitted is not None:
            rows = val.joined(kept)
            fits = self.calibrator, self.fitted, self.own
            try:
                promised, link = cross_fitted(promised, *fits, rows)
                self.fitted = link
                self.words += f", fitted again on all {len(rows):,} rows of validation"
            except LabelwiseError as error:
                self._not_fitted(f"not cross-fitted, {error}")
        sentences = [str(promise) for promise in promised.promises]
        if self.test is not None:
            checks = check_promises(promised.promises, promised.rule, self.test.with_link(link))
            for number, check in enumerate(checks):
                sentences[number] += f"; on test {check}"
        sentences += [] if promised.warning is None else [promised.warning]
        self.notes += [f"{sentence[0].upper()}{sentence[1:]}." for sentence in sentences]
        return promised

    def _not_fitted(self, sentence: str) -> None:
        self.notes.append(f"Not fitted: {sentence}.")
        self.training.watch.say(
            f"{sentence}; the model is saved without it: the same command with another rule, "
            "calibrator or share will not train again"
        )


def as_odds(rows: Predictions) -> Predictions:
    """Return predictions of training rows as calibrated log-odds, cut at +-FAR."""
    if rows.link is None:
        return rows
    odds = rows.link.log_odds(rows.logits.astype(np.float64)).clip(-FAR, FAR)
    return replace(rows, logits=odds.astype(np.float32), link=Sigmoid(), split="train")


AFTERWARDS = {"calibrate", "rule", "zero_share", "confidence", "taxonomy", "attributes"}
# Settings that only say where things are or which rows are taken: their content is compared.
CONTENTS = {"data": {"data", "on_error", "skip_missing", "val_share"}, "weights": {"weights"}}


def finish_again_needed(
    training: Prepared, facts: Mapping[str, object] | None, *, fresh: bool
) -> bool:
    """Return whether a finished run must be finished again; raise if it may not be resumed."""
    run, changed = training.run, {}
    if fresh:
        run.clear()
        facts = None
    if run.settings_path.exists():
        try:
            before = read_settings(run.settings_path, {})
        except SettingsError as error:
            raise CheckpointError(f"{error}; start over with --fresh") from None
        changed, may_change = differences(before, training.settings), set(AFTERWARDS)
        for content, keys in CONTENTS.items():
            if facts and facts.get(content) == training.contents[content]:
                may_change |= keys
        others = [text for key, text in changed.items() if key not in may_change]
        if others:
            raise SettingsError(
                f"{run.address} was started with other settings ({'; '.join(others)}); "
                "choose another folder with -o, or start over with --fresh"
            )
        older = facts and facts.get("format") != training.contents["format"]
        if run.is_finished and older:
            training.watch.say(
                f"the run in {run.address} is of an older labelwise, whose fingerprint of the data "
                "has another format, so whether the data changed cannot be told. The run is kept; "
                "--fresh trains it again"
            )
        elif run.is_finished and facts and facts.get("data") != training.contents["data"]:
            since = f"the data changed since the run in {run.address} was trained"
            if changed:
                raise SettingsError(f"{since}; bring the old data back, or start over with --fresh")
            training.watch.say(f"{since}: its figures are of old rows; --fresh trains on new ones")
    elif run.checkpoint.exists():
        raise CheckpointError(f"{run.address} has a checkpoint but no settings.yaml; use --fresh")
    if AFTERWARDS & changed.keys() or not run.is_finished:
        return bool(AFTERWARDS & changed.keys())
    # A file of the same name may hold another taxonomy, or other groups, than the run's model.
    parents = None if training.taxonomy is None else dict(training.taxonomy.parents)
    link = run.spec.made_link
    groups = None if link is None else link.exclusive
    return run.spec.taxonomy != parents or groups != training.attributes
