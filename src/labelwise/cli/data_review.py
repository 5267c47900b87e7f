"""``labelwise data suspects`` and ``repair``: find labels that are mistakes, and put them right."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from labelwise.cli.options import A_RUN, LabelsOption, LinkOption, ScoreKind, ScoresOption
from labelwise.system.text import counted

if TYPE_CHECKING:
    from PIL import Image

    from labelwise.answers import Reviewed, SuspectPromise, Suspects
    from labelwise.predictions import Predictions


LABELS_SHOWN = 10
MOST_IN_CONTEXT = 300  # labels, whose pairs are all fitted


def suspects(
    source: Annotated[
        Path,
        typer.Argument(help="A run, scores with labels, or an .npz of frozen features and labels."),
        A_RUN,
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The review file to write, .csv.")],
    kind: Annotated[
        Literal["missing", "wrong"],
        typer.Option(help="Labels said absent that may be there, or said present that may not."),
    ] = "missing",
    false_at_most: Annotated[
        float, typer.Option(min=0.01, max=0.99, help="Share of false suspects to promise.")
    ] = 0.2,
    confidence: Annotated[
        float, typer.Option(min=0.5, max=0.999, help="With which the promise is made.")
    ] = 0.95,
    answers: Annotated[
        Path | None,
        typer.Option(help="The review file of an earlier call, its marked questions answered."),
    ] = None,
    most: Annotated[int, typer.Option(min=1, help="How many suspects to list.")] = 1000,
    checks: Annotated[
        int, typer.Option(min=1, help="Suspects marked to check in each stretch of the list.")
    ] = 50,
    page: Annotated[Path | None, typer.Option(help="Also write this page, .html.")] = None,
    data: Annotated[
        str | None, typer.Option(help="Where the page's photos are: any data labelwise reads.")
    ] = None,
    blind: Annotated[
        bool, typer.Option("--blind", help="Leave the model's guesses out of the page.")
    ] = False,
    split: Annotated[
        str | None,
        typer.Option(
            help="Rows to look at.",
            show_default="train of a run with folds, else its val; all of a file",
        ),
    ] = None,
    scores: ScoresOption = None,
    link: LinkOption = None,
    labels: LabelsOption = None,
    context: Annotated[
        bool | None,
        typer.Option(
            help="Judge a label by the photo's other labels, too.",
            show_default=f"up to {MOST_IN_CONTEXT} labels",
        ),
    ] = None,
    folds: Annotated[int, typer.Option(min=2, help="Fits, each on the other rows.")] = 5,
    seed: Annotated[int, typer.Option(help="Deals rows into folds and draws the checks.")] = 0,
) -> None:
    """List labels that are probably mistakes, likeliest first.

    Every row is judged by fits on other rows: of the link for scores, of head and link for frozen
    features. Answer the questions marked `check` in the file (yes, no or unknown), and give it
    again as --answers: it then says how much of the list can be trusted, and with what confidence.
    """
    from labelwise.answers import (
        crossfit_log_odds,
        crossfit_true_log_odds,
        find_suspects,
        promise_suspects,
        write_review,
    )
    from labelwise.cli.text import say
    from labelwise.errors import SettingsError

    if page is None and (data is not None or blind):
        raise SettingsError("--data and --blind belong to the page; say --page suspects.html")
    predictions = _read(source, split, scores, link, labels, folds, seed)
    odds = crossfit_log_odds(
        predictions.logits,
        predictions.labels,
        predictions.link,
        predictions.observed,
        folds=folds,
        seed=seed,
    )
    odds = crossfit_true_log_odds(
        odds,
        predictions.labels,
        predictions.observed,
        context=1 < len(predictions.names) <= MOST_IN_CONTEXT if context is None else context,
        folds=folds,
        seed=seed,
    ).log_odds
    found = find_suspects(odds, predictions.majority, predictions.certain(), kind=kind, most=most)
    questions = _questions(found, predictions, checks, seed)
    promise = None
    if answers is not None:
        questions = _with_answers(questions, answers)
        told = {place: bool(one.confirmed) for place, one in enumerate(questions) if one.answer}
        marked = [one.check for one in questions]
        promise = promise_suspects(marked, told, level=false_at_most, confidence=confidence)
        questions = _promised(questions, promise)
    write_review(out, questions)
    if page is not None:
        _write_page(page, questions, promise, data, blind)
    _summary(questions, found, predictions, promise, false_at_most)
    say(f"wrote {out}" + ("" if page is None else f" and {page}"))


def repair_table(
    source: Annotated[str, typer.Argument(help="The label table: any data labelwise reads.")],
    answers: Annotated[Path, typer.Argument(help="A review file with answers.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Where to write: .csv .tsv .jsonl .parquet")
    ],
    log: Annotated[
        Path | None,
        typer.Option(help="Where changes are appended.", show_default="OUT with .repairs.csv"),
    ] = None,
    accept_promised: Annotated[
        bool,
        typer.Option("--accept-promised", help="Also change promised suspects without an answer."),
    ] = False,
    test_too: Annotated[
        bool, typer.Option("--test-too", help="Allow changes in the test split.")
    ] = False,
) -> None:
    """Write the table with the answers of a review in it.

    What changed is appended to a log.
    """
    from collections import Counter

    from labelwise.answers import read_review, repair, write_changes
    from labelwise.cli.text import say
    from labelwise.data import load
    from labelwise.data.export import export

    table = load(source)
    questions = read_review(answers)
    repaired, changes = repair(table, questions, accept_promised=accept_promised, test_too=test_too)
    export(repaired, out)
    target = log or out.with_suffix(".repairs.csv")
    write_changes(target, changes)
    kinds = Counter(f"{change.before} to {change.after}" for change in changes)
    listed = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
    answered = sum(bool(one.answer) for one in questions)
    changed = f"{counted(len(changes), 'label')} changed{f' ({listed})' if listed else ''}"
    say(f"{counted(answered, 'answer')}, {changed}")
    say(f"wrote {out}, and the changes to {target}")


def _read(
    source: Path,
    split: str | None,
    scores: ScoreKind | None,
    link: str | None,
    labels: str | None,
    folds: int,
    seed: int,
) -> "Predictions":
    """Return held-out scores with labels, wherever they come from."""
    from labelwise.errors import SettingsError
    from labelwise.models.run_folder import RunFolder
    from labelwise.scores import read_run, read_scores
    from labelwise.scores.embeddings import holds_vectors

    if source.is_dir():
        if scores is not None or link is not None or labels is not None:
            raise SettingsError(f"{source} is a run; leave out --scores, --link and --labels")
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
        if scores is not None or link is not None or labels is not None:
            raise SettingsError(f"{source} holds features; leave out --scores, --link and --labels")
        return _from_features(source, split, folds, seed)
    table = read_scores(source, scores, link=link, labels=labels)
    return table.predictions if split is None else table.part(split)


def _from_features(source: Path, split: str | None, folds: int, seed: int) -> "Predictions":
    import numpy as np
    import torch

    from labelwise.answers import crossfit_heads
    from labelwise.errors import DataError
    from labelwise.links import Sigmoid
    from labelwise.predictions import Predictions
    from labelwise.scores.embeddings import read_embeddings
    from labelwise.system.progress import make_watch

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
    logits = crossfit_heads(
        table.vectors[rows], present, observed, folds=folds, seed=seed, watch=make_watch()
    )
    ids = [table.ids[row] for row in rows]
    return Predictions(
        ids, logits, torch.from_numpy(present), observed, table.names, split or "", Sigmoid()
    )


def _questions(
    found: "Suspects", predictions: "Predictions", checks: int, seed: int
) -> "list[Reviewed]":
    from labelwise.answers import Reviewed, marked_checks

    marked = marked_checks(len(found), per_stretch=checks, seed=seed)
    given: Literal["present", "absent"] = "absent" if found.kind == "missing" else "present"
    return [
        Reviewed(
            str(predictions.ids[row]), predictions.names[column], given, float(prob), bool(check)
        )
        for row, column, prob, check in zip(
            found.rows, found.columns, found.probs, marked, strict=True
        )
    ]


def _with_answers(questions: "list[Reviewed]", path: Path) -> "list[Reviewed]":
    """Return the questions with the answers of a review of the same list."""
    from dataclasses import replace

    from labelwise.answers import read_review
    from labelwise.errors import DataError

    reviewed = read_review(path)
    same = len(reviewed) == len(questions) and all(
        (old.photo, old.label, old.given, old.check) == (new.photo, new.label, new.given, new.check)
        for old, new in zip(reviewed, questions, strict=True)
    )
    if not same:
        raise DataError(
            f"{path} reviews another list than this one, and a promise holds for its own list; "
            "give the same scores, --kind, --most, --checks, --context, --folds and --seed as then"
        )
    return [replace(new, answer=old.answer) for old, new in zip(reviewed, questions, strict=True)]


def _promised(questions: "list[Reviewed]", promise: "SuspectPromise") -> "list[Reviewed]":
    from dataclasses import replace

    return [replace(one, promised=place < promise.count) for place, one in enumerate(questions)]


def _write_page(
    path: Path,
    questions: "list[Reviewed]",
    promise: "SuspectPromise | None",
    data: str | None,
    blind: bool,
) -> None:
    from labelwise.errors import LabelwiseError
    from labelwise.report.contact_sheet import SIDE
    from labelwise.report.suspects import write_suspects_page

    picture = None
    if data is not None:
        from labelwise.data import load

        images = load(data, check_files=False).images
        place = {name: row for row, name in enumerate(images.ids)}

        def picture(photo: str) -> "Image.Image | None":
            try:
                return images.read(place[photo], SIDE) if photo in place else None
            except (OSError, LabelwiseError):
                return None

    write_suspects_page(path, questions, promise=promise, picture=picture, blind=blind)


def _summary(
    questions: "list[Reviewed]",
    found: "Suspects",
    predictions: "Predictions",
    promise: "SuspectPromise | None",
    level: float,
) -> None:
    from labelwise.cli.text import say, show_table

    photos = len(found.photos())
    total = counted(len(predictions), "photo")
    say(f"{counted(len(found), 'label')} may be {found.kind}, on {photos:,} of {total}")
    counts = found.per_label(len(predictions.names))
    order = sorted(range(len(counts)), key=lambda column: (-counts[column], column))
    rows = [(predictions.names[k], f"{counts[k]:,}") for k in order[:LABELS_SHOWN] if counts[k]]
    show_table(("label", "suspects"), rows)
    marked = sum(one.check for one in questions)
    if promise is not None:
        say(str(promise))
        return
    first = sum(one.check for one in questions[:100])
    say(
        f"no promise yet: answer the questions marked `check` ({first} among the first 100, "
        f"{marked} in all; the first ones are enough to begin) with yes, no or unknown, and run "
        f"again with --answers to promise that at most {level:.0%} are false"
    )
