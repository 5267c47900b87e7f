"""``labelwise data next``: which photos, or which single labels of photos, to label next."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from labelwise.cli.options import A_MODEL
from labelwise.system.text import counted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from labelwise.answers import Reviewed
    from labelwise.scores.pools import PhotoPool


LABELS_SHOWN = 10
LABELS_OF_A_PHOTO = 5


def next_questions(
    pool: Annotated[
        str,
        typer.Argument(
            help="A folder of photos, any data labelwise reads, an index, or predict's output."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="Photos: a table, .csv .tsv .jsonl .parquet. Labels: a review .csv."
        ),
    ],
    model: Annotated[
        Path | None,
        typer.Option(
            "--model", "-m", help="A run or model, or an exported model; an index has its own."
        ),
        A_MODEL,
    ] = None,
    budget: Annotated[int, typer.Option(min=1, help="How many photos, or questions.")] = 200,
    by: Annotated[
        Literal["value", "entropy", "diverse", "expected-f", "random"] | None,
        typer.Option(
            help="What makes an answer worth having.",
            show_default="random of photos, value of labels",
        ),
    ] = None,
    questions: Annotated[
        Literal["photos", "labels"],
        typer.Option(help="Whole photos, or single labels: does this photo carry that label?"),
    ] = "photos",
    tool: Annotated[
        str | None,
        typer.Option(
            "--for", help="Write photos as this tool reads them, with the model's predictions."
        ),
    ] = None,
    page: Annotated[Path | None, typer.Option(help="Also write this page, .html.")] = None,
    blind: Annotated[
        bool, typer.Option("--blind", help="Leave the model's guesses out of the page.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of the draw at random (default 0).")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images at once.")] = 64,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
) -> None:
    """Choose what a person should label next.

    value: answers likely to change a photo's labels. entropy: answers hardest to foretell.
    expected-f: answers that raise the expected F score of a photo's labels. diverse: photos unlike
    all others. Labels take turns, and photos that look like chosen or labelled ones come last.
    random draws whole photos, copies last: no choice of whole photos was found to teach more.

    Photos come as a table whose labels are unknown, or with --for label-studio, cvat or fiftyone as
    a file of that tool; labels as a review file, whose answers `data repair` puts into a table.
    """
    from labelwise.answers import choose_labels, choose_photos, draw_photos, write_review
    from labelwise.cli.text import complain, say
    from labelwise.data.annotation_exports import Guesses, export_for_tool
    from labelwise.data.export import export
    from labelwise.errors import DataError, SettingsError

    if page is None and blind:
        raise SettingsError("--blind belongs to the page; say --page next.html")
    if questions == "labels" and out.suffix.lower() != ".csv":
        raise SettingsError(f"{out}: a review file must end in .csv")
    if questions == "labels" and tool is not None:
        raise SettingsError("--for writes whole photos for a tool; leave out --questions labels")
    if by is None:
        by = "random" if questions == "photos" else "value"
    if questions == "labels" and by == "random":
        raise SettingsError("--by random draws whole photos; leave out --questions labels")
    if seed is not None and by != "random":
        raise SettingsError(f"--seed belongs to --by random, got --by {by}")
    found = _pool(pool, model, device, batch_size)
    for note in found.notes:
        complain(note)
    if not found.pool.open.any():
        raise DataError(f"{pool}: every label of every photo is known; there is nothing to ask")
    if questions == "photos":
        if by == "random":
            rows = draw_photos(found.pool, budget, seed=seed or 0)
        else:
            rows = choose_photos(found.pool, budget, by)
        asked = _about_photos(found, rows, out.parent)
        if tool is None:
            export(found.table.subset(rows), out)
        else:
            name = Path(pool if model is None else model).name
            guesses = Guesses(found.pool.probs[rows], found.pool.sets[rows], name)
            note = export_for_tool(found.table.subset(rows), out, tool, guesses)
            if note:
                say(note)
    else:
        rows, columns = choose_labels(found.pool, budget, "value" if by == "random" else by)
        asked = _about_labels(found, rows, columns, out.parent)
        write_review(out, asked)
    if page is not None:
        _write_page(page, found, rows, asked, blind, by, out.parent)
    _summary(found, rows, asked, questions, out, page, tool)
    if len(rows) < budget:
        say(f"nothing else is unknown: {len(rows):,} instead of {budget:,}")


def _pool(source: str, model: Path | None, device: str, batch_size: int) -> "PhotoPool":
    from labelwise.errors import SettingsError
    from labelwise.scores.pools import PhotoPool, read_pool
    from labelwise.system.progress import make_watch

    if (Path(source) / "index.json").is_file():
        from labelwise.photos import Index
        from labelwise.photos.review import pool_of

        if model is not None:
            raise SettingsError(f"{source} is an index and has its own model; leave out --model")
        with Index(Path(source)) as index:
            return PhotoPool(*pool_of(index), named=True)
    if model is None:
        raise SettingsError(f"say with --model which model should judge the photos of {source}")
    return read_pool(source, model, device=device, batch_size=batch_size, watch=make_watch())


def _names(found: "PhotoPool", rows: "NDArray[np.intp]", folder: Path) -> list[str]:
    """Return what photos are called in the file: as in their table, or where they are from it."""
    import os

    from labelwise.pictures import FileImages

    images = found.table.images
    if found.named or not isinstance(images, FileImages):
        return [found.table.ids[row] for row in rows.tolist()]
    return [os.path.relpath(images.path(row), folder) for row in rows.tolist()]


def _about_labels(
    found: "PhotoPool", rows: "NDArray[np.intp]", columns: "NDArray[np.intp]", folder: Path
) -> "list[Reviewed]":
    from labelwise.answers import Reviewed

    names = _names(found, rows, folder)
    return [
        Reviewed(name, found.table.space.names[column], "unknown", float(p))
        for name, column, p in zip(
            names, columns.tolist(), found.pool.probs[rows, columns], strict=True
        )
    ]


def _about_photos(found: "PhotoPool", rows: "NDArray[np.intp]", folder: Path) -> "list[Reviewed]":
    """Return the most probable of the open labels of each photo."""
    import numpy as np

    from labelwise.answers import Reviewed

    asked = []
    for name, row in zip(_names(found, rows, folder), rows.tolist(), strict=True):
        probs = np.where(found.pool.open[row], found.pool.probs[row], -1.0)
        for column in np.argsort(-probs, kind="stable")[:LABELS_OF_A_PHOTO].tolist():
            if probs[column] >= 0:
                label = found.table.space.names[column]
                asked.append(Reviewed(name, label, "unknown", float(probs[column])))
    return asked


def _write_page(
    path: Path,
    found: "PhotoPool",
    rows: "NDArray[np.intp]",
    asked: "list[Reviewed]",
    blind: bool,
    by: str,
    folder: Path,
) -> None:
    from PIL import Image

    from labelwise.errors import LabelwiseError
    from labelwise.report.contact_sheet import SIDE
    from labelwise.report.suspects import write_questions_page

    place = dict(zip(_names(found, rows, folder), rows.tolist(), strict=True))

    def picture(photo: str) -> Image.Image | None:
        try:
            return found.table.images.read(place[photo], SIDE)
        except (OSError, LabelwiseError, TypeError):
            return None

    write_questions_page(path, asked, by=by, picture=picture, blind=blind)


def _summary(
    found: "PhotoPool",
    rows: "NDArray[np.intp]",
    asked: "list[Reviewed]",
    questions: str,
    out: Path,
    page: Path | None,
    tool: str | None,
) -> None:
    from collections import Counter

    from labelwise.cli.text import say, show_table

    total = f"of {len(found.pool):,}"
    if questions == "labels":
        photos = counted(len(set(rows.tolist())), "photo")
        say(f"{counted(len(asked), 'question')} about {photos} {total}")
        counts = Counter(one.label for one in asked).most_common(LABELS_SHOWN)
        show_table(("label", "questions"), [(label, f"{count:,}") for label, count in counts])
    else:
        say(f"{counted(len(rows), 'photo')} {total} to label next")
    say(f"wrote {out}" + ("" if page is None else f" and {page}"))
    if questions == "labels":
        say(
            "answer yes, no or unknown in the column answer, then: labelwise data repair TABLE FILE"
        )
    elif tool is None:
        say(f"label them in a tool: labelwise data export {out} --for label-studio -o tasks.json")
