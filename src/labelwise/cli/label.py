"""``labelwise label`` and ``labelwise review``: what people say of photos, and what to ask them."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from labelwise.cli.index import DEFAULT_INDEX, IndexFolder


def label(
    folder: IndexFolder,
    photo: Annotated[str | None, typer.Argument(help="A photo of the index.")] = None,
    labels: Annotated[
        list[str] | None,
        typer.Argument(help="dog: it is there. -beach: it is not. '?cat': cannot be told."),
    ] = None,
    undo: Annotated[
        bool, typer.Option("--undo", help="Withdraw the corrections of these labels.")
    ] = False,
    who: Annotated[str | None, typer.Option(help="Who says so. Default: the user.")] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            help="Write all corrections as a label table to train on: .csv .tsv .jsonl .parquet"
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="With --export: name the group of each photo: folder, or a column of the --table."
        ),
    ] = None,
    table: Annotated[
        Path | None, typer.Option(help="A table of path and the column to group by, as site.")
    ] = None,
) -> None:
    """Record which labels a photo carries and which it does not.

    The photo's own probabilities become certain, the label's link is fitted anew, and nothing
    that was said before is lost. Write -- before the photo if a label starts with a dash.
    """
    from labelwise.cli.text import say
    from labelwise.errors import SettingsError
    from labelwise.photos import Index
    from labelwise.photos.store import Fact

    if export is not None:
        if photo is not None or undo or who is not None:
            raise SettingsError("--export writes all corrections; leave out photo, --undo, --who")
        _export(folder, export, by, table)
        return
    if by is not None or table is not None:
        raise SettingsError("--by and --table group what --export writes; name its file")
    if photo is None or not labels:
        raise SettingsError("name a photo of the index and its labels, or --export FILE")
    states: dict[str, Fact] = {}
    for text in labels:
        name = text.lstrip("-?!")
        sign = text[: len(text) - len(name)]
        states[name] = "absent" if sign in ("-", "!") else "unknown" if sign == "?" else "present"
        if undo:
            states[name] = "withdrawn"
    with Index(folder) as index:
        row = index.row_of(photo)
        index.correct(row, states, who=who)
        for name, state in states.items():
            chance = index.probability(row, name)
            say(f"{name}: {'withdrawn' if undo else state}; probability now {chance:.2f}")


def _export(folder: Path, out: Path, by: str | None, groups: Path | None) -> None:
    from labelwise.cli.text import say
    from labelwise.data.export import export
    from labelwise.photos import Index, corrected_labels
    from labelwise.photos.photo_groups import PhotoGroups
    from labelwise.system.text import counted

    with Index(folder) as index:
        table, tested = corrected_labels(index, PhotoGroups(by or "", groups))
    export(table, out)
    known = len(table) * len(table.space) - int(table.unknown.counts().sum())
    labels, photos = counted(known, "label"), counted(len(table), "photo")
    say(f"wrote {out}: {labels} of {photos}, all of the split train")
    if tested:
        say(f"left out, because the model is tested on them: {tested:,}")


def review(
    folder: IndexFolder = DEFAULT_INDEX,
    by: Annotated[
        Literal["uncertain", "missing", "wrong", "value"],
        typer.Option(help="What makes a question worth asking."),
    ] = "value",
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many.")] = 20,
    labels: Annotated[
        list[str] | None, typer.Option("--label", help="Only this label; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """List the questions most worth a person's minute.

    Each asks of one photo whether it carries one label.

    uncertain: hardest to guess. missing: likely, but not given. wrong: given, but unlikely.
    value: most likely to change a photo's labels.
    """
    import json

    from labelwise.cli.text import say, show_table
    from labelwise.photos import Index, questions

    with Index(folder) as index:
        asked = questions(index, by, count, labels)
        paths = index.store.paths_of(question.row for question in asked)
    if as_json:
        for one in asked:
            facts = {"label": one.label, "probability": one.probability, "given": one.given}
            say(json.dumps({"path": paths[one.row][0], **facts, "worth": one.worth}))
        return
    rows = [
        (paths[one.row][0], one.label, f"{one.probability:.2f}", "yes" if one.given else "no")
        for one in asked
    ]
    show_table(("photo", "label", "probability", "given"), rows)
    say(f"answer with: labelwise label {folder} PHOTO LABEL, -LABEL or '?LABEL'")
