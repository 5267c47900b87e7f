"""``labelwise reproduce survey``: every method on three data sets, by what is known of labels."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labelwise.cli.text import resumable, say
from labelwise.errors import LabelwiseError, SettingsError

if TYPE_CHECKING:
    from labelwise.papers.sources import Frozen


def survey(
    root: Path,
    data: Sequence[str],
    methods: tuple[str, ...],
    seeds: int,
    frozen: "Frozen | None",
    quick: bool,
    overrides: Mapping[str, Any],
    jobs: int | None,
    folder: Path,
) -> None:
    """Run the survey in a folder, and say where its tables are."""
    from labelwise.papers.survey import SurveyPlan, run_survey
    from labelwise.system.progress import make_watch

    sources = {}
    for text in data:
        name, equals, place = text.partition("=")
        if not equals or not place or name in sources:
            raise SettingsError(
                f"--data of the survey must be SET=SOURCE, each set once, got {text!r}"
            )
        sources[name] = place
    if frozen is not None:
        size, squash = overrides.get("image_size"), bool(overrides.get("squash", False))
        frozen = replace(frozen, image_size=size, squash=squash)
    plan = SurveyPlan(root, sources, methods, tuple(range(seeds)), frozen, quick, overrides)
    with resumable(folder):
        done = run_survey(plan, folder, jobs=jobs or 1, say=say, watch=make_watch())
    for cell in done.cells.values():
        best = [name for name, one in cell.methods.items() if _leads(one)]
        level = sum(one["mAP@class"].level for one in cell.methods.values() if one)
        say(f"{cell.name}: {best[0]} has the best mAP@class, {level} others are level with it")
    say(f"written: {folder / 'survey.md'}, {folder / 'survey.json'}")


def _leads(figures: Mapping[str, Any]) -> bool:
    return "mAP@class" in figures and figures["mAP@class"].rank == 1


def show_survey_line(root: Path) -> list[str]:
    """Return the line of the survey in the list of tables."""
    from labelwise.papers.survey import KNOWN, SETS, SurveyPlan

    try:
        words = ", ".join(SurveyPlan(root).places())
    except LabelwiseError as error:
        words = str(error)
    cells = str(len(SETS) * len(KNOWN))
    return [
        "survey",
        "Every method, with all labels known, a tenth, or one per image",
        cells,
        words,
    ]
