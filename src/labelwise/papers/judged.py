"""What others trained, judged as the papers' tables judge their own: scores, and checkpoints.

Scores that any model gave to answers of VQA v2 are judged as SPA's appendix judges its own. A table
(Parquet or JSON Lines) has a row per question: ``question_id``, ``answers`` (a list of texts) and
``logits`` (as many numbers). A model may list all answers it knows or only its likeliest; what is
not listed takes no part in calibration. The link that makes the logits probabilities is that of the
method the model was trained with.

Released Query2Label checkpoints are judged on the test images of Table 1 of the report. A row names
the backbone and the size of its pictures. Predictions are kept in the folder, so that a second call
reads no picture.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import torch
from numpy.typing import NDArray

from labelwise.base.arrays import to_numpy
from labelwise.base.progress import Watch
from labelwise.base.table_files import read_parquet
from labelwise.contrib.query2label import load_query2label
from labelwise.errors import DataError, SettingsError
from labelwise.learn.methods import find_method, make_objective
from labelwise.links import Link
from labelwise.metrics import reliability
from labelwise.models.run_folder import RunFolder
from labelwise.papers.measures import FinishedRun
from labelwise.papers.reproduce import find_experiment
from labelwise.predictions import Predictions
from labelwise.tables import LabelTable
from labelwise.tables.official import VqaQuestion, normal_answer, read_questions
from labelwise.tables.rows import require_file
from labelwise.training.inference import infer_logits
from labelwise.types import DatasetFacts, nearest

Counts = NDArray[np.int64]
Numbers = NDArray[np.float64]
COLUMNS = ("question_id", "answers", "logits")


@dataclass(frozen=True)
class JudgedScores:
    """Official accuracy, ACE and MCE (per cent) of brought scores, and how many there were."""

    row: str
    accuracy: float
    ace: float
    mce: float
    questions: int
    entries: int


def judge_scores(folder: Path, scores: Mapping[str, Path]) -> list[JudgedScores]:
    """Judge the scores of each method (row: file) on the val2014 questions in ``folder``."""
    links = {row: _link(row) for row in scores}
    questions = {question.number: question for question in read_questions(folder, "val2014")}
    return [_judged(row, file, links[row], questions) for row, file in scores.items()]


def judged_cells(judged: list[JudgedScores]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of a table of brought scores."""
    header = ["row", "VQA accuracy", "ACE", "MCE", "questions", "answers scored"]
    rows = [
        [
            result.row,
            *(f"{value:.2f}" for value in (result.accuracy, result.ace, result.mce)),
            *(f"{count:,}" for count in (result.questions, result.entries)),
        ]
        for result in judged
    ]
    return header, rows


def _link(row: str) -> Link:
    """Return the link of a method, which must give each answer's probability by itself."""
    find_method(row)
    link = make_objective(row, DatasetFacts(1, 1, 0.5, (0.5,))).link
    if link is None or link.couples_labels or link.kind == "quasibinary":
        raise SettingsError(
            f"scores of {row!r} cannot be judged: its link is not a fixed map of each logit; "
            "name the row after a method such as bce, spa or asl+phi"
        )
    return link


def _judged(row: str, file: Path, link: Link, questions: Mapping[int, VqaQuestion]) -> JudgedScores:
    numbers, sizes, answers, logits = _read(file)
    values = np.zeros(len(logits))
    hits = np.zeros(len(numbers))
    ends = np.cumsum(sizes)
    for position, (number, size, end) in enumerate(zip(numbers, sizes, ends, strict=True)):
        question = questions.get(number)
        if question is None:
            raise DataError(f"{file}: question {number} is not among those of val2014")
        rows = slice(end - size, end)
        values[rows] = [question.accuracies.get(normal_answer(text), 0.0) for text in answers[rows]]
        hits[position] = values[rows][logits[rows].argmax()]
    missing = len(questions) - len(set(numbers))
    if missing:
        raise DataError(
            f"{file}: every question of val2014 must be scored once; {missing:,} of "
            f"{len(questions):,} are missing"
        )
    with torch.no_grad():
        probs = link(torch.from_numpy(logits)[:, None])
    bins = reliability(probs, torch.from_numpy(values)[:, None])
    ace, mce = 100 * float(bins.ace()), 100 * float(bins.mce())
    return JudgedScores(row, 100 * float(hits.mean()), ace, mce, len(numbers), len(logits))


def _read(file: Path) -> tuple[list[int], Counts, list[str], Numbers]:
    require_file(file)
    try:
        if file.suffix.lower() in (".jsonl", ".ndjson", ".json"):
            table = pyarrow.json.read_json(file)
        else:
            table = read_parquet(file)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{file}: must be Parquet or JSON Lines ({reason})") from None
    for name in COLUMNS:
        if name not in table.column_names:
            raise DataError(
                f"{file}: must have the columns {', '.join(COLUMNS)}; {name!r} is missing"
            )
    columns = [table[name].combine_chunks() for name in COLUMNS]
    sizes = [np.asarray(pc.fill_null(pc.list_value_length(column), 0)) for column in columns[1:]]
    wrong = np.flatnonzero((sizes[0] != sizes[1]) | (sizes[0] == 0))
    numbers = columns[0].cast(pa.int64()).to_pylist()
    if len(wrong):
        position = int(wrong[0])
        raise DataError(
            f"{file}: question {numbers[position]} must have one logit per answer, got "
            f"{sizes[0][position]} answers and {sizes[1][position]} logits"
        )
    repeated = len(numbers) - len(set(numbers))
    if repeated:
        raise DataError(f"{file}: {repeated:,} questions are there twice")
    logits = np.array(pc.list_flatten(columns[2]).cast(pa.float64()), np.float64)
    if not np.isfinite(logits).all():
        raise DataError(f"{file}: logits must be finite numbers")
    return numbers, sizes[0], pc.list_flatten(columns[1]).to_pylist(), logits


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
