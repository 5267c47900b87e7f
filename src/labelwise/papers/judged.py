"""Released Query2Label checkpoints, judged on the test images of Table 1 of the report.

A row names the backbone and the size of its pictures. Predictions are kept in the folder, so that
a second call reads no picture.
"""

from collections.abc import Mapping
from pathlib import Path

import torch

from labelwise.base.arrays import to_numpy
from labelwise.base.progress import Watch
from labelwise.contrib.query2label import load_query2label
from labelwise.errors import DataError, SettingsError
from labelwise.models.run_folder import RunFolder
from labelwise.papers.measures import FinishedRun
from labelwise.papers.reproduce import find_experiment
from labelwise.predictions import Predictions
from labelwise.tables import LabelTable
from labelwise.training.inference import infer_logits
from labelwise.types import nearest

JUDGED_BY_CHECKPOINT = "004-table1"


def judge_checkpoints(
    table: LabelTable,
    files: Mapping[str, Path],
    folder: Path,
    *,
    device: str = "cpu",
    watch: Watch | None = None,
) -> tuple[list[str], list[list[str]]]:
    """Return header and rows: the mAP of each checkpoint on test images, and the printed one."""
    experiment = find_experiment(JUDGED_BY_CHECKPOINT)
    test = table.splits().get("test")
    if test is None:
        raise DataError(f"{table.name} has no test images to judge checkpoints on")
    printed = experiment.published
    rows = []
    for row, file in files.items():
        if row not in experiment.rows:
            raise SettingsError(
                f"{JUDGED_BY_CHECKPOINT} has no row {row!r}{nearest(row, experiment.rows)}"
            )
        values = experiment.rows[row].values
        run = RunFolder(folder / row)
        if not run.predictions_path("test").is_file():
            names, size = table.space.names, values["image_size"]
            predictor = load_query2label(file, values["backbone"], names, image_size=size)
            model, task = predictor.to(device).model, f"{row}: predicting test"
            place = torch.device(device)
            seen = infer_logits(model, test.images, place, watch=watch, task=task)
            given = to_numpy(seen.logits), *test.targets()
            predicted = Predictions(test.ids, *given, names, "test", predictor.link)
            predicted.save(run.predictions_path("test"))
        figures = experiment.figures(FinishedRun(run.path))
        ours = [f"{figures[name]:.1f}" for name in printed.columns]
        theirs = [f"{value:.1f}" for value in printed.rows[row] if value is not None]
        rows.append([row, *ours, *theirs, f"{len(test):,}"])
    header = ["row", *printed.columns, *(f"{name}, printed" for name in printed.columns), "images"]
    return header, rows
