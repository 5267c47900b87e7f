"""``labelwise data crops``, ``answers``, ``iiif``, ``bursts``, ``clashes``: the field."""

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
    videos = [photo.file for photo in results.photos if photo.is_video]
    if videos:
        say(f"no crops of {counted(len(videos), 'video')}, first {videos[0]}")


def write_back(
    source: Annotated[
        Path, typer.Argument(help="Results of MegaDetector (.json), or a Camtrap DP package.")
    ],
    answers: Annotated[
        Path, typer.Argument(help="What `labelwise predict` answered: .csv, .jsonl or .parquet.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The new file, or folder.")],
    crops: Annotated[
        Path | None, typer.Option(help="crops.csv of `data crops`, for MegaDetector's results.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="The name of the model, as `classifiedBy` of Camtrap DP.")
    ] = "labelwise",
    threshold: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Of Camtrap DP: labels with this probability. Default: 0.5."
        ),
    ] = None,
) -> None:
    """Put a model's answers into files of other programs.

    Of MegaDetector's results: classes of the crops. Of Camtrap DP: machine observations of the
    photos; what people and other models observed stays, and the photos are not copied.
    """
    import json
    import os
    from datetime import UTC, datetime

    from labelwise.cli.text import say
    from labelwise.data.camera_results import read_camera_results, with_classes
    from labelwise.data.camtrap_answers import write_camtrap
    from labelwise.data.rows import read_csv_rows, read_json
    from labelwise.errors import DataError, SettingsError
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
    if source.is_dir() or source.name == "datapackage.json":
        if crops is not None:
            raise SettingsError("--crops belongs to MegaDetector's results; leave it out")
        folder = source if source.is_dir() else source.parent
        inside = {_inside(name, folder): row for name, row in given.items()}
        cut = 0.5 if threshold is None else threshold
        sets = {
            name: [label for label, p in row.items() if p >= cut] for name, row in inside.items()
        }
        moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        added = write_camtrap(folder, out, inside, sets, model=model, moment=moment)
        say(
            f"wrote {out}: {counted(added, 'machine observation')} of "
            f"{counted(len(inside), 'photo')}"
        )
        return
    if crops is None or threshold is not None:
        raise SettingsError(
            "for MegaDetector's results give the table of crops, --crops crops/crops.csv, and no "
            "--threshold: all probabilities are written"
        )
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


def _inside(name: str, folder: Path) -> str:
    """Return a photo's path within a package."""
    path = Path(name)
    try:
        return path.resolve().relative_to(folder.resolve()).as_posix()
    except ValueError:
        return name


def fetch_iiif(
    source: Annotated[
        str, typer.Argument(help="A IIIF manifest (file or address), or a list of services.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder of the pictures.")],
    size: Annotated[int, typer.Option(min=1, help="Most pixels of a picture's longer side.")] = 512,
) -> None:
    """Fetch pictures of IIIF services, with their addresses.

    Pictures that are there already are not fetched again. This opens the addresses that the
    source names, and where their servers redirect to.
    """
    from labelwise.cli.text import complain, say
    from labelwise.data.iiif import fetch_pictures

    found = fetch_pictures(source, out, size)
    say(f"{counted(found.there, 'picture')} in {out}, {found.fetched:,} fetched now")
    for sentence in found.failed[:20]:
        complain(f"left out: {sentence}")


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
    from labelwise.data.moments import bursts, read_times
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
    from labelwise.attributes import AttributeGroups
    from labelwise.cli.text import say, show_table
    from labelwise.data import load
    from labelwise.data.exclusive import obey_groups
    from labelwise.data.export import export

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
