"""``labelwise apply``: what was fitted, on scores that have no labels."""

from pathlib import Path
from typing import Annotated

import typer

from labelwise.cli.options import ScoreKind
from labelwise.system.text import counted


def apply(
    fitted: Annotated[
        list[Path],
        typer.Argument(help="link.json of calibrate, thresholds.json of decide, or both."),
    ],
    source: Annotated[
        Path,
        typer.Argument(
            help="Scores: .csv, .tsv, .parquet, .npz or .jsonl; results of BirdNET or Perch."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="A .parquet, .csv or .jsonl file.")],
    scores: Annotated[
        ScoreKind | None,
        typer.Option(help="What the scores are; as when it was fitted, if left out."),
    ] = None,
) -> None:
    """Calibrate and decide scores with what was fitted before.

    No labels are needed.

    The columns of the scores are matched by the label names that stand in the fitted files.
    """
    from labelwise.cli.text import say
    from labelwise.errors import SettingsError
    from labelwise.scores import apply as applied
    from labelwise.scores import read_fitted, read_unlabelled, save_applied
    from labelwise.scores.applied import check_output, save_detections
    from labelwise.scores.detections import is_detections, read_detections
    from labelwise.scores.tables import unscored_note

    check_output(out)
    files = [read_fitted(path) for path in fitted]
    if is_detections(source):
        if scores is not None:
            raise SettingsError(f"--scores does not apply: {source} says itself what it holds")
        found = read_detections(source)
        total, chosen = save_detections(out, found, files)
        say(f"{counted(total, 'detection')}, {chosen:,} chosen: {out}")
        for note in found.notes:
            say(note)
        return
    table = read_unlabelled(source, scores or files[0].kind)
    result = applied(files, table)
    save_applied(out, result)
    if table.failed:
        say(unscored_note(table.failed, str(source)))
    sets = ""
    if result.sets is not None:
        sets = f", {float(result.sets.sum(1).double().mean()):.2f} labels per row"
    size = f"{counted(len(result.ids), 'row')}, {counted(len(result.names), 'label')}"
    say(f"{size}{sets}: {out}")
