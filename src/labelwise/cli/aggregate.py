"""``labelwise aggregate``: from scores of photos to scores of bursts, sites or patients."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from labelwise.cli.options import ScoresOption
from labelwise.system.text import counted


def aggregate(
    source: Annotated[Path, typer.Argument(help="Scores of photos: .csv, .tsv, .parquet, .npz.")],
    by: Annotated[
        list[str],
        typer.Option(
            help="What a unit is: a column such as burst, site, patient or group; day, month and "
            "year come from a column time. Several columns: give it again."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The table of units: .csv, .parquet.")],
    how: Annotated[
        Literal["any", "most", "evidence"],
        typer.Option(
            help="any (in some photo), most (in more than half), evidence (photos add up)."
        ),
    ] = "any",
    scores: ScoresOption = None,
) -> None:
    """Make one score and one label per burst, site or patient.

    Photos of a unit are taken as independent, which they are not: calibrate the units as any other
    scores before their probabilities are believed.
    """
    from labelwise.cli.text import say
    from labelwise.scores.aggregating import aggregate_table

    units = aggregate_table(source, scores, by, how)
    units.save(out)
    labelled = "" if units.truth is None else ", with their labels"
    say(
        f"wrote {out}: {counted(int(units.photos.sum()), 'photo')} in "
        f"{counted(len(units.names), 'unit')} by "
        f"{', '.join(by)}{labelled}"
    )
    if units.truth is None:
        say(f"their probabilities: labelwise apply link.json {out} --scores logits, once fitted")
    else:
        say(f"what they mean: labelwise calibrate {out} --scores logits -o FOLDER")
