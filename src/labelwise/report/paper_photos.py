"""Figures of the papers that show photos or a batch: their drawings, on what a run predicted.

Each takes a matplotlib figure, runs by row, and a function that gives the photo of an id.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from labelwise.decide import average_k
from labelwise.errors import DataError
from labelwise.links import Softmax
from labelwise.objectives.average_k import average_k_candidates
from labelwise.papers.columns import link_of
from labelwise.papers.measures import FinishedRun
from labelwise.report.plots import plain_axes

Figure = Any
Runs = Mapping[str, FinishedRun]
Photo = Callable[[str], Any]
LABEL, CANDIDATE, NEITHER = "#9cc7e8", "#e9a15b", "#f3f4f5"
SHOWN_LABELS, EXAMPLES, SIDE = 5, 3, 448


def zero_and_many(figure: Figure, runs: Runs, photo: Photo, colours: Sequence[str]) -> None:
    """A photo without a label and one with several: the five surest labels of every method."""
    first = next(iter(runs.values())).test
    counts = first.labels.sum(1)
    empty = np.flatnonzero(counts == 0).tolist()
    many = np.flatnonzero(counts >= 3).tolist() or [int(counts.argmax())]
    chosen = [*empty[:1], many[0]]
    for place, row in enumerate(chosen):
        words = "no label" if counts[row] == 0 else f"{int(counts[row])} labels"
        axes = figure.add_subplot(len(chosen), len(runs) + 1, place * (len(runs) + 1) + 1)
        axes.imshow(photo(first.ids[row]))
        axes.set_axis_off()
        axes.set_title(words, fontsize=9)
        for at, ((name, run), colour) in enumerate(zip(runs.items(), colours, strict=False)):
            probs = link_of(run)(run.test.logits[row : row + 1].astype(np.float64))[0]
            best = probs.argsort()[::-1][:SHOWN_LABELS].tolist()
            bars = plain_axes(figure, len(chosen), len(runs) + 1, place * (len(runs) + 1) + at + 2)
            bars.barh(range(len(best)), [float(probs[k]) for k in best], color=colour)
            there = ["*" if run.test.labels[row, k] else "" for k in best]
            names = [f"{run.test.names[k]}{star}" for k, star in zip(best, there, strict=True)]
            bars.set_yticks(range(len(best)), names, fontsize=7)
            bars.invert_yaxis()
            bars.set(xlim=(0, 1), xlabel="confidence; * present" if place else "")
            bars.set_title(name, fontsize=9)


def ambiguous_photos(figure: Figure, runs: Runs, photo: Photo, k: int) -> None:
    """Test photos with the smallest, a middling and the largest set of ``k`` labels on average."""
    run = next(iter(runs.values()))
    scores = [Softmax()(part.logits.astype(np.float64)) for part in (run.held_out, run.test)]
    sets = np.asarray(average_k(scores[0], k)(scores[1]))
    order = np.argsort(sets.sum(1), kind="stable")
    for at, row in enumerate(order[[0, len(order) // 2, -1]].tolist()):
        axes = figure.add_subplot(1, EXAMPLES, at + 1)
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
    for place, title in enumerate(
        ("proposal head: its probabilities", f"labels, and candidates (K = {k})")
    ):
        axes = plain_axes(figure, 1, 2, place + 1)
        for row in range(batch):
            for column in range(labels):
                marked = LABEL if given[row, column] else CANDIDATE
                shown = marked if given[row, column] or candidates[row, column] else NEITHER
                colour = shown if place else (0.04, 0.38, 0.66, float(probs[row, column]))
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
    for at, place in enumerate(places.tolist()):
        axes = figure.add_subplot(2, 4, at + 1)
        axes.imshow(photo(ids[place], SIDE).convert("RGB").resize((SIDE, SIDE)))
        axes.set(xticks=[], yticks=[], aspect="equal")
