"""Labels that may be mistakes: held-out scores to judge them by, questions, and their answers."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from labelwise.answers.suspects import (
    Reviewed,
    Suspects,
    crossfit_heads,
    marked_checks,
    read_review,
)
from labelwise.errors import DataError, SettingsError
from labelwise.links import Sigmoid
from labelwise.models.run_folder import RunFolder, fetched_run
from labelwise.numeric.arrays import to_numpy
from labelwise.predictions import Predictions
from labelwise.scores.embeddings import holds_vectors, read_embeddings
from labelwise.scores.read import read_scores
from labelwise.scores.run import read_run
from labelwise.scores.tables import Kind
from labelwise.system.progress import make_watch
from labelwise.system.storage import is_uri


def reviewable(
    place: str,
    split: str | None,
    *,
    folds: int = 5,
    seed: int = 0,
    scores: Kind | None = None,
    link: str | None = None,
    labels: str | None = None,
) -> Predictions:
    """Return held-out scores with labels: of a run, of a table, or by fits on frozen features."""
    source = fetched_run(place, "results") if is_uri(place) else Path(place)
    if source.is_dir():
        unseen = RunFolder(source).out_of_fold() if split in (None, "train") else None
        if unseen is not None:
            return unseen
        if split == "train":
            raise SettingsError(
                "a run's model was fitted on its train labels and believes them; train it with "
                "--folds 5, or give the frozen features of train as an .npz file"
            )
        return read_run(source, split or "val").predictions
    if holds_vectors(source):
        return _from_features(source, split, folds, seed)
    table = read_scores(source, scores, link=link, labels=labels)
    return table.predictions if split is None else table.part(split)


def _from_features(source: Path, split: str | None, folds: int, seed: int) -> Predictions:
    table = read_embeddings(source)
    if table.labels is None or table.names is None:
        raise DataError(f"{source}: there is no array 'labels' to look for mistakes in")
    rows = np.arange(len(table.ids))
    if split is not None:
        rows = np.flatnonzero(table.split == split) if table.split is not None else rows[:0]
        if not len(rows):
            raise DataError(f"{source}: no row has split {split!r}")
    known = ~np.isnan(table.labels[rows])
    present = (table.labels[rows] == 1).astype(np.uint8)
    observed = None if known.all() else torch.from_numpy(known)
    logits = to_numpy(
        crossfit_heads(
            table.vectors[rows], present, observed, folds=folds, seed=seed, watch=make_watch()
        )
    )
    ids = [table.ids[row] for row in rows]
    seen = None if known.all() else known
    return Predictions(ids, logits, present, seen, table.names, split or "", Sigmoid())


def suspect_questions(
    found: Suspects, predictions: Predictions, checks: int, seed: int
) -> list[Reviewed]:
    """Return a question about each suspect, some of them marked to be checked."""
    marked = marked_checks(len(found), per_stretch=checks, seed=seed)
    given: Literal["present", "absent"] = "absent" if found.kind == "missing" else "present"
    ids, names = predictions.ids, predictions.names
    return [
        Reviewed(str(ids[row]), names[column], given, float(prob), bool(check))
        for row, column, prob, check in zip(
            found.rows, found.columns, found.probs, marked, strict=True
        )
    ]


def answered_questions(questions: list[Reviewed], path: Path) -> list[Reviewed]:
    """Return the questions with the answers of a review of the same list."""
    reviewed = read_review(path)
    same = len(reviewed) == len(questions) and all(
        (old.photo, old.label, old.given, old.check) == (new.photo, new.label, new.given, new.check)
        for old, new in zip(reviewed, questions, strict=True)
    )
    if not same:
        raise DataError(
            f"{path} reviews another list than this one, and a promise holds for its own list; "
            "give the same scores, --find, --top, --checks, --context, --folds and --seed as then"
        )
    return [replace(new, answer=old.answer) for old, new in zip(reviewed, questions, strict=True)]
