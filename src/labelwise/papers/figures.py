"""The papers' figures, drawn as SVG and PNG: curves of formulas, and runs of a table overlaid.

A figure without a table is drawn from formulas alone. One with a table is drawn from the runs of
its rows, first seed: `reproduce` carries them out, or takes those that are there. ``tables.toml``
lists them; each is a function here that draws on a matplotlib figure.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL.Image import Image

from labelwise.base.arrays import Numbers
from labelwise.base.files import replacing
from labelwise.decide import average_k
from labelwise.errors import DataError
from labelwise.learn.objectives import (
    CROSS_ENTROPY,
    EASY_NEGATIVES,
    Focusing,
    PhiLink,
    SPALink,
    asymmetric_loss,
    bce_loss,
    spa_loss,
)
from labelwise.learn.objectives.ranking import two_way_unit
from labelwise.links import Link, Sigmoid, Softmax
from labelwise.metrics import reliability, shot_groups, top_k_sets
from labelwise.models.run_folder import RunFolder
from labelwise.papers.columns import link_of, retrieval_by_length
from labelwise.papers.measures import FinishedRun
from labelwise.papers.protocols import STATED
from labelwise.pictures import FeatureRows, ImageSource
from labelwise.queries import Query, bind
from labelwise.types import LabelSpace

Axes = Any  # of matplotlib
Figure = Any
COLOURS = ("#0b62a8", "#b3530c", "#3b7d3a", "#7b4ba0", "#6a727b", "#a8324a")
INK, RIGHT, WRONG = "#59616a", "#2c7a3f", "#b0b5ba"
SHOWN_LABELS, RETRIEVED, BINS = 5, 6, 10
SMALL = {"frameon": False, "fontsize": 8}


@dataclass(frozen=True)
class Drawn:
    """What a figure is drawn from: runs by row, the photos by id (or none), and a query."""

    runs: Mapping[str, FinishedRun]
    images: ImageSource | None = None
    query: str | None = None

    @property
    def first(self) -> FinishedRun:
        return next(iter(self.runs.values()))

    @property
    def coloured(self) -> Iterable[tuple[str, FinishedRun, str]]:
        return ((row, run, c) for (row, run), c in zip(self.runs.items(), COLOURS, strict=False))

    @property
    def pictures(self) -> ImageSource:
        if self.images is None or isinstance(self.images, FeatureRows):
            raise DataError("this figure shows photos, and the data holds features only")
        return self.images

    def picture(self, name: str, side: int = 256) -> Image:
        """Return the photo of an id, its sides not much longer than ``side`` pixels."""
        return self.pictures.read(list(self.pictures.ids).index(name), side)

    def draw_photo(self, figure: Figure, name: str, *place: int) -> Axes:
        axes = figure.add_subplot(*place)
        axes.imshow(self.picture(name))
        axes.set_axis_off()
        return axes


@dataclass(frozen=True)
class PaperFigure:
    """A figure: its title, the table and rows it is drawn from (none: formulas), its drawing."""

    title: str
    draw: str
    size: tuple[float, float]
    table: str = ""
    rows: tuple[str, ...] = ()
    takes_query: bool = False
    options: Mapping[str, object] = field(default_factory=dict)


FIGURES = {
    name: PaperFigure(**{**given, "rows": tuple(given.get("rows", ()))})
    for name, given in STATED["figure"].items()
}


def find_figure(name: str) -> tuple[PaperFigure | None, str]:
    """Return the figure of a name, and ".CELL" where it is drawn from another cell of its table."""
    base, point, cell = name.partition(".")
    figure = FIGURES.get(base)
    if figure is None or (point and not figure.table):
        return None, ""
    return figure, point + cell


def draw_figure(name: str, folder: Path, shown: Drawn | None = None) -> list[Path]:
    """Draw a figure to files in ``folder`` and return them."""
    from matplotlib import figure
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    paper = FIGURES[name.partition(".")[0]]
    drawn = FigureCanvasAgg(figure.Figure(figsize=paper.size, layout="constrained")).figure
    drawn.suptitle(paper.title, fontsize=10, color=INK)
    globals()[paper.draw](drawn, shown or Drawn({}), **paper.options)
    paths = [folder / f"{name}.{form}" for form in ("svg", "png")]
    for path in paths:
        with replacing(path) as temporary:
            drawn.savefig(temporary, format=path.suffix[1:], dpi=160)
    return paths


def plain_axes(figure: Figure, *place: int) -> Axes:
    """Return axes with two spines, alone on the figure or at ``rows, columns, number``."""
    axes = figure.add_subplot(*place)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def _probs(run: FinishedRun, rows: slice | list[int] = slice(None)) -> Numbers:
    return link_of(run)(run.test.logits[rows].astype(np.float64))


def _average_sets(run: FinishedRun, k: int) -> tuple[np.ndarray, np.ndarray]:
    val, test = (Softmax()(table.logits.astype(np.float64)) for table in (run.held_out, run.test))
    return test, np.asarray(average_k(val, k)(test))


def zero_and_many(figure: Figure, shown: Drawn) -> None:
    """A photo without a label and one with several: the five surest labels of every method."""
    first = shown.first.test
    counts = first.labels.sum(1)
    empty = np.flatnonzero(counts == 0).tolist()
    many = np.flatnonzero(counts >= 3).tolist() or [int(counts.argmax())]
    chosen, across = [*empty[:1], many[0]], len(shown.runs) + 1
    for position, row in enumerate(chosen):
        place = position * across + 1
        axes = shown.draw_photo(figure, first.ids[row], len(chosen), across, place)
        axes.set_title(f"{counts[row]:.0f} labels" if counts[row] else "no label", fontsize=9)
        for at, (name, run, colour) in enumerate(shown.coloured, 1):
            probs = _probs(run, [row])[0]
            best = probs.argsort()[::-1][:SHOWN_LABELS].tolist()
            bars = plain_axes(figure, len(chosen), across, place + at)
            bars.barh(range(len(best)), [float(probs[k]) for k in best], color=colour)
            names = [f"{run.test.names[k]}{'*' if run.test.labels[row, k] else ''}" for k in best]
            bars.set_yticks(range(len(best)), names, fontsize=7)
            bars.invert_yaxis()
            bars.set(xlim=(0, 1), xlabel="confidence; * present" if position else "")
            bars.set_title(name, fontsize=9)


def ambiguous(figure: Figure, shown: Drawn, k: int) -> None:
    """Test photos with the smallest, a middling and the largest set of ``k`` labels on average."""
    test = shown.first.test
    scores, sets = _average_sets(shown.first, k)
    order = np.argsort(sets.sum(1), kind="stable")
    for at, row in enumerate(order[[0, len(order) // 2, -1]].tolist(), 1):
        axes = shown.draw_photo(figure, test.ids[row], 1, 3, at)
        inside = [c for c in scores[row].argsort()[::-1].tolist() if sets[row, c]]
        names = [f"{test.names[c]} {float(scores[row, c]):.0%}" for c in inside]
        more = f"\n... {len(names)} in all" if len(names) > SHOWN_LABELS else ""
        title = "\n".join(names[:SHOWN_LABELS]) + more if names else "none"
        axes.set_title(title, fontsize=7.5, loc="left")


def losses_and_links(figure: Figure, shown: Drawn) -> None:
    """Present and absent halves of three losses, and the probability each logit stands for."""
    v = torch.linspace(-5, 5, 401, dtype=torch.float64)
    ones, zeros = torch.ones_like(v), torch.zeros_like(v)
    focusing = Focusing(gamma_pos=0.0)  # ASL as its authors use it
    losses: dict[str, tuple[Callable[..., torch.Tensor], str, Link]] = {
        "BCE": (bce_loss, "BCE, ASL: sigmoid", Sigmoid()),
        "ASL": (partial(asymmetric_loss, focusing=focusing), "ASL: φ", PhiLink(gamma_pos=0.0)),
        "SPA": (partial(spa_loss, present=CROSS_ENTROPY, absent=EASY_NEGATIVES), "SPA", SPALink()),
    }
    left, right = plain_axes(figure, 1, 2, 1), plain_axes(figure, 1, 2, 2)
    for (name, (loss, words, link)), colour in zip(losses.items(), COLOURS, strict=False):
        width = 3.5 if name == "BCE" else 1.5  # SPA's present half is the same
        left.plot(v, loss(v, ones), color=colour, label=f"{name}, present", linewidth=width)
        left.plot(v, loss(v, zeros), color=colour, linestyle="--", label=f"{name}, absent")
        right.plot(v, link(v).detach(), color=colour, label=words)
    right.axhline(0.5, color=INK, linewidth=0.8, linestyle=":")
    left.set(xlabel="logit v", ylabel="loss", ylim=(0, 5))
    right.set(xlabel="logit v", ylabel="probability (inverse link)", ylim=(0, 1))
    left.legend(**SMALL)
    right.legend(**SMALL)


def margins_and_temperatures(figure: Figure, shown: Drawn) -> None:
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
        axes.legend(**SMALL, title=title, title_fontsize=8)


def normalisers(figure: Figure, shown: Drawn) -> None:
    """The normaliser over training: one C per batch (quasibinary), one per image (softmax)."""
    axes = plain_axes(figure)
    for row, run, colour in shown.coloured:
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
            steps, least = low.T
            axes.fill_between(
                steps, least, high[:, 1], color=colour, alpha=0.3, label=words, linewidth=0
            )
    if not axes.get_legend_handles_labels()[1]:
        raise DataError("the journals of these runs hold no normaliser; run them again")
    axes.set(xlabel="step", ylabel="C (logarithmic)", yscale="log")
    axes.legend(**SMALL)


def _series(journal: Sequence[Mapping[str, object]], name: str) -> Numbers:
    """Return the steps of a journal and the exponential of what it holds under ``name``, (n, 2)."""
    points = [(record["step"], record[name]) for record in journal if name in record]
    values = np.array(points, dtype=np.float64).reshape(-1, 2)
    return np.stack([values[:, 0], np.exp(np.clip(values[:, 1], -700, 700))], axis=1)


def reliability_curves(figure: Figure, shown: Drawn, surest: int | None = None) -> None:
    """Observed share against confidence, every row in one plot; of the ``surest`` labels or all."""
    axes = plain_axes(figure)
    axes.plot([0, 1], [0, 1], color=INK, linewidth=1, linestyle=":")
    for row, run, colour in shown.coloured:
        test, probs = run.test, _probs(run)
        where = None if surest is None else top_k_sets(probs, surest)
        bins = reliability(probs, test.labels, test.observed, where=where, bins=BINS)
        filled = bins.counts > 0
        errors = {"ECE": bins.ece()} if surest else {"ACE": bins.ace(), "MCE": bins.mce()}
        figures = ", ".join(f"{kind} {100 * float(value):.1f}" for kind, value in errors.items())
        points, label = (bins.confidence[filled], bins.accuracy[filled]), f"{row} ({figures} %)"
        axes.plot(*points, "o-", color=colour, label=label, ms=4, clip_on=False)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="share present")
    axes.set_aspect("equal")
    axes.legend(**SMALL)  # curves may lie on either side of the diagonal


def retrieval_curves(figure: Figure, shown: Drawn) -> None:
    """Retrieval mAP against the number of wanted and unwanted labels, one line per method."""
    axes = plain_axes(figure)
    for row, run, colour in shown.coloured:
        points = retrieval_by_length(run)
        lengths = [int(name.removeprefix("n=")) for name in points]
        axes.plot(lengths, list(points.values()), "o-", color=colour, label=row)
    axes.set(xlabel="conditions in the query, n", ylabel="mAP, %")
    axes.set_xticks(range(1, 6))
    axes.legend(frameon=False)


def set_sizes(figure: Figure, shown: Drawn) -> None:
    """How many labels the sets of average size 5 hold: by method, and of average-K by shot."""
    sizes = {row: _average_sets(run, 5)[1].sum(1) for row, run in shown.runs.items()}
    longest = max(2, int(max(np.quantile(size, 0.99) for size in sizes.values())))
    left, right = plain_axes(figure, 1, 2, 1), plain_axes(figure, 1, 2, 2)
    for (row, size), colour in zip(sizes.items(), COLOURS, strict=False):
        _steps(left, size, longest, colour, f"{row} (mean {size.mean():.2f})")
    row = "average-k" if "average-k" in sizes else next(iter(sizes))
    run = shown.runs[row]
    groups = shot_groups(run.train.labels.sum(0))[run.test.labels.argmax(1)]
    for shot, colour in zip(("few", "medium", "many"), COLOURS[2:], strict=False):
        if len(members := sizes[row][groups == shot]):
            _steps(right, members, longest, colour, f"{shot} ({len(members):,} images)")
    left.set(xlabel="labels in a set", ylabel="share of test images", title="by method")
    right.set(xlabel="labels in a set", title=f"{row}, by shots of the class")
    for axes in (left, right):
        axes.legend(**SMALL)


def _steps(axes: Axes, sizes: Numbers, longest: int, colour: str, name: str) -> None:
    shares = np.bincount(np.minimum(sizes, longest), minlength=longest + 1) / len(sizes)
    axes.stairs(shares, np.arange(longest + 2) - 0.5, color=colour, label=name, linewidth=1.5)


def retrieved(figure: Figure, shown: Drawn) -> None:
    """The photos each method ranks first for one query, framed in green where they answer it."""
    runs, first = shown.runs, shown.first.test
    space = LabelSpace(tuple(first.names))
    common = [space.names[k] for k in np.argsort(-first.labels.sum(axis=0), kind="stable")[:2]]
    text = shown.query or ", -".join(common)
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
