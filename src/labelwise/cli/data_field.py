"""``labelwise data crops``, ``answers``, ``bursts``, ``clashes``: the field."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labelwise.system.text import counted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def crop_detections(
    source: Annotated[Path, typer.Argument(help="Results of MegaDetector or SpeciesNet, .json.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder of the crops.")],
    root: Annotated[
        Path | None, typer.Option(help="Where the photos are. Default: beside the results.")
    ] = None,
    least: Annotated[
        float, typer.Option(min=0, max=1, help="Least confidence of a detection.")
    ] = 0.2,
) -> None:
    """Cut each detection out of its photo.

    A table, crops.csv, says where each crop came from.
    `labelwise predict RUN crops/` classifies them; `labelwise data answers` puts the classes
    into the results.
    """
    from labelwise.cli.text import say
    from labelwise.data.camera_results import cut_crops, read_camera_results

    results = read_camera_results(source)
    count = cut_crops(results, source.parent if root is None else root, out, least)
    say(f"wrote {counted(count, 'crop')} and {out / 'crops.csv'}")
    if results.failed:
        say(f"{counted(len(results.failed), 'photo')} without a result, first {results.failed[0]}")
    empty = sum(box.is_empty for photo in results.photos for box in photo.boxes)
    if empty:
        say(f"no crops of {counted(empty, 'detection')} without an area")
    videos = [photo.file for photo in results.photos if photo.is_video]
    if videos:
        say(f"no crops of {counted(len(videos), 'video')}, first {videos[0]}")


def write_back(
    source: Annotated[Path, typer.Argument(help="Results of MegaDetector, .json.")],
    answers: Annotated[
        Path, typer.Argument(help="What `labelwise predict` answered: .csv, .jsonl or .parquet.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The new file.")],
    crops: Annotated[Path, typer.Option(help="crops.csv of `data crops`.")],
) -> None:
    """Write a model's classes of the crops into MegaDetector's results."""
    import json
    import os

    from labelwise.cli.text import say
    from labelwise.data.camera_results import read_camera_results, with_classes
    from labelwise.data.rows import read_csv_rows, read_json
    from labelwise.errors import DataError
    from labelwise.scores import read_unlabelled
    from labelwise.system.files import replacing

    scores = read_unlabelled(answers, None)
    link = scores.link
    if link is None:
        raise DataError(f"{answers}: scores that only rank are not probabilities")
    probs = link(scores.logits).tolist()
    given = {
        name: dict(zip(scores.names, row, strict=True))
        for name, row in zip(scores.ids, probs, strict=True)
    }
    results = read_camera_results(source)
    if results.program != "MegaDetector":
        raise DataError(f"{source} is of {results.program}; classes go into MegaDetector's results")
    rows = read_csv_rows(crops, ("path", "image", "detection"))
    named = {os.path.basename(name): row for name, row in given.items()}
    content, count = with_classes(read_json(source), rows, named)
    if not count:
        raise DataError(f"{answers} names no crop of {crops}")
    with replacing(out) as temporary:
        temporary.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
    say(f"wrote {out}: classes of {count:,} detections")


def burst_groups(
    source: Annotated[Path, typer.Argument(help="A table with a column of times: .csv or .tsv.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The table with a column `group`.")],
    time: Annotated[str, typer.Option(help="The column of times.")] = "time",
    camera: Annotated[
        str | None, typer.Option(help="The column of cameras; without one, all are of one camera.")
    ] = None,
    gap: Annotated[
        float, typer.Option(min=0, help="Seconds without a photo that end a burst.")
    ] = 60.0,
) -> None:
    """Find bursts of a camera, and write them as groups.

    In a burst no photo was taken more than --gap seconds after the one before. The burst of each
    row is written as its `group`, so that splits, intervals and promises keep it together.
    """
    import csv

    from labelwise.cli.text import say
    from labelwise.data.camera_results import bursts, read_times
    from labelwise.errors import DataError, SettingsError
    from labelwise.system.files import replacing
    from labelwise.system.text import as_cell
    from labelwise.types import nearest

    delimiters = {".csv": ",", ".tsv": "\t"}
    if source.suffix.lower() not in delimiters or out.suffix.lower() not in delimiters:
        raise SettingsError(f"bursts are found in .csv and .tsv, got {source.name} and {out.name}")
    with source.open(encoding="utf-8-sig", newline="") as file:
        table = csv.DictReader(file, delimiter=delimiters[source.suffix.lower()])
        rows, header = list(table), list(table.fieldnames or ())
    for name in (time, *([camera] if camera else [])):
        if name not in header:
            raise DataError(f"{source}: there is no column {name!r}{nearest(name, header)}")
    if "group" in header:
        raise DataError(f"{source}: it has a column 'group' already; leave it out, or keep it")
    if not rows:
        raise DataError(f"{source}: the table has no rows")
    moments = read_times([row[time] or "" for row in rows], str(source), time)
    cameras = [row[camera] if camera else "" for row in rows]
    found = bursts(moments, cameras, gap)
    with replacing(out) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*header, "group"], delimiter=delimiters[out.suffix.lower()])
        writer.writeheader()
        for row, burst, name in zip(rows, found.tolist(), cameras, strict=True):
            group = as_cell(f"{name}-{burst}") if name else f"burst-{burst}"
            writer.writerow(row | {"group": group})
    count = int(found.max()) + 1
    say(
        f"wrote {out}: {counted(len(rows), 'photo')} in {counted(count, 'burst')} of up to "
        f"{_longest(found):,}"
    )


def attribute_conflicts(
    source: Annotated[str, typer.Argument(help="A label table, or any labelled data.")],
    groups: Annotated[
        Path, typer.Argument(help="A CSV of group, kind (exactly-one, at-most-one, any), labels.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the table as the rules leave it.")
    ] = None,
) -> None:
    """Find photos whose labels break a rule.

    A thing has one main colour, a photo is taken by day or by night: groups of labels that exclude
    each other.
    With -o the labels that follow are written too: where one is present the others are absent,
    and labels of a group that a photo breaks become unknown.
    """
    from labelwise.cli.text import say, show_table
    from labelwise.data import load
    from labelwise.data.export import export
    from labelwise.data.hierarchy import obey_groups
    from labelwise.taxonomy import AttributeGroups

    table = load(source, check_files=False)
    settled = obey_groups(table, AttributeGroups.read(groups))
    if settled.conflicts:
        names = table.space.names
        show_table(
            ("photos that break a rule", "labels"),
            [
                (table.ids[row], ", ".join(names[k] for k in table.present.row(row)) or "none")
                for row in settled.conflicts[:20]
            ],
        )
    say(settled.sentence())
    if out is not None:
        export(settled.table, out)
        say(f"wrote {out}")


def _longest(found: "NDArray[np.int64]") -> int:
    import numpy as np

    return int(np.bincount(found).max())
