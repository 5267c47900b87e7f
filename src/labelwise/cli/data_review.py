"""``labelwise data review``: labels that are mistakes, what to label next, and answers put in."""

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from labelwise.base.progress import make_watch
from labelwise.base.storage import is_uri
from labelwise.base.text import counted
from labelwise.cli.arguments import (
    Answers,
    BatchSize,
    Confidence,
    Data,
    Device,
    Folds,
    ForTool,
    Html,
    Labels,
    Link,
    Model,
    NeededOut,
    Order,
    Scores,
    Seed,
    Split,
    Top,
    WrongAtMost,
    option,
)
from labelwise.cli.command import as_typed, data_app, refuse, refuse_overwriting, verb
from labelwise.cli.options import model_path
from labelwise.cli.text import caution, next_name, next_steps, quoted, say, show_table, tell
from labelwise.errors import DataError, LabelwiseError, SettingsError

if TYPE_CHECKING:
    from PIL import Image

    from labelwise.pictures import ImageSource
    from labelwise.scores.unlabelled_pool import PhotoPool

    Picture = Callable[[str], Image.Image | None]

LABELS_SHOWN = 10
MOST_IN_CONTEXT = 300  # labels, whose pairs are all fitted
ORDERS = ("value", "entropy", "diverse", "random")
OF_SUSPECTS = (
    *("answers", "wrong_at_most", "confidence", "checks", "data", "split", "scores", "link"),
    *("labels", "context", "folds"),
)
OF_NEXT = ("model", "order", "tool", "questions", "batch_size", "device")
OF_REPAIR = ("changes", "accept_guaranteed", "test_too")


@verb(
    data_app,
    "data review runs/photos -o review.csv --html review.html",
    "data review photos.csv --apply review.csv -o mended.csv",
    name="review",
    more="confidence",
)
def review_table(
    source: Annotated[
        str, typer.Argument(help="A run or scores with labels; photos; or with --apply a table.")
    ],
    *,
    out: NeededOut,
    find: Annotated[
        Literal["missing", "wrong", "next"],
        option("--find", help="Labels that are missing (default) or wrong, or what to label next."),
    ] = "missing",
    apply: Annotated[
        Path | None, option("--apply", help="Put the answers of this review file into the table.")
    ] = None,
    model: Model = None,
    answers: Answers = None,
    top: Top = None,
    order: Order = None,
    wrong_at_most: WrongAtMost = None,
    html: Html = None,
    tool: ForTool = None,
    questions: Annotated[
        Literal["photos", "labels"] | None,
        option("--questions", help="Ask about complete photos, or single labels."),
    ] = None,
    split: Split = None,
    confidence: Confidence = None,
    checks: Annotated[
        int,
        option("--checks", min=1, help="Questions marked in each stretch of the list (50)."),
    ] = 50,
    data: Data = None,
    blind: Annotated[
        bool, option("--blind", help="Leave the model's guesses out of the page.")
    ] = False,
    scores: Scores = None,
    link: Link = None,
    labels: Labels = None,
    context: Annotated[
        bool | None,
        option("--context/--no-context", help="Judge a label by the photo's other labels, too."),
    ] = None,
    folds: Folds = None,
    seed: Seed = None,
    changes: Annotated[
        Path | None,
        option(
            "--changes", help="The answer log that changes are appended to (OUT.answers.jsonl)."
        ),
    ] = None,
    accept_guaranteed: Annotated[
        bool, option("--accept-guaranteed", help="Also change guaranteed rows without an answer.")
    ] = False,
    test_too: Annotated[
        bool, option("--test-too", help="Allow changes in the test split.")
    ] = False,
    batch_size: BatchSize = None,
    device: Device = "cpu",
) -> None:
    """List labels that are probably mistakes, or what to label next.

    --find missing (default) or wrong judges a run, scores with labels, or an .npz of frozen
    features: every row by fits on other rows. Answer the questions marked `check` in the file (yes,
    no or unknown) and give it again as --answers: it then says how much of the list can be trusted,
    at most --wrong-at-most (0.2) of it wrong.

    --find next chooses photos, or with --questions labels single labels, that a person should
    label next, with --model. --order: value (likely to change labels), entropy, diverse
    or random (default for photos).

    --apply review.csv writes the table with its answers in it; changes are appended to a log.
    """
    place = Path(out)
    if tool == "label-studio":
        refuse_overwriting(place.with_suffix(".config.xml"))
    if apply is not None:
        refuse("--apply puts answers into a table", "find", *OF_SUSPECTS, *OF_NEXT)
        _repair(source, apply, place, changes, accept_guaranteed, test_too)
        return
    refuse("it belongs to --apply", *OF_REPAIR)
    if html is None:
        refuse("it belongs to the page: say --html review.html", "data", "blind")
    if find == "next":
        refuse("it is for --find missing or wrong", *OF_SUSPECTS)
        _next(
            source,
            place,
            order or ("value" if questions == "labels" else "random"),
            labels=questions == "labels",
            top=top or 200,
            seed=seed or 0,
            model=model_path(model),
            tool=tool,
            html=html,
            blind=blind,
            device=device,
            batch_size=batch_size or 64,
        )
        return
    refuse("it is for --find next", *OF_NEXT)
    from labelwise.scores.embeddings import holds_vectors

    if Path(source).is_dir() or is_uri(source) or holds_vectors(Path(source)):
        refuse(f"{source} is not a table of scores", "scores", "link", "labels")
    from labelwise.answers.suspects import (
        crossfit_log_odds,
        crossfit_true_log_odds,
        find_suspects,
        promise_suspects,
        write_review,
    )
    from labelwise.report.contact_sheet import write_suspects_page
    from labelwise.scores.unlabelled_pool import (
        answered_questions,
        reviewable,
        suspect_questions,
    )

    folds, seed = folds or 5, seed or 0
    level = 0.2 if wrong_at_most is None else wrong_at_most
    predictions = reviewable(source, split, seed=seed, scores=scores, link=link, labels=labels)
    truth, observed = predictions.labels, predictions.observed
    odds = crossfit_log_odds(
        predictions.logits, truth, predictions.link, observed, folds=folds, seed=seed
    )
    if context is None:
        context = 1 < len(predictions.names) <= MOST_IN_CONTEXT
    odds = crossfit_true_log_odds(
        odds, truth, observed, context=context, folds=folds, seed=seed
    ).log_odds
    known, most = predictions.certain(), top or 1000
    suspects = find_suspects(odds, predictions.majority, known, kind=find, most=most)
    asked = suspect_questions(suspects, predictions, checks, seed or 0)
    promise = None
    if answers is not None:
        asked = answered_questions(asked, Path(answers))
        told = {at: bool(q.confirmed) for at, q in enumerate(asked) if q.answer}
        if told:
            sure = {"level": level, "confidence": 0.95 if confidence is None else confidence}
            promise = promise_suspects([q.check for q in asked], told, **sure)
            asked = [replace(q, promised=at < promise.count) for at, q in enumerate(asked)]
    write_review(place, asked)
    if html is not None:
        picture = _pictures(source, data)
        write_suspects_page(html, asked, promise=promise, picture=picture, blind=blind)
    found, total = counted(len(suspects), "label"), counted(len(predictions), "photo")
    say(f"{found} may be {find}, on {len(set(suspects.rows.tolist())):,} of {total}")
    counts = Counter(sorted(suspects.columns.tolist())).most_common(LABELS_SHOWN)
    rows = [(predictions.names[column], count) for column, count in counts]
    show_table(("label", "suspects"), rows)
    if promise is not None:
        say(str(promise))
    else:
        every, first = (sum(one.check for one in part) for part in (asked, asked[:100]))
        say(
            f"no guarantee yet: answer the questions marked `check` ({first} among the first 100, "
            f"{every} in all; the first ones are enough to begin) with yes, no or unknown, and "
            f"run again with --answers to guarantee that at most {level:.0%} are false"
        )
    _say_written(place, html)
    if promise is None:
        same = ("find", "split", "scores", "link", "labels", "wrong_at_most", "confidence")
        again = f"{quoted(source)}{as_typed(*same, 'checks', 'top', 'folds', 'seed')}"
        answered = quoted("--answers", out, "-o", next_name(out))
        next_steps(f"data review {again} {answered}")
    else:
        next_steps(f"data review TABLE --apply {quoted(out)} -o mended.csv")


def _say_written(out: Path, html: Path | None) -> None:
    say(f"wrote {out}" + ("" if html is None else f" and {html}"))


def _pictures(source: str, data: str | None) -> "Picture | None":
    """Return what opens a photo of ``--data``, or of a run whose photos have not moved."""
    from labelwise.models.run_folder import RunFolder
    from labelwise.tables import load

    if data is None and not (Path(source) / "settings.yaml").is_file():
        return None
    with nullcontext() if data else suppress(LabelwiseError):
        images = load(data or RunFolder(Path(source)).data, check_files=False).images
        return _opener(images, {name: row for row, name in enumerate(images.ids)})
    return None


def _opener(images: "ImageSource", rows: dict[str, int]) -> "Picture":
    from labelwise.report.contact_sheet import SIDE

    def picture(photo: str) -> "Image.Image | None":
        try:
            return images.read(rows[photo], SIDE) if photo in rows else None
        except (OSError, LabelwiseError, TypeError):
            return None

    return picture


def _repair(
    source: str, review: Path, out: Path, changes: Path | None, accept: bool, test_too: bool
) -> None:
    from labelwise.answers.suspects import log_changes, read_review, repair
    from labelwise.tables import load
    from labelwise.tables.export import export

    table, questions = load(source), read_review(review)
    repaired, made = repair(table, questions, accept_promised=accept, test_too=test_too)
    log = changes or out.with_suffix(".answers.jsonl")
    log_changes(log, [])  # so that a file of another kind is named before anything is written
    export(repaired, out)
    log_changes(log, made)
    kinds = Counter(f"{change.before} to {change.after}" for change in made)
    listed = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
    answered = sum(bool(question.answer) for question in questions)
    changed = f"{counted(len(made), 'label')} changed{f' ({listed})' if listed else ''}"
    say(f"{counted(answered, 'answer')}, {changed}")
    say(f"wrote {out}, and the changes to {log}")
    next_steps(f"train {quoted(out)}")


def _next(
    source: str,
    out: Path,
    order: str,
    *,
    labels: bool,
    top: int,
    seed: int,
    model: Path | None,
    tool: str | None,
    html: Path | None,
    blind: bool,
    device: str,
    batch_size: int,
) -> None:
    """Write the photos, or the single labels, that a person should say next."""
    from labelwise.answers.asking import choose_labels, choose_photos, draw_photos
    from labelwise.answers.suspects import write_review
    from labelwise.contrib.annotation_tools import Guesses, export_for_tool
    from labelwise.report.contact_sheet import write_questions_page
    from labelwise.tables.export import export

    if order not in ORDERS:
        raise SettingsError(f"--order must be one of {', '.join(ORDERS)}, got {order!r}")
    by: Any = order
    if labels:
        refuse("--for writes complete photos; leave out --questions labels", "tool")
        if out.suffix.lower() != ".csv":
            raise SettingsError(f"{out}: a review file must end in .csv")
        if by == "random":
            raise SettingsError("--order random draws photos; leave out --questions labels")
    if by != "random":
        refuse("it belongs to --order random", "seed")
    pool = _pool(source, model, device, batch_size)
    caution(*pool.notes)
    if not pool.pool.open.any():
        raise DataError(f"{source}: every label of every photo is known; there is nothing to ask")
    if labels:
        rows, columns = choose_labels(pool.pool, top, by)
        asked = pool.about_labels(rows, columns, out.parent)
        write_review(out, asked)
    else:
        if by == "random":
            rows = draw_photos(pool.pool, top, seed=seed)
        else:
            rows = choose_photos(pool.pool, top, by)
        asked = pool.about_photos(rows, out.parent)
        if tool is None:
            export(pool.table.subset(rows), out)
        else:
            name = Path(source).name if model is None else model.name
            guesses = Guesses(pool.pool.probs[rows], pool.pool.sets[rows], name)
            tell(export_for_tool(pool.table.subset(rows), out, tool, guesses))
    if html is not None:
        row_of = dict(zip(pool.names(rows, out.parent), rows.tolist(), strict=True))
        picture = _opener(pool.table.images, row_of)
        write_questions_page(html, asked, by=by, picture=picture, blind=blind)
    if labels:
        photos = counted(len({*rows.tolist()}), "photo")
        say(f"{counted(len(asked), 'question')} about {photos} of {len(pool.pool):,}")
        counts = Counter(question.label for question in asked).most_common(LABELS_SHOWN)
        show_table(("label", "questions"), counts)
        say("answer yes, no or unknown in the column answer")
    else:
        say(f"{counted(len(rows), 'photo')} of {len(pool.pool):,} to label next")
    _say_written(out, html)
    if labels:
        next_steps(f"data review TABLE --apply {quoted(out)} -o mended.csv")
    elif tool is None:
        next_steps(f"data convert {quoted(out)} --for label-studio -o tasks.json")
    else:
        next_steps(f"train {quoted(out)}")
    if len(rows) < top:
        say(f"nothing else is unknown: {len(rows):,} instead of {top:,}")


def _pool(source: str, model: Path | None, device: str, batch_size: int) -> "PhotoPool":
    from labelwise.photos import Index
    from labelwise.photos.review import pool_of
    from labelwise.scores.unlabelled_pool import PhotoPool, read_pool

    if (Path(source) / "index.json").is_file():
        if model is not None:
            raise SettingsError(f"{source} is an index and has its own model; leave out --model")
        with Index(Path(source)) as index:
            return PhotoPool(*pool_of(index), named=True)
    if model is None:
        raise SettingsError(f"say with --model which model should judge the photos of {source}")
    return read_pool(source, model, device=device, batch_size=batch_size, watch=make_watch())
