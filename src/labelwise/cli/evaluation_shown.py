"""An evaluation as the command line shows it, and as the folder that holds it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from labelwise.system.text import counted

if TYPE_CHECKING:
    from labelwise.evaluation import Evaluation, SubgroupFigure


WORST = 5


def write_folder(evaluation: "Evaluation", folder: Path, *, title: str, **extras: Any) -> None:
    """Write ``evaluation.json``, ``report.html`` and the charts."""
    from labelwise.models.run_folder import RunFolder
    from labelwise.report import write_report
    from labelwise.report.charts import save_charts

    files = RunFolder(folder)
    evaluation.save(files.evaluation_path)
    write_report(evaluation, files.report, title=title, **extras)
    save_charts(files.report.read_text("utf-8"), folder / "charts")


def show(evaluation: "Evaluation", *, json: bool, out: Path | None) -> None:
    """Print the evaluation for a machine, or its headline and worst labels for a person."""
    from labelwise.cli.outcome import summarise
    from labelwise.cli.text import say, show_table

    if json:
        say(evaluation.to_json())
        return
    summarise(evaluation)
    worst = sorted((row for row in evaluation.rows if row.ap is not None), key=lambda r: r.ap or 0)
    say()
    show_table(
        ("worst labels", "present", "AP"),
        [(row.name, f"{row.present:,}", f"{row.ap:.4f}") for row in worst[:WORST]],
    )
    if evaluation.levels:
        say()
        show_table(
            ("level", "labels", "present", "mAP", "log loss", "ECE", "F1"),
            [
                (
                    str(one.level),
                    f"{one.labels:,}",
                    f"{one.present:,}",
                    *(
                        "undefined" if value is None else f"{value:.4f}"
                        for value in (one.mean_ap, one.log_loss, one.ece, one.mean_f1)
                    ),
                )
                for one in evaluation.levels
            ],
        )
    if evaluation.subgroups:
        say()
        _show_subgroups(evaluation)
    undefined = evaluation.ranking.undefined_labels
    if undefined:
        some = ", ".join(undefined[:WORST]) + (", ..." if len(undefined) > WORST else "")
        say(f"without a known positive, left out: {counted(len(undefined), 'label')} ({some})")
    say()
    say(f"ranking: {evaluation.ranking.how}")
    if evaluation.final is not None:
        say(
            f"calibration: {len(evaluation.final.pooled.counts)} equal-width bins, "
            f"{evaluation.final.pooled.entries}"
        )
    if evaluation.sets is not None:
        say(f"sets: {evaluation.sets.rule}")
    if out is not None:
        say(f"report: {out / 'report.html'}")


def _show_subgroups(evaluation: "Evaluation") -> None:
    """Print the figures of each subgroup, with a mark where it can be told from the others."""
    from labelwise.cli.text import say, show_table

    rows = evaluation.subgroups
    names = [figure.name for figure in rows[0].figures]
    for by in dict.fromkeys(row.by for row in rows):
        show_table(
            (by, "photos", *names),
            [
                (row.name, f"{row.photos:,}", *(_cell(figure) for figure in row.figures))
                for row in rows
                if row.by == by
            ],
        )
    say(
        "*: differs from the other photos (score test by group, corrected over all subgroups and "
        "figures by Holm's method, 5 %)"
    )


def _cell(figure: "SubgroupFigure") -> str:
    if figure.value is None:
        return "–"
    return f"{figure.value:.4f}{' *' if figure.differs else ''}"
