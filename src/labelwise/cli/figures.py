"""How an evaluation is shown in the terminal."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from labelwise.base.text import counted, listed
from labelwise.cli.text import number, say, show_table, tell

if TYPE_CHECKING:
    from labelwise.decide import LabelFigures
    from labelwise.evaluation import Evaluation, LabelRow, SubgroupFigure

WORST = 5
LEVEL = re.compile(r"(precision|recall|sensitivity|specificity)-([\d.]+)%?(-shared|-per-label)?$")
FEW_TEST_PHOTOS = 50  # below which searches and tags cannot be guaranteed


def summarise(evaluation: "Evaluation") -> None:
    """Print the verdict, then the headline figures, each with its interval."""
    from labelwise.evaluation.verdict import verdict

    say(f"\n{verdict(evaluation)}")
    rows = []
    for figure in evaluation.headline:
        value = "infinite" if evaluation.is_infinite(figure) else number(figure.value)
        known = figure.low is not None and figure.high is not None
        between = f"{figure.low:.4f} to {figure.high:.4f}" if known else ""
        rows.append((figure.name, value, between or ("none" if figure.why_no_interval else "")))
    say()
    show_table(("on " + (evaluation.data.split or "all rows"), "value", "95 % interval"), rows)
    show_exclusive(evaluation)
    for figure in evaluation.headline:
        if evaluation.final is not None and evaluation.is_infinite(figure):
            count = evaluation.final.infinite
            sure = "1 entry was" if count == 1 else f"{count:,} entries were"
            say(f"{figure.name} is infinite: {sure} given probability 0 or 1 and wrong")
    whys = {figure.why_no_interval: figure.name for figure in evaluation.headline}
    tell(*(f"{name}: {why}" for why, name in whys.items() if why), *evaluation.notes)


def show_exclusive(evaluation: "Evaluation") -> None:
    """Print how often sets hold the right one of labels that exclude each other."""
    for group in evaluation.exclusive:
        if group.accuracy is not None:
            between = "" if group.low is None else f" ({group.low:.3f} to {group.high:.3f})"
            right = f"right in {group.right:,} of {group.known:,} photos"
            share = f"{group.accuracy:.3f}{between}; {group.broken:,} sets break the rule"
            say(f"{', '.join(group.labels)}: {right}, {share}")


def show(evaluation: "Evaluation", *, json: bool, out: Path | None) -> None:
    """Print the evaluation for a machine, or its verdict, headline and worst labels."""
    if json:
        say(evaluation.to_json())
        return
    summarise(evaluation)
    worst = sorted((row for row in evaluation.rows if row.ap is not None), key=lambda r: r.ap or 0)
    say()
    lines = [(row.name, row.present, f"{row.ap:.4f}") for row in worst[:WORST]]
    show_table(("worst labels", "present", "AP"), lines)
    if evaluation.levels:
        say()
        cells: list[tuple[object, ...]] = []
        for level in evaluation.levels:
            figures = map(number, (level.mean_ap, level.log_loss, level.ece, level.mean_f1))
            cells.append((level.level, level.labels, level.present, *figures))
        show_table(("level", "labels", "present", "mAP", "log loss", "ECE", "F1"), cells)
    if evaluation.subgroups:
        say()
        _show_subgroups(evaluation)
    undefined = evaluation.ranking.undefined_labels
    if undefined:
        some = f"{counted(len(undefined), 'label')} ({listed(undefined, WORST)})"
        say(f"without a known positive, left out: {some}")
    say(f"\nranking: {evaluation.ranking.how}")
    if evaluation.final is not None:
        pooled = evaluation.final.pooled
        say(f"calibration: {len(pooled.counts)} equal-width bins, {pooled.entries}")
    if evaluation.sets is not None:
        say(f"sets: {evaluation.sets.rule}")
    if out is not None:
        say(f"report: {out / 'report.html'}")


def _show_subgroups(evaluation: "Evaluation") -> None:
    rows = evaluation.subgroups
    names = [figure.name for figure in rows[0].figures]
    for by in dict.fromkeys(row.by for row in rows):
        cells = [(row.name, row.photos, *map(_cell, row.figures)) for row in rows if row.by == by]
        show_table((by, "photos", *names), cells)
    how = "score test by group, corrected over all subgroups and figures by Holm's method, 5 %"
    say(f"*: differs from the other photos ({how})")


def _cell(figure: "SubgroupFigure") -> str:
    return "–" if figure.value is None else f"{figure.value:.4f}{' *' if figure.differs else ''}"


def say_shortfall(rule: str, where: str, figures: "Iterable[LabelFigures | LabelRow]") -> str:
    """Say of which labels a tuned level was missed; return the guarantee to ask for instead."""
    match = LEVEL.match(rule)
    if match is None:
        return ""
    what, level = match[1], float(match[2]) / (100 if float(match[2]) > 1 else 1)
    own, missed, known = "recall" if what == "sensitivity" else what, [], 0
    for row in figures:
        value = getattr(row, own, None)
        value = value[0] if isinstance(value, tuple) else value
        known += value is not None
        if value is not None and value < level:
            missed.append(f"{row.name} {value:.1%}")
    if not missed:
        return ""
    below = f"{what.capitalize()} is below {level:.0%} {where} for {len(missed):,} of"
    labels = f"{counted(known, 'label')}: {listed(missed, WORST)}"
    say(f"{below} {labels}. A tuned threshold is only an estimate; a guarantee is tested.")
    return "" if what == "specificity" else f"{own}-per-label={level:g}"


def few_test_photos(count: int) -> str:
    """Return what to do about too few test photos for guarantees, "" where there are enough."""
    if not 0 < count < FEW_TEST_PHOTOS:
        return ""
    draw = "labelwise data split TABLE --shares train=.6,val=.2,test=.2 -o split.csv"
    few = f"Only {counted(count, 'test photo')}: guarantees need at least {FEW_TEST_PHOTOS}."
    return f"{few} Draw more with `{draw}`."
