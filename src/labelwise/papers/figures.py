"""The papers' figures, drawn as SVG and PNG: curves of formulas, and runs of a table overlaid.

A figure without a table is drawn from formulas alone. One with a table is drawn from the runs of
its rows, first seed: `reproduce` carries them out, or takes those that are there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from labelwise.decide import average_k
from labelwise.errors import DataError, SettingsError
from labelwise.links import Link, Sigmoid, Softmax
from labelwise.metrics import reliability, shot_groups, top_k_sets
from labelwise.models.run_folder import RunFolder
from labelwise.objectives import (
    CROSS_ENTROPY,
    EASY_NEGATIVES,
    Focusing,
    PhiLink,
    SPALink,
    asymmetric_loss,
    bce_loss,
    spa_loss,
)
from labelwise.objectives.ranking import two_way_unit
from labelwise.objectives.softmax import average_k_candidates
from labelwise.papers.columns import link_of, retrieval_by_length
from labelwise.papers.measures import FinishedRun
from labelwise.pictures import FeatureRows, ImageSource
from labelwise.retrieval import Query, bind
from labelwise.system.files import replacing
from labelwise.types import LabelSpace, nearest

# Figures of the papers that show photos or a batch: their drawings, on what a run predicted.
#
# Each takes a matplotlib figure, runs by row, and a function that gives the photo of an id.


Runs = Mapping[str, FinishedRun]
Photo = Callable[[str], Any]
LABEL, CANDIDATE, NEITHER = "#9cc7e8", "#e9a15b", "#f3f4f5"
SHOWN_LABELS, ZOOMED, SIDE = 5, 3, 448


Axes = Any
Figure = Any


@dataclass(frozen=True)
class Drawing:
    """The size of a figure in inches, and what draws on it."""

    size: tuple[float, float]
    draw: Callable[[Figure], None]


def save_drawings(
    drawings: Mapping[str, Drawing], folder: str | Path, formats: Sequence[str]
) -> list[Path]:
    """Write each drawing in each format to ``folder`` and return the files."""
    from matplotlib import figure
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    written = []
    for name, drawing in drawings.items():
        canvas = FigureCanvasAgg(figure.Figure(figsize=drawing.size, layout="constrained"))
        drawing.draw(canvas.figure)
        for form in formats:
            path = Path(folder) / f"{name}.{form}"
            with replacing(path) as temporary:
                canvas.figure.savefig(temporary, format=form, dpi=160)
            written.append(path)
    return written


def plain_axes(figure: Figure, *place: int) -> Axes:
    """Return axes with two spines, alone on the figure or at ``rows, columns, number``."""
    axes = figure.add_subplot(*place)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def zero_and_many(figure: Figure, runs: Runs, photo: Photo, colours: Sequence[str]) -> None:
    """A photo without a label and one with several: the five surest labels of every method."""
    first = next(iter(runs.values())).test
    counts = first.labels.sum(1)
    empty = np.flatnonzero(counts == 0).tolist()
    many = np.flatnonzero(counts >= 3).tolist() or [int(counts.argmax())]
    chosen = [*empty[:1], many[0]]
    for position, row in enumerate(chosen):
        words = "no label" if counts[row] == 0 else f"{int(counts[row])} labels"
        axes = figure.add_subplot(len(chosen), len(runs) + 1, position * (len(runs) + 1) + 1)
        axes.imshow(photo(first.ids[row]))
        axes.set_axis_off()
        axes.set_title(words, fontsize=9)
        for at, ((name, run), colour) in enumerate(zip(runs.items(), colours, strict=False)):
            probs = link_of(run)(run.test.logits[row : row + 1].astype(np.float64))[0]
            best = probs.argsort()[::-1][:SHOWN_LABELS].tolist()
            bars = plain_axes(
                figure, len(chosen), len(runs) + 1, position * (len(runs) + 1) + at + 2
            )
            bars.barh(range(len(best)), [float(probs[k]) for k in best], color=colour)
            there = ["*" if run.test.labels[row, k] else "" for k in best]
            names = [f"{run.test.names[k]}{star}" for k, star in zip(best, there, strict=True)]
            bars.set_yticks(range(len(best)), names, fontsize=7)
            bars.invert_yaxis()
            bars.set(xlim=(0, 1), xlabel="confidence; * present" if position else "")
            bars.set_title(name, fontsize=9)


def ambiguous_photos(figure: Figure, runs: Runs, photo: Photo, k: int) -> None:
    """Test photos with the smallest, a middling and the largest set of ``k`` labels on average."""
    run = next(iter(runs.values()))
    scores = [Softmax()(table.logits.astype(np.float64)) for table in (run.held_out, run.test)]
    sets = np.asarray(average_k(scores[0], k)(scores[1]))
    order = np.argsort(sets.sum(1), kind="stable")
    for at, row in enumerate(order[[0, len(order) // 2, -1]].tolist()):
        axes = figure.add_subplot(1, ZOOMED, at + 1)
        axes.imshow(photo(run.test.ids[row]))
        axes.set_axis_off()
        inside = [c for c in scores[1][row].argsort()[::-1].tolist() if sets[row, c]]
        names = [f"{run.test.names[c]} {float(scores[1][row, c]):.0%}" for c in inside]
        more = f"\n... {len(names)} in all" if len(names) > SHOWN_LABELS else ""
        title = "\n".join(names[:SHOWN_LABELS]) + more if names else "none"
        axes.set_title(title, fontsize=7.5, loc="left")


def proposed_candidates(figure: Figure, batch: int = 6, labels: int = 10, k: int = 3) -> None:
    """Which entries of a batch the proposal head adds: (k - 1) B of the whole batch, by score."""
    random = torch.Generator().manual_seed(0)
    sharp = torch.linspace(0.5, 6, batch)[:, None]  # images from ambiguous to plain
    proposal = sharp * torch.randn(batch, labels, generator=random)
    given = torch.nn.functional.one_hot(proposal.argmax(dim=1), labels).float()
    candidates = average_k_candidates(proposal, given, k)
    probs = Softmax()(proposal)
    for position, title in enumerate(
        ("proposal head: its probabilities", f"labels, and candidates (K = {k})")
    ):
        axes = plain_axes(figure, 1, 2, position + 1)
        for row in range(batch):
            for column in range(labels):
                marked = LABEL if given[row, column] else CANDIDATE
                shown = marked if given[row, column] or candidates[row, column] else NEITHER
                colour = shown if position else (0.04, 0.38, 0.66, float(probs[row, column]))
                axes.add_patch(_square(column, row, colour))
        axes.set(xlim=(0, labels), ylim=(batch, 0), xlabel="class", ylabel="image of the batch")
        axes.set_title(title, fontsize=9)
        axes.set_aspect("equal")


def _square(column: int, row: int, colour: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column + 0.05, row + 0.05), 0.9, 0.9, facecolor=colour, edgecolor="#b0b5ba")


def training_photos(figure: Figure, ids: Sequence[str], photo: Callable[[str, int], Any]) -> None:
    """Eight photos of the training set, evenly spaced, resized to 448 x 448 pixels."""
    if not ids:
        raise DataError("this figure shows training photos, and there are none")
    places = np.unique(np.linspace(0, len(ids) - 1, 8).round().astype(int))
    for at, row in enumerate(places.tolist()):
        axes = figure.add_subplot(2, 4, at + 1)
        axes.imshow(photo(ids[row], SIDE).convert("RGB").resize((SIDE, SIDE)))
        axes.set(xticks=[], yticks=[], aspect="equal")


COLOURS = ("#0b62a8", "#b3530c", "#3b7d3a", "#7b4ba0", "#6a727b", "#a8324a")
INK, RIGHT, WRONG = "#59616a", "#2c7a3f", "#b0b5ba"
EXAMPLES, RETRIEVED = 4, 6
BINS = 10


@dataclass(frozen=True)
class Shown:
    """What a figure is drawn from: runs by row, the photos by id (or none), and a query."""

    runs: Mapping[str, FinishedRun]
    images: ImageSource | None = None
    query: str | None = None

    def picture(self, name: str, side: int = 256) -> Any:
        """Return the photo of an id, its sides not much longer than ``side`` pixels."""
        return self.pictures.read(list(self.pictures.ids).index(name), side)

    @property
    def pictures(self) -> ImageSource:
        """The photos; features have none."""
        if self.images is None or isinstance(self.images, FeatureRows):
            raise DataError("this figure shows photos, and the data holds features only")
        return self.images


@dataclass(frozen=True)
class PaperFigure:
    """A figure: its title, the table and rows it is drawn from (none: formulas), its drawing.

    ``photos_only`` needs the data of its table and no run.
    """

    title: str
    draw: Callable[[Figure, Shown], None]
    size: tuple[float, float]
    table: str = ""
    rows: tuple[str, ...] = ()
    takes_query: bool = False
    photos_only: bool = False


def find_figure(name: str) -> tuple[PaperFigure | None, str]:
    """Return the figure of a name, and ".CELL" where it is drawn from another cell of its table."""
    base, point, cell = name.partition(".")
    figure = FIGURES.get(base)
    if figure is None or (point and not figure.table):
        return None, ""
    return figure, point + cell


def draw_figure(
    name: str, folder: Path, shown: Shown | None = None, formats: Sequence[str] = ("svg", "png")
) -> list[Path]:
    """Draw a figure to files in ``folder`` and return them."""
    figure, _ = find_figure(name)
    if figure is None:
        raise SettingsError(f"there is no figure {name!r}{nearest(name, FIGURES)}")
    what = shown or Shown({})
    if what.query is not None and not figure.takes_query:
        raise SettingsError(f"{name} has no query; --query is for figures of retrieved photos")
    drawing = Drawing(figure.size, partial(_titled, figure, what))
    return save_drawings({name: drawing}, folder, formats)


def _titled(paper: PaperFigure, shown: Shown, figure: Figure) -> None:
    figure.suptitle(paper.title, fontsize=10, color=INK)
    paper.draw(figure, shown)


def _losses_and_links(figure: Figure, shown: Shown) -> None:
    """Present and absent halves of three losses, and the probability each logit stands for."""
    v = torch.linspace(-5, 5, 401, dtype=torch.float64)
    ones, zeros = torch.ones_like(v), torch.zeros_like(v)
    focusing = Focusing(gamma_pos=0.0)  # ASL as its authors use it
    halves = {
        "BCE": (bce_loss(v, ones), bce_loss(v, zeros)),
        "ASL": (asymmetric_loss(v, ones, focusing), asymmetric_loss(v, zeros, focusing)),
        "SPA": tuple(
            spa_loss(v, labels, CROSS_ENTROPY, EASY_NEGATIVES) for labels in (ones, zeros)
        ),
    }
    links: dict[str, tuple[str, Link]] = {
        "BCE": ("BCE, ASL: sigmoid", Sigmoid()),
        "ASL": ("ASL: φ", PhiLink(gamma_pos=0.0)),
        "SPA": ("SPA", SPALink()),
    }
    left, right = plain_axes(figure, 1, 2, 1), plain_axes(figure, 1, 2, 2)
    for (name, (present, absent)), colour in zip(halves.items(), COLOURS, strict=False):
        width = 3.5 if name == "BCE" else 1.5  # SPA's present half is the same
        left.plot(v, present, color=colour, label=f"{name}, present", linewidth=width)
        left.plot(v, absent, color=colour, linestyle="--", label=f"{name}, absent")
        words, link = links[name]
        right.plot(v, link(v).detach(), color=colour, label=words)
    right.axhline(0.5, color=INK, linewidth=0.8, linestyle=":")
    left.set(xlabel="logit v", ylabel="loss", ylim=(0, 5))
    right.set(xlabel="logit v", ylabel="probability (inverse link)", ylim=(0, 1))
    left.legend(frameon=False, fontsize=8)
    right.legend(frameon=False, fontsize=8)


def _margins_and_temperatures(figure: Figure, shown: Shown) -> None:
    """The two-way loss of three present labels against one absent, one present label moving."""
    gap = torch.linspace(-6, 6, 401, dtype=torch.float64)
    logits = torch.stack([gap, *(torch.full_like(gap, 2.0),) * 2, torch.zeros_like(gap)], dim=1)
    present = torch.tensor([True, True, True, False]).expand_as(logits)
    panels = (
        ("temperature T of present labels", "temperature_pos", (1.0, 2.0, 4.0, 8.0)),
        ("margin ε, T = 1", "margin", (0.0, 1.0, 2.0, 4.0)),
    )
    for position, (title, option, values) in enumerate(panels, 1):
        axes = plain_axes(figure, 1, 2, position)
        for value, colour in zip(values, COLOURS, strict=False):
            options = {"temperature_pos": 1.0, option: value}
            loss = two_way_unit(logits, present, ~present, dim=1, **options)
            axes.plot(gap, loss, color=colour, label=f"{value:g}")
        axes.set(xlabel="logit of one present label", ylabel="loss", ylim=(0, 14))
        axes.legend(frameon=False, fontsize=8, title=title, title_fontsize=8)


def _normalisers(figure: Figure, shown: Shown) -> None:
    """The normaliser over training: one C per batch (quasibinary), one per image (softmax)."""
    axes = plain_axes(figure)
    for (row, run), colour in zip(shown.runs.items(), COLOURS, strict=False):
        journal = [record for record in RunFolder(run.folder).journal.read() if "loss" in record]
        kept = {name: _series(journal, name) for name in ("log_c", "link.log_normalizer")}
        low, high = (_series(journal, name) for name in ("lowest_log_c", "highest_log_c"))
        if len(kept["log_c"]):
            own = f"{row}: the C of a batch"
            axes.plot(*kept["log_c"].T, color=colour, linewidth=0.8, alpha=0.5, label=own)
            average = kept["link.log_normalizer"]
            axes.plot(*average.T, color=colour, label=f"{row}: its moving average")
        if len(low):
            words = f"{row}: least to greatest image of a batch"
            axes.fill_between(*low.T, high[:, 1], color=colour, alpha=0.3, label=words, linewidth=0)
    if not axes.get_legend_handles_labels()[1]:
        raise DataError("the journals of these runs hold no normaliser; run them again, anew")
    axes.set(xlabel="step", ylabel="C (logarithmic)", yscale="log")
    axes.legend(frameon=False, fontsize=8)


def _series(journal: Sequence[Mapping[str, Any]], name: str) -> Any:
    """Return the steps of a journal and the exponential of what it holds under ``name``, (n, 2)."""
    points = [(record["step"], record[name]) for record in journal if name in record]
    values = np.array(points, dtype=np.float64).reshape(-1, 2)
    return np.stack([values[:, 0], np.exp(np.clip(values[:, 1], -700, 700))], axis=1)


def _reliability(figure: Figure, shown: Shown, surest: int | None = None) -> None:
    """Observed share against confidence, every row in one plot; of the ``surest`` labels or all."""
    axes = plain_axes(figure)
    axes.plot([0, 1], [0, 1], color=INK, linewidth=1, linestyle=":")
    for (row, run), colour in zip(shown.runs.items(), COLOURS, strict=False):
        test = run.test
        probs = link_of(run)(test.logits.astype(np.float64))
        where = None if surest is None else top_k_sets(probs, surest)
        bins = reliability(probs, test.labels, test.observed, where=where, bins=BINS)
        filled = bins.counts > 0
        errors = {"ECE": bins.ece()} if surest else {"ACE": bins.ace(), "MCE": bins.mce()}
        figures = ", ".join(f"{kind} {100 * float(value):.1f}" for kind, value in errors.items())
        name = f"{row} ({figures} %)"
        points = bins.confidence[filled], bins.accuracy[filled]
        axes.plot(*points, "o-", color=colour, label=name, ms=4, clip_on=False)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="share present")
    axes.set_aspect("equal")
    axes.legend(frameon=False, fontsize=8)  # curves may lie on either side of the diagonal


def _retrieval(figure: Figure, shown: Shown) -> None:
    """Retrieval mAP against the number of wanted and unwanted labels, one line per method."""
    axes = plain_axes(figure)
    for (row, run), colour in zip(shown.runs.items(), COLOURS, strict=False):
        points = retrieval_by_length(run)
        lengths = [int(name.removeprefix("n=")) for name in points]
        axes.plot(lengths, list(points.values()), "o-", color=colour, label=row)
    axes.set(xlabel="conditions in the query, n", ylabel="mAP, %")
    axes.set_xticks(range(1, 6))
    axes.legend(frameon=False)


def _set_sizes(figure: Figure, shown: Shown) -> None:
    """How many labels the sets of average size 5 hold: by method, and of average-K by shot."""
    sizes = {}
    for row, run in shown.runs.items():
        scores = [Softmax()(table.logits.astype(np.float64)) for table in (run.held_out, run.test)]
        sizes[row] = np.asarray(average_k(scores[0], 5)(scores[1])).sum(1)
    longest = max(2, int(max(np.quantile(size, 0.99) for size in sizes.values())))
    left, right = plain_axes(figure, 1, 2, 1), plain_axes(figure, 1, 2, 2)
    for (row, size), colour in zip(sizes.items(), COLOURS, strict=False):
        _steps(left, size, longest, colour, f"{row} (mean {size.mean():.2f})")
    row = "average-k" if "average-k" in sizes else next(iter(sizes))
    run = shown.runs[row]
    groups = shot_groups(run.train.labels.sum(0))[run.test.labels.argmax(1)]
    for shot, colour in zip(("few", "medium", "many"), COLOURS[2:], strict=False):
        members = sizes[row][groups == shot]
        if len(members):
            _steps(right, members, longest, colour, f"{shot} ({len(members):,} images)")
    left.set(xlabel="labels in a set", ylabel="share of test images", title="by method")
    right.set(xlabel="labels in a set", title=f"{row}, by shots of the class")
    for axes in (left, right):
        axes.legend(frameon=False, fontsize=8)


def _steps(axes: Any, sizes: Any, longest: int, colour: str, name: str) -> None:
    shares = np.bincount(np.minimum(sizes, longest), minlength=longest + 1) / len(sizes)
    axes.stairs(shares, np.arange(longest + 2) - 0.5, color=colour, label=name, linewidth=1.5)


def _top_four(figure: Figure, shown: Shown) -> None:
    """Photos with the four surest labels of each method; those that are present in bold."""
    first = next(iter(shown.runs.values())).test
    many = np.flatnonzero(first.labels.sum(1) >= 2).tolist() or list(range(len(first.ids)))
    photos = [many[at] for at in np.linspace(0, len(many) - 1, EXAMPLES).round().astype(int)]
    for column, row in enumerate(photos):
        axes = figure.add_subplot(2, EXAMPLES, column + 1)
        axes.imshow(shown.picture(first.ids[row]))
        axes.set_axis_off()
        below = figure.add_subplot(2, EXAMPLES, EXAMPLES + column + 1)
        below.set_axis_off()
        line = 1.0
        for (name, run), colour in zip(shown.runs.items(), COLOURS, strict=False):
            below.text(0, line, name, fontsize=8, color=colour, va="top")
            probs = link_of(run)(run.test.logits[row : row + 1].astype(np.float64))[0]
            for k in probs.argsort()[::-1][:4].tolist():
                line -= 0.062
                there = bool(run.test.labels[row, k])
                words = f"{run.test.names[k]}: {probs[k]:.1%}"
                weight = "bold" if there else "normal"
                below.text(0.05, line, words, fontsize=7.5, va="top", fontweight=weight)
            line -= 0.085


def _retrieved(figure: Figure, shown: Shown) -> None:
    """The photos each method ranks first for one query, framed in green where they answer it."""
    runs = shown.runs
    first = next(iter(runs.values())).test
    space = LabelSpace(tuple(first.names))
    text = shown.query or _common_query(first.labels, space)
    bound = bind(Query.parse(text, space), space)
    columns = list(bound.columns)
    title = f"{FIGURES['001-fig4'].title}: “{text}”; green: answers the query"
    figure.suptitle(title, fontsize=10, color=INK)
    for at, (row, run) in enumerate(runs.items()):
        test = run.test
        log_p, log_q = link_of(run).log_probs(test.logits.astype(np.float64))
        scores = bound.log_scores(log_p[:, columns], log_q[:, columns])
        seen = None if test.observed is None else test.observed[:, columns]
        right, _ = bound.right(test.labels[:, columns], seen)
        for position, photo in enumerate(np.argsort(-scores, kind="stable")[:RETRIEVED].tolist()):
            axes = figure.add_subplot(len(runs), RETRIEVED, at * RETRIEVED + position + 1)
            axes.imshow(shown.picture(test.ids[photo]))
            axes.set(xticks=[], yticks=[])
            for spine in axes.spines.values():
                spine.set(color=RIGHT if right[photo] else WRONG, linewidth=3)
            if position == 0:
                axes.set_ylabel(row)


def _common_query(labels: Any, space: LabelSpace) -> str:
    """Return "a, -b" of the most frequent label that is as often without the next as may be."""
    order = np.argsort(-labels.sum(axis=0), kind="stable")
    return f"{space.names[order[0]]}, -{space.names[order[1]]}"


def _zero_and_many(figure: Figure, shown: Shown) -> None:
    zero_and_many(figure, shown.runs, shown.picture, COLOURS)


def _ambiguous(figure: Figure, shown: Shown) -> None:
    ambiguous_photos(figure, shown.runs, shown.picture, 5)


def _candidates(figure: Figure, shown: Shown) -> None:
    proposed_candidates(figure)


def _training_photos(figure: Figure, shown: Shown) -> None:
    training_photos(figure, shown.pictures.ids, shown.picture)


_THREE = ("bce", "asl-official", "spa")
FIGURES: dict[str, PaperFigure] = {
    "000-fig1": PaperFigure(
        "A photo without a label and one with several (quasibinary, Fig. 1)",
        _zero_and_many,
        (11, 5.5),
        "000-table3",
        ("binary", "softmax", "quasibinary"),
    ),
    "000-fig2": PaperFigure(
        "The normaliser over training (quasibinary, Fig. 2)",
        _normalisers,
        (6.4, 3.8),
        "000-table1",
        ("quasibinary", "softmax"),
    ),
    "000-fig3": PaperFigure(
        "Reliability of the four surest labels (quasibinary, Fig. 3)",
        partial(_reliability, surest=4),
        (4.8, 4.8),
        "000-table3",
        ("binary", "softmax", "quasibinary"),
    ),
    "000-fig4": PaperFigure(
        "The four surest labels of each method; present ones in bold (quasibinary, Fig. 4)",
        _top_four,
        (10, 6),
        "000-table3",
        ("binary", "softmax", "quasibinary"),
    ),
    "001-fig1": PaperFigure(
        "Reliability of multi-label losses (SPA, Fig. 1)",
        _reliability,
        (4.8, 4.8),
        "001-table3",
        ("focal-official", "asl-official", "spa"),
    ),
    "001-fig2": PaperFigure(
        "Losses and inverse links (SPA, Fig. 2)", _losses_and_links, (8.4, 3.8)
    ),
    "001-fig3-curves": PaperFigure(
        "Retrieval mAP against query length (SPA, Fig. 3)",
        _retrieval,
        (4.8, 3.8),
        "001-fig3",
        _THREE,
    ),
    "001-fig4": PaperFigure(
        "Retrieved photos (SPA, Figs. 1 and 4)", _retrieved, (9, 5), "001-fig3", _THREE, True
    ),
    "002-margins": PaperFigure(
        "Two-way loss: temperatures and margins (supplement, A.1)",
        _margins_and_temperatures,
        (8.4, 3.8),
    ),
    "003-fig1": PaperFigure(
        "From plain to ambiguous: sets that hold 5 labels on average (average-K, Fig. 1)",
        _ambiguous,
        (9, 4.6),
        "003-table2",
        ("softmax",),
    ),
    "003-fig3": PaperFigure(
        "Candidates that the proposal head adds to the labels of a batch (average-K, Fig. 3)",
        _candidates,
        (8.4, 3.4),
    ),
    "003-fig4": PaperFigure(
        "Sizes of sets that hold 5 labels on average (average-K, Fig. 4)",
        _set_sizes,
        (8.4, 3.8),
        "003-table2",
        ("softmax", "average-k"),
    ),
    "004-fig1": PaperFigure(
        "Training photos, resized to 448 x 448 pixels (Query2Label and MLSPL report, Fig. 1)",
        _training_photos,
        (9, 5),
        "004-table2",
        photos_only=True,
    ),
}
