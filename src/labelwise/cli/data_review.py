"""``labelwise data review``: labels that are mistakes, what to label next, and answers put in."""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from labelwise.answers.asking import choose_labels, choose_photos, draw_photos
from labelwise.answers.suspects import (
    crossfit_log_odds,
    crossfit_true_log_odds,
    find_suspects,
    log_changes,
    promise_suspects,
    read_review,
    repair,
    write_review,
)
from labelwise.base.progress import make_watch
from labelwise.base.storage import is_uri
from labelwise.base.text import counted
from labelwise.cli.options import Options, model_path
from labelwise.cli.text import caution, next_steps, say, show_table, tell
from labelwise.contrib.annotation_tools import Guesses, export_for_tool
from labelwise.errors import DataError, LabelwiseError, SettingsError
from labelwise.models.run_folder import RunFolder
from labelwise.photos import Index
from labelwise.photos.review import pool_of
from labelwise.report.contact_sheet import SIDE, write_questions_page, write_suspects_page
from labelwise.scores.embeddings import holds_vectors
from labelwise.scores.unlabelled_pool import (
    PhotoPool,
    answered_questions,
    read_pool,
    reviewable,
    suspect_questions,
)
from labelwise.tables import load
from labelwise.tables.export import export

LABELS_SHOWN = 10
MOST_IN_CONTEXT = 300  # labels, whose pairs are all fitted
ORDERS = ("value", "entropy", "diverse", "expected-f", "random")
OF_SUSPECTS = (
    *("answers", "wrong_at_most", "confidence", "checks", "data", "split", "scores", "link"),
    *("labels", "context", "folds"),
)
OF_NEXT = ("model", "order", "for_", "questions", "batch_size", "device")
OF_REPAIR = ("changes", "accept_guaranteed", "test_too")


def review_table(source: str, given: Options) -> None:
    """List labels that are probably mistakes, or what to label next."""
    if given.apply is not None:
        given.refuse("--apply puts answers into a table", "find", *OF_SUSPECTS, *OF_NEXT)
        _repair(source, given.apply, given)
        return
    given.refuse("it belongs to --apply", *OF_REPAIR)
    if given.html is None:
        given.refuse("it belongs to the page: say --html review.html", "data", "blind")
    if given.find == "next":
        given.refuse("it is for --find missing or wrong", *OF_SUSPECTS)
        _next(source, given)
    else:
        given.refuse("it is for --find next", *OF_NEXT)
        _suspects(source, given.find or "missing", given)


def _suspects(source: str, kind: Literal["missing", "wrong"], given: Options) -> None:
    folder, seed, level = Path(source), given.seed or 0, given.get("wrong_at_most", 0.2)
    if folder.is_dir() or is_uri(source) or holds_vectors(folder):
        given.refuse(f"{source} is not a table of scores", "scores", "link", "labels")
    how: dict[str, Any] = {"folds": given.folds or 5, "seed": seed}
    read = {"scores": given.scores, "link": given.link, "labels": given.labels}
    predictions = reviewable(source, given.split, **how, **read)
    labels, observed = predictions.labels, predictions.observed
    odds = crossfit_log_odds(predictions.logits, labels, predictions.link, observed, **how)
    context = given.context
    if context is None:
        context = 1 < len(predictions.names) <= MOST_IN_CONTEXT
    odds = crossfit_true_log_odds(odds, labels, observed, context=context, **how).log_odds
    known, most = predictions.certain(), given.top or 1000
    suspects = find_suspects(odds, predictions.majority, known, kind=kind, most=most)
    questions = suspect_questions(suspects, predictions, given.checks or 50, seed)
    promise = None
    if given.answers is not None:
        questions = answered_questions(questions, Path(given.answers))
        told = {at: bool(q.confirmed) for at, q in enumerate(questions) if q.answer}
        sure = {"level": level, "confidence": given.get("confidence", 0.95)}
        promise = promise_suspects([q.check for q in questions], told, **sure)
        questions = [replace(q, promised=at < promise.count) for at, q in enumerate(questions)]
    write_review(given.target, questions)
    if given.html is not None:
        picture = None if given.data is None else _pictures(given.data)
        if picture is None and (folder / "settings.yaml").is_file():
            with suppress(LabelwiseError):  # the photos of the run, unless they have moved
                picture = _pictures(RunFolder(folder).data)
        shown = {"picture": picture, "blind": given.blind}
        write_suspects_page(given.html, questions, promise=promise, **shown)
    found, total = counted(len(suspects), "label"), counted(len(predictions), "photo")
    say(f"{found} may be {kind}, on {len(set(suspects.rows.tolist())):,} of {total}")
    counts = Counter(sorted(suspects.columns.tolist())).most_common(LABELS_SHOWN)
    rows = [(predictions.names[column], count) for column, count in counts]
    show_table(("label", "suspects"), rows)
    if promise is not None:
        say(str(promise))
    else:
        every, first = (sum(one.check for one in part) for part in (questions, questions[:100]))
        say(
            f"no guarantee yet: answer the questions marked `check` ({first} among the first 100, "
            f"{every} in all; the first ones are enough to begin) with yes, no or unknown, and "
            f"run again with --answers to guarantee that at most {level:.0%} are false"
        )
    _say_written(given)
    if promise is None:
        next_steps(f"data review {source} --answers {given.out} -o checked.csv")
    else:
        next_steps(f"data review TABLE --apply {given.out} -o mended.csv")


def _say_written(given: Options) -> None:
    say(f"wrote {given.out}" + ("" if given.html is None else f" and {given.html}"))


def _pictures(data: str) -> Callable[[str], Image.Image | None]:
    images = load(data, check_files=False).images
    return _opener(images, {name: row for row, name in enumerate(images.ids)})


def _opener(images: Any, rows: dict[str, int]) -> Callable[[str], Image.Image | None]:
    def picture(photo: str) -> Image.Image | None:
        try:
            return images.read(rows[photo], SIDE) if photo in rows else None
        except (OSError, LabelwiseError, TypeError):
            return None

    return picture


def _repair(source: str, answers: Path, given: Options) -> None:
    table, questions = load(source), read_review(answers)
    repaired, changes = repair(
        table, questions, accept_promised=given.accept_guaranteed, test_too=given.test_too
    )
    log = given.changes or given.target.with_suffix(".answers.jsonl")
    log_changes(log, [])  # so that a file of another kind is named before anything is written
    export(repaired, given.target)
    log_changes(log, changes)
    kinds = Counter(f"{change.before} to {change.after}" for change in changes)
    listed = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
    answered = sum(bool(question.answer) for question in questions)
    changed = f"{counted(len(changes), 'label')} changed{f' ({listed})' if listed else ''}"
    say(f"{counted(answered, 'answer')}, {changed}")
    say(f"wrote {given.out}, and the changes to {log}")
    next_steps(f"train {given.out}")


def _next(source: str, given: Options) -> None:
    out, top, labels = given.target, given.top or 200, given.questions == "labels"
    order: Any = given.order or ("value" if labels else "random")
    if order not in ORDERS:
        raise SettingsError(f"--order must be one of {', '.join(ORDERS)}, got {order!r}")
    if labels:
        given.refuse("--for writes complete photos; leave out --questions labels", "for_")
        if out.suffix.lower() != ".csv":
            raise SettingsError(f"{out}: a review file must end in .csv")
        if order == "random":
            raise SettingsError("--order random draws photos; leave out --questions labels")
    if order != "random":
        given.refuse("it belongs to --order random", "seed")
    model = model_path(given)
    pool = _pool(source, model, given)
    caution(*pool.notes)
    if not pool.pool.open.any():
        raise DataError(f"{source}: every label of every photo is known; there is nothing to ask")
    if labels:
        rows, columns = choose_labels(pool.pool, top, order)
        asked = pool.about_labels(rows, columns, out.parent)
        write_review(out, asked)
    else:
        if order == "random":
            rows = draw_photos(pool.pool, top, seed=given.seed or 0)
        else:
            rows = choose_photos(pool.pool, top, order)
        asked = pool.about_photos(rows, out.parent)
        if given.for_ is None:
            export(pool.table.subset(rows), out)
        else:
            name = Path(source).name if model is None else model.name
            guesses = Guesses(pool.pool.probs[rows], pool.pool.sets[rows], name)
            tell(export_for_tool(pool.table.subset(rows), out, given.for_, guesses))
    if given.html is not None:
        row_of = dict(zip(pool.names(rows, out.parent), rows.tolist(), strict=True))
        picture = _opener(pool.table.images, row_of)
        write_questions_page(given.html, asked, by=order, picture=picture, blind=given.blind)
    if labels:
        photos = counted(len({*rows.tolist()}), "photo")
        say(f"{counted(len(asked), 'question')} about {photos} of {len(pool.pool):,}")
        counts = Counter(question.label for question in asked).most_common(LABELS_SHOWN)
        show_table(("label", "questions"), counts)
        say("answer yes, no or unknown in the column answer")
    else:
        say(f"{counted(len(rows), 'photo')} of {len(pool.pool):,} to label next")
    _say_written(given)
    if labels:
        next_steps(f"data review TABLE --apply {given.out} -o mended.csv")
    elif given.for_ is None:
        next_steps(f"data convert {given.out} --for label-studio -o tasks.json")
    else:
        next_steps(f"train {given.out}")
    if len(rows) < top:
        say(f"nothing else is unknown: {len(rows):,} instead of {top:,}")


def _pool(source: str, model: Path | None, given: Options) -> PhotoPool:
    if (Path(source) / "index.json").is_file():
        if model is not None:
            raise SettingsError(f"{source} is an index and has its own model; leave out --model")
        with Index(Path(source)) as index:
            return PhotoPool(*pool_of(index), named=True)
    if model is None:
        raise SettingsError(f"say with --model which model should judge the photos of {source}")
    device, size = given.device or "cpu", given.batch_size or 64
    return read_pool(source, model, device=device, batch_size=size, watch=make_watch())
