"""``labelwise data keywords``: the keywords of a photo library as a label table."""

from pathlib import Path
from typing import Annotated

import typer

from labelwise.system.text import counted


def keywords_table(
    photos: Annotated[Path, typer.Argument(help="A folder of photos, with or without side-cars.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Where to write: .csv .tsv .jsonl .parquet")
    ],
    least: Annotated[
        int, typer.Option(min=1, help="Leave out keywords that fewer photos have.")
    ] = 1,
    taxonomy: Annotated[
        Path | None,
        typer.Option(help="Also write which keyword stands under which: .csv, child and parent."),
    ] = None,
) -> None:
    """Write the keywords that photos already have as labels.

    Reads XMP (inside photos and in side-cars), IPTC, and the hierarchies of Lightroom and digiKam;
    each level of a hierarchy is a label. A keyword that a photo lacks is unknown, not absent.
    Keywords that `labelwise tag` wrote are left out.
    """
    import csv

    from labelwise.cli.text import say
    from labelwise.data.export import export
    from labelwise.errors import SettingsError
    from labelwise.photos.keywords import read_keywords
    from labelwise.system.files import replacing
    from labelwise.system.text import as_cell

    if taxonomy is not None and taxonomy.suffix.lower() != ".csv":
        raise SettingsError(f"--taxonomy must end in .csv, got {taxonomy.name!r}")
    found = read_keywords(photos, least=least)
    table, parents = found.table, found.taxonomy.parents
    if taxonomy is not None and not parents:
        raise SettingsError("no keyword stands under another here; leave --taxonomy out")
    export(table, out)
    say(
        f"wrote {out}: {counted(len(table), 'photo')}, {counted(len(table.space), 'label')}; "
        f"{found.tagged:,} with a keyword, all else is unknown"
    )
    if taxonomy is not None:
        with (
            replacing(taxonomy) as temporary,
            temporary.open("w", encoding="utf-8", newline="") as stream,
        ):
            writer = csv.writer(stream)
            writer.writerow(["child", "parent"])
            writer.writerows(map(as_cell, pair) for pair in sorted(parents.items()))
        say(f"wrote {taxonomy}: {counted(len(parents), 'keyword')} under another")
    for note in table.notes:
        say(note)
