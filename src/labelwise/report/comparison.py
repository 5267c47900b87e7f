"""The page of a comparison: its parts in the order in which they are read, and its file."""

from math import isinf
from pathlib import Path

from labelwise.markup import (
    INFINITE,
    UNDEFINED,
    Cell,
    Markup,
    details,
    document,
    join,
    paragraph,
    section,
    table,
    tag,
)
from labelwise.papers.comparison import JUDGED, Comparison, show_figure
from labelwise.papers.measures import MEASURES
from labelwise.papers.statistics import seed_mean
from labelwise.report.comparison_charts import (
    GLOSS,
    best_of,
    figure_text,
    measures,
    price,
    runs_shared,
    search,
    standings,
)
from labelwise.system.files import replacing

FEW = 3  # methods that a tile names
UNITS = "per cent but log loss, Brier, seconds and MB"
RULES = {
    "Data": "All methods see the same training, validation and test images; all figures here are "
    "of the test images. Where the data has no validation split, a tenth of the training "
    "images is taken for it, once.",
    "Seeds": "Runs of one seed share data, order and start, so methods are compared seed by seed.",
    "SeedMean": "Mean ± t(n − 1, 97.5 %) s / √n over the n seeds. It holds what training chance "
    "does, not which images happened to be in the test split. It needs three seeds: with two, t "
    "would make it ±12.7 s.",
    "Told apart": "The paired differences of every method to the best one. Their variance is that "
    "of the seeds plus, for mAP, ACE, log loss and Brier, that of the paired bootstrap over test "
    "images (by how much each image moves the difference). The best is found on the images that "
    "judge it, so all pairs of methods are held together against 5 % by Shaffer's rule: the chance "
    "of any false claim about a measure is at most 5 %. Not told apart does not mean equal.",
    "Before and after": "Before: the method's own link from logits to probabilities; a method "
    "that only ranks has no such figures. After: the same shrunk per-label Platt fit on "
    "validation for every method. Zero-label figures and retrieval read the own link, or the "
    "fitted one where there is none.",
    "Calibration errors": "Equal-width bins over all known entries as one pool; per bin the gap "
    "between the mean probability and the share truly present. ECE weighs gaps by entries, ACE "
    "is the plain mean over non-empty bins, MCE the largest.",
    "Log loss and Brier": "Means over entries, not clipped: a certain and wrong answer has "
    "infinite log loss. IN are images with a label present or unknown, OUT those reviewed and "
    "without any.",
    "Macro F1": "One threshold for all labels, with the best F1 on validation, on the fitted "
    "probabilities.",
    "Retrieval": "A query wants some labels and not others; images are ranked by the joint "
    "probability, labels taken as independent given the image. All queries of a length, or a "
    "seeded sample of them, the same for every method.",
    "Undefined": "What has no value on one seed has no mean, and shows as a dash; what is infinite "
    "on one seed has an infinite mean, and shows as ∞.",
}


def write_comparison(
    comparison: Comparison, path: str | Path, *, data: str = "", tries: int | None = None
) -> Path:
    """Write the page of a comparison to ``path`` and return it.

    ``data`` names what was compared on, ``tries`` is how many settings of each method were tried.
    """
    path = Path(path)
    with replacing(path) as temporary:
        temporary.write_text(comparison_page(comparison, data=data, tries=tries), encoding="utf-8")
    return path


def comparison_page(comparison: Comparison, *, data: str = "", tries: int | None = None) -> str:
    """Return the whole page as text; ``data`` and ``tries`` are said where they are known."""
    return document(
        f"{data}: methods compared" if data else "Methods compared",
        _facts(comparison, tries),
        [
            ("verdicts", "What came out", verdicts(comparison)),
            ("measures", "Measures", measures(comparison)),
            ("price", "Price of a low MMC", price(comparison)),
            ("search", "Search", search(comparison)),
            ("table", "All numbers", all_numbers(comparison)),
            ("settings", "Settings", chosen_settings(comparison)),
            ("how", "How", how(comparison, tries)),
        ],
    )


def _facts(comparison: Comparison, tries: int | None) -> str:
    methods = list(comparison.figures)
    seeds = sorted({seed for by_seed in comparison.figures.values() for seed in by_seed})
    parts = [
        f"{len(methods)} {'method' if len(methods) == 1 else 'methods'}: {', '.join(methods)}.",
        f"{len(seeds)} {'seed' if len(seeds) == 1 else 'seeds'}: {', '.join(map(str, seeds))}.",
        tuned(tries),
    ]
    return " ".join(part for part in parts if part)


def verdicts(comparison: Comparison) -> Markup:
    """Return the section: tiles, then the comparison's own sentences."""
    tiles = [_verdict_tile(comparison, name) for name in JUDGED if best_of(comparison, name)]
    return section(
        "verdicts",
        "What came out",
        tag("ul", *tiles, class_="tiles three") if tiles else None,
        tag(
            "ul",
            *(tag("li", str(text)) for text in (*comparison.choices, *comparison.verdicts())),
            class_="verdicts",
        ),
        paragraph(tag("a", "How everything was computed", href="#how"), ".", class_="small muted"),
    )


def _verdict_tile(comparison: Comparison, name: str) -> Markup:
    best = best_of(comparison, name) or ""
    way = "highest" if MEASURES[name].higher_is_better else "lowest"
    unit = " %" if MEASURES[name].percent else ""
    return tag(
        "li",
        tag("span", f"{name}, {way}", class_="what"),
        tag("span", best, class_="number word"),
        tag("span", figure_text(comparison, name, best) + unit, class_="range"),
        tag("span", _verdict_doubt(comparison, name), class_="range"),
        tag("span", GLOSS[name], class_="gloss"),
        class_="tile",
    )


def _verdict_doubt(comparison: Comparison, name: str) -> str:
    if runs_shared(comparison, name) < 2:
        return "one seed cannot tell luck from skill"
    level = [m for m, place in standings(comparison, name).items() if place == "level"]
    if not level:
        return "told apart from all others"
    listed = ", ".join(level) if len(level) <= FEW else f"{len(level)} others"
    return f"not told apart from {listed}"


def all_numbers(comparison: Comparison) -> Markup:
    """Return the section: one row per measure, one column per method, the best of each row bold."""
    header, cells = comparison.cells(list(MEASURES))
    shown = [name for name in MEASURES if any(comparison.column(name).values())]
    rows: list[list[str | Cell]] = [
        [title, *(Cell(row[place], strong=standing.get(row[0]) == "best") for row in cells)]
        for place, (title, name) in enumerate(zip(header[1:], shown, strict=True), 1)
        for standing in [standings(comparison, name)]
    ]
    runs: list[list[str | Cell]] = [
        [
            method,
            Cell(str(seed), seed),
            *(_run_cell(figures.get(name), MEASURES[name].percent) for name in shown),
        ]
        for method, by_seed in comparison.figures.items()
        for seed, figures in by_seed.items()
    ]
    return section(
        "table",
        "All numbers",
        table(
            ["", *comparison.figures],
            rows,
            caption=f"Mean ± half the 95 % interval over seeds, {UNITS}. Bold: the best mean.",
            pinned=True,
        ),
        details(
            "Every run",
            table(
                ["method", "seed", *shown],
                runs,
                caption=f"One row per run, {UNITS}.",
                sortable=True,
                pinned=True,
            ),
        ),
    )


def chosen_settings(comparison: Comparison) -> Markup | None:
    """Return the section, or nothing where no settings are known."""
    names = list(dict.fromkeys(name for values in comparison.settings.values() for name in values))
    if not names:
        return None
    rows = [
        [method, *(str(values.get(name, UNDEFINED)) for name in names)]
        for method, values in comparison.settings.items()
    ]
    return section(
        "settings",
        "Settings chosen",
        paragraph("What each method was trained with; everything else is the same for all."),
        table(["method", *names], rows, caption="A dash: the method has no such setting."),
    )


def _run_cell(value: float | None, percent: bool) -> Cell:
    if value is not None and isinf(value):
        return Cell(INFINITE)
    if value is None:
        return Cell(UNDEFINED)
    return Cell(show_figure(seed_mean([value]), percent), value)


def how(comparison: Comparison, tries: int | None = None) -> Markup:
    """Return the section; ``tries`` is how many settings of each method were tried."""
    texts = {"Tries": tuned(tries), **RULES}
    shown = [name for name in MEASURES if any(comparison.column(name).values())]
    entries = [join(tag("dt", name), tag("dd", text)) for name, text in texts.items() if text]
    return section(
        "how",
        "How everything was computed",
        tag("dl", *entries, class_="how"),
        tag("h3", "The measures"),
        paragraph("An arrow up: higher is better; down: lower is.", class_="muted"),
        tag("dl", *(_measure(name) for name in shown), class_="how"),
    )


def tuned(tries: int | None) -> str:
    """Return a sentence on how the settings were chosen, nothing where that is not known."""
    if tries is None:
        return ""
    if tries < 2:
        return "Every method was trained with the recipe as given; nothing was tuned."
    return (
        f"Each method had {tries} tries on the first seed, the recipe as given among them; the "
        "best on validation was trained on every seed."
    )


def _measure(name: str) -> Markup:
    arrow = "↑" if MEASURES[name].higher_is_better else "↓"
    return join(tag("dt", f"{name} {arrow}"), tag("dd", f"{GLOSS[name]}."))
