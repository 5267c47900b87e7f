"""Out-of-fold predictions: what a run says of each of its training photos without having seen it.

The training rows are dealt into folds, whole groups to one. Each fold is a run of its own in
``RUN/folds/N-of-M``, with the settings of the run, trained on the other folds and calibrated on
the same validation rows; the rows held out are its test split. Features of a frozen backbone are
computed once for all of them.

``RUN/folds.parquet`` joins the answers in the order of the training rows, as log-odds under each
fold's own calibrated link: logits of different fits need not mean the same.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelwise.answers.suspects import deal_folds
from labelwise.data import LabelTable
from labelwise.errors import SettingsError
from labelwise.links import Sigmoid
from labelwise.models.run_folder import RunFolder
from labelwise.pictures import FeatureRows
from labelwise.predictions import Predictions
from labelwise.system.progress import Silent, Watch
from labelwise.training.features import frozen_features
from labelwise.training.processes import launch
from labelwise.training.run import Run, train
from labelwise.training.settings import Settings, read_settings

FAR = 50.0  # log-odds beyond which nothing changes


def train_folds(
    run: Run,
    folds: int,
    *,
    watch: Watch | None = None,
    fresh: bool = False,
    publish: Callable[[], None] = lambda: None,
) -> Predictions:
    """Return predictions of every training row of a run, by runs that were trained on the others.

    Folds that were finished before are taken as they are; one that was stopped goes on. ``publish``
    is called after each, and at the end.
    """
    files, watch = RunFolder(run.folder), watch or Silent()
    settings = read_settings(files.settings_path, {})
    if settings.hardware.devices > 1:
        raise SettingsError("folds are trained one after the other on one device; leave --devices")
    rows = np.flatnonzero(run.table.split == "train")
    group = None if run.table.group is None else np.array(list(run.table.group))[rows]
    dealt = deal_folds(len(rows), folds, seed=settings.seed, group=group)
    table = _as_features(settings, run.table, watch)
    # A promise and a share of photos without labels are the run's own, and change no row's order.
    plain = settings.model_copy(update={"promise": None, "cross_fit": False, "zero_share": None})
    parts = []
    for fold in range(folds):
        watch.say(f"fold {fold + 1} of {folds}")
        folder = files.folds / f"{fold + 1}-of-{folds}"
        held = rows[dealt == fold]
        train(plain, folder, table=_held_out(table, held), watch=watch, fresh=fresh)
        parts.append(_odds(folder))
        if sorted(parts[-1].ids) != sorted(run.table.ids[row] for row in held.tolist()):
            raise SettingsError(
                f"{folder} was trained on other rows; start over with --fresh, or choose another "
                "folder with -o"
            )
        publish()
    made = _joined(parts, [run.table.ids[row] for row in rows.tolist()])
    made.save(files.folds_path)
    publish()
    return made


def _as_features(settings: Settings, table: LabelTable, watch: Watch) -> LabelTable:
    if settings.features is None or isinstance(table.images, FeatureRows):
        return table
    return frozen_features(settings, table, launch(settings.hardware), watch)[1]


def _held_out(table: LabelTable, held: NDArray[np.intp]) -> LabelTable:
    """Return the table with some training rows as its test split; its own test rows are gone."""
    split = np.array(table.split)
    kept = split != "test"
    split[held] = "test"
    return replace(table, split=split).subset(np.flatnonzero(kept))


def _odds(folder: Path) -> Predictions:
    """Return the held-out rows of a fold with log-odds as logits; as they are without a link."""
    run = RunFolder(folder)
    predictions, link = run.predictions("test"), run.spec.made_link
    if link is None:
        return predictions
    odds = link.log_odds(predictions.logits.astype(np.float64)).clip(-FAR, FAR)
    return replace(predictions, logits=odds.astype(np.float32), link=Sigmoid())


def _joined(parts: list[Predictions], ids: list[str]) -> Predictions:
    """Return the parts as one, in the order of ``ids``; rows of one id keep theirs."""
    places: dict[str, list[int]] = {}
    for place, name in enumerate(name for part in parts for name in part.ids):
        places.setdefault(name, []).append(place)
    order = np.array([places[name].pop(0) for name in ids])
    observed = [
        np.ones(part.labels.shape, bool) if part.observed is None else part.observed
        for part in parts
    ]
    known = np.concatenate(observed)[order]
    groups = [name for part in parts for name in part.group or ()]
    return Predictions(
        ids,
        np.concatenate([part.logits for part in parts])[order],
        np.concatenate([part.labels for part in parts])[order],
        None if known.all() else known,
        parts[0].names,
        "train",
        parts[0].link,
        None
        if any(part.group is None for part in parts)
        else [groups[at] for at in order.tolist()],
    )
