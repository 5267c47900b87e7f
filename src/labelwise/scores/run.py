"""A finished run as scores: its saved predictions, with the link and rule of its model."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from labelwise.base.arrays import Array, to_numpy
from labelwise.base.progress import Silent, Watch
from labelwise.base.special import logit
from labelwise.base.text import counted
from labelwise.calibration import Platt
from labelwise.calibration.auto import link_to_spec
from labelwise.decide import Check, Promise, Rule
from labelwise.errors import DataError
from labelwise.links import Link
from labelwise.metrics.shift import (
    CLIP,
    HeldOutShare,
    LabelShare,
    estimate_share,
    first_shares,
    held_out_shares,
    moved_shares,
)
from labelwise.models.run_folder import RunFolder
from labelwise.predictions import Predictions
from labelwise.scores.fit import check_promises
from labelwise.scores.tables import aligned_labels, label_arrays
from labelwise.tables import LabelTable
from labelwise.taxonomy import Taxonomy

Batch = TypeVar("Batch", "Inferred", "Scored")


@dataclass(frozen=True, eq=False)
class RunScores:
    """Predictions of a split under the model's own link, and what the model was saved with."""

    predictions: Predictions
    calibrated: Link | None
    rule: Rule
    promises: tuple[Promise, ...] = ()
    taxonomy: Taxonomy | None = None

    def checks(self) -> list[tuple[Check, Promise]]:
        link = self.calibrated or self.predictions.link
        if link is None or not self.promises:
            return []
        checks = check_promises(self.promises, self.rule, self.predictions.with_link(link))
        return list(zip(checks, self.promises, strict=True))

    def standing(self) -> tuple[str, ...]:
        return tuple(f"Promise {check}; it was: {promise}." for check, promise in self.checks())


def read_run(folder: Path, split: str) -> RunScores:
    """Return the predictions of a split; promises only where no row fitted or tested anything."""
    run = RunFolder(folder)
    spec, predictions = run.spec, run.predictions(split)
    used = split == "promise" or split in run.fitted_splits
    promises = () if used else tuple(Promise.from_spec(promise) for promise in spec.promises)
    link = None if _same(spec.made_link, predictions.link) else spec.made_link
    return RunScores(predictions, link, spec.made_rule, promises, spec.made_taxonomy)


def score_data(
    folder: Path,
    table: LabelTable,
    *,
    device: str = "cpu",
    decode: "Decode" = "cpu",
    watch: Watch | None = None,
) -> tuple[RunScores, tuple[str, ...]]:
    """Return what a run's model says of labelled data, matched by name, and what was left out."""
    from labelwise.models.loading import load_model
    from labelwise.models.scoring import inferred

    predictor = load_model(folder, device)
    by_gpu = decode != "cpu" and "cuda" in str(getattr(predictor, "device", ""))
    by_gpu = by_gpu and predictor.transform.bands is None
    truth, notes = aligned_labels(table, predictor.space.names)
    network = lambda inputs: (predictor.logits(inputs),)  # noqa: E731
    parts = inferred(predictor, network, table.images, decode=decode)
    batches = list(watched(parts, table, watch))
    answered = [batch for batch in batches if batch.values]
    rows = [row for batch in answered for row in batch.rows.tolist()]
    failures = [failure for batch in batches for failure in batch.failures]
    notes += unread_notes(table, failures, len(rows))
    if by_gpu:
        notes.append("JPEGs were decoded by nvJPEG, whose pixels are a few levels off.")
    predictions = Predictions(
        [table.ids[row] for row in rows],
        np.concatenate([to_numpy(batch.values[0]) for batch in answered]),
        *label_arrays(truth[rows]),
        predictor.space.names,
        table.name,
        predictor.link,
        None if table.group is None else [table.group[row] for row in rows],
    )
    # Predictions of the run hold the link before calibration.
    own, splits = predictor.link, RunFolder(folder).splits
    if splits:
        own = RunFolder(folder).predictions(splits[0]).link
    calibrated = None if _same(own, predictor.link) else predictor.link
    promises = tuple(Promise.from_spec(promise) for promise in predictor.promises)
    run_scores = RunScores(
        predictions.with_link(own), calibrated, predictor.rule, promises, predictor.taxonomy
    )
    return run_scores, (*table.notes, *notes)


def watched(parts: "Iterable[Batch]", table: LabelTable, watch: Watch | None) -> "Iterator[Batch]":
    """Yield the batches of a table, and show how many of its photos were scored."""
    watch = watch or Silent()
    watch.start("scoring", len(table))
    for batch in parts:
        yield batch
        watch.advance(len(batch.rows) + len(batch.failures))
    watch.finish()


def unread_notes(table: LabelTable, failures: "Sequence[Failure]", scored: int) -> list[str]:
    """Return in words how many images could not be read; raise if none was scored."""
    if not scored:
        raise DataError(f"{table.name}: no image could be read; {failures[0].reason}")
    if not failures:
        return []
    count = f"{len(failures):,} of {counted(len(table), 'image')}"
    return [f"{count} could not be read, left out; first {failures[0].reason}"]


def _same(link: Link | None, other: Link | None) -> bool:
    if link is None or other is None:
        return link is other
    return link_to_spec(link) == link_to_spec(other)


# Label shift: if photos with a label look as they did, and only are more or fewer,
#
#     p now = sigma(a u + b - logit s + logit t)          (:mod:`labelwise.metrics.shift`)
#
# where the label's share was s and is t. A label whose share moved by no more than the errors
# explain keeps its probabilities; so does one that no held-out photo carries, or all.


LEAST_SLOPE = 1e-6


@dataclass(frozen=True, eq=False)
class ShareShift:
    """The share of each label now, None where held-out photos cannot tell, and the link for it."""

    link: Link
    known: tuple[HeldOutShare | None, ...]
    shares: tuple[LabelShare | None, ...]

    @property
    def moved(self) -> tuple[LabelShare, ...]:
        return moved_shares(filter(None, self.shares))

    def sentence(self) -> str:
        if not self.moved:
            return "No label's share moved by more than the errors explain; nothing was adapted."
        return (
            "Probabilities were adapted to the shares of labels among these photos "
            f"({first_shares(self.moved)}). "
            "That is right if photos with a label look as they did and only are more or fewer."
        )

    def adapted(self) -> Platt:
        slopes, offsets = [1.0] * len(self.known), [0.0] * len(self.known)
        for column, (known, share) in enumerate(zip(self.known, self.shares, strict=True)):
            if known is not None and share is not None and share.moved:
                now = min(max(share.now, CLIP), 1 - CLIP)
                slopes[column] = max(known.slope, LEAST_SLOPE)
                offsets[column] = known.offset + float(logit(now))
        return Platt(self.link, slopes, offsets, float(logit(1 - CLIP)))


def held_out_of(folder: Path) -> Predictions:
    """Return the photos of a run that tell how labels look; a run without any is refused."""
    held_out = RunFolder(folder).held_out()
    if held_out is None:
        lacks = f"{folder} has no predictions of held-out photos"
        raise DataError(f"shares need labelled photos: {lacks}; give the folder of a whole run")
    return held_out.predictions


def adapted_to_shares(folder: Path, run: RunScores) -> tuple[RunScores, str]:
    """Return scores of new photos with probabilities adapted to the shares there, and a note."""
    link = run.calibrated or run.predictions.link
    shift = share_shift(held_out_of(folder), link, run.predictions.logits)
    adapted = replace(
        run, predictions=run.predictions.with_link(link), calibrated=shift.adapted(), promises=()
    )
    return adapted, shift.sentence()


def share_shift(held_out: Predictions, link: Link | None, logits: Array) -> ShareShift:
    """Return how frequent each label is among photos with these logits (m, K).

    ``link`` is the one in use, under which the held-out photos' probabilities are read too. A
    share is said to have moved where it did with 95 % confidence, for all labels together.
    """
    if link is None:
        raise DataError("shares need probabilities, and the model has none; calibrate it first")
    if not len(logits):
        raise DataError("shares need at least one photo that could be read")
    before = link(held_out.logits.astype(np.float64))
    known = held_out_shares(before, held_out.majority, held_out.observed)
    probs = link(to_numpy(logits).astype(np.float64))
    together = 1 - (1 - 0.95) / len(known)
    shares: list[LabelShare | None] = [None] * len(known)
    for column, held in enumerate(known):
        if held is not None:
            given = held_out.names[column], probs[:, column], held
            moved = estimate_share(*given, together).moved
            shares[column] = replace(estimate_share(*given), moved=moved)
    return ShareShift(link, tuple(known), tuple(shares))


if TYPE_CHECKING:  # what was saved is read without torch
    from labelwise.learn.inference import Inferred
    from labelwise.models.scoring import Scored
    from labelwise.pictures.batches import Decode
    from labelwise.pictures.inputs import Failure
