"""What the verbs of ``labelwise data`` share: options, and how a table is read by them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from labelwise.data import LabelTable


Source = Annotated[
    str,
    typer.Argument(help="A file, a folder, scenes, FORMAT:path, or 'train=a.csv;test=b.csv'."),
]

Out = Annotated[
    Path,
    typer.Option("--out", "-o", help="Where to write: .csv .tsv .jsonl .parquet; features: .npz"),
]

Options = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="An option of the format, as columns.labels=tags."
    ),
]

Skip = Annotated[bool, typer.Option("--skip-missing", help="Leave missing images out.")]

Duplicates = Annotated[
    Literal["stop", "drop", "keep"],
    typer.Option(help="Rows that are there twice, labels and all: stop, drop or keep."),
]

Extension = Annotated[
    str | None, typer.Option(help="Added to image names that do not end in it, such as .jpg.")
]

TaxonomyFile = Annotated[
    Path | None,
    typer.Option("--taxonomy", help="Which label is a kind of which: child,parent or a|b|c."),
]

Seed = Annotated[int, typer.Option(help="The seed of what is drawn by chance.")]


def load_table(
    source: str,
    options: list[str] | None,
    skip_missing: bool,
    duplicates: Literal["stop", "drop", "keep"],
    extension: str | None,
) -> "LabelTable":
    """Return the table of a source, as the options say."""
    from labelwise.data import load

    given = parse_options(options)
    if extension is not None:
        given["extension"] = extension
    return load(source, skip_missing=skip_missing, duplicates=duplicates, **given)


def parse_options(options: list[str] | None) -> dict[str, Any]:
    """Return the options of a format given as ``--set columns.labels=tags``."""
    from labelwise.system.yaml_values import nested, parse_assignments

    return nested(parse_assignments(options or ()))
