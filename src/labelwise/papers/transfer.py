"""Table A of the two-way loss: a frozen backbone judged by linear classifiers on nine data sets.

The paper fits a linear classifier for each of 45 L2 weights and reports the best of them *on the
test images*. That figure is computed. Beside it is the honest one: the weight is chosen on a tenth
of the training images, and the classifier of that weight, fitted on all of them, is judged on test.

    minimise over W, b:   sum over rows of the softmax loss   +   l2 / 2 ||W||^2

with l2 log-spaced in [1e-6, 1e5] (the bias is free). The path goes from the strongest weight to the
weakest, each fit starting where the last ended, to the optimum (:mod:`labelwise.base.newton`).
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.base.convex import ShareLoss
from labelwise.base.files import write_text
from labelwise.base.newton import Design, minimise
from labelwise.base.progress import Watch
from labelwise.errors import DataError, SettingsError
from labelwise.papers.comparison import table_page
from labelwise.papers.protocols import TRANSFER
from labelwise.papers.sources import Frozen, holds_files
from labelwise.tables import LabelTable, load, with_validation
from labelwise.training.features import compute, content_key
from labelwise.types import nearest

TOLERANCE = 1e-10  # of the loss may be left to gain
L2_WEIGHTS = tuple(float(weight) for weight in np.logspace(-6, 5, 45))


def softmax_path(
    features: Tensor, labels: Tensor, l2_weights: Sequence[float] = L2_WEIGHTS
) -> dict[float, tuple[Tensor, Tensor]]:
    """Return W (D, K) and b (K,) by L2 weight, the strongest first; computed in float64."""
    design = Design.of(features, scaled=False)
    loss = ShareLoss.of(labels.double()).to(design.rows).bounded()
    w = design.rows.new_zeros(design.rows.shape[1], loss.num_labels)
    path = {}
    for l2 in sorted(l2_weights, reverse=True):
        w = minimise(design, loss, torch.full((1, loss.num_labels), l2), w, tolerance=TOLERANCE)
        path[l2] = design.linear(w)
    return path


def accuracies(
    train: LabelTable,
    judged: LabelTable,
    *,
    device: torch.device | str = "cpu",
    l2_weights: Sequence[float] = L2_WEIGHTS,
) -> dict[float, float]:
    """Return the top-1 accuracy on ``judged`` of the classifier of each L2 weight."""
    path = softmax_path(*_arrays(train, device), l2_weights)
    features, labels = _arrays(judged, device)
    found = {}
    for l2, (weight, bias) in path.items():
        chosen = (features.to(weight) @ weight + bias).argmax(1, keepdim=True)
        found[l2] = labels.gather(1, chosen).double().mean().item()
    return found


def _arrays(table: LabelTable, device: torch.device | str) -> tuple[Tensor, Tensor]:
    features: Any = table.images
    numbers = torch.from_numpy(np.array(features.features))
    return numbers.to(device), torch.from_numpy(table.targets()[0]).to(device)


TITLE = "Two-way loss, Table A: linear classifiers on frozen features, top-1 accuracy, %"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Transferred:
    """What came out on one data set: its size, and accuracy (%) with the L2 weight, both ways."""

    data: str
    classes: int
    train: int
    test: int
    best_on_test: float
    l2_on_test: float
    chosen_on_validation: float
    l2_on_validation: float

    def deviations(self) -> list[str]:
        _, *published = TRANSFER[self.data]
        here = (self.classes, self.train, self.test)
        names = ("classes", "training images", "test images")
        return [
            f"{self.data}: {name}: published {stated:,}, here {ours:,}"
            for name, stated, ours in zip(names, published, here, strict=True)
            if stated != ours
        ]


def available_sets(root: Path) -> dict[str, bool]:
    """Return for each of the nine data sets whether it is below ``root``."""
    return {name: holds_files(root / name) for name in TRANSFER}


def where_to_put_set(name: str, root: Path) -> str:
    """Say what to put where, so that a data set can be used."""
    title, classes, train, test = TRANSFER[name]
    return (
        f"put into {root / name}: {title} ({classes} classes, {train:,} + {test:,} images) as "
        "train/CLASS/image and test/CLASS/image"
    )


def transfer(
    root: Path,
    frozen: Frozen,
    folder: Path,
    *,
    sets: Sequence[str] = (),
    l2_weights: Sequence[float] = L2_WEIGHTS,
    say: Say = print,
    watch: Watch | None = None,
) -> list[Transferred]:
    """Judge a frozen backbone on the named data sets (by default those that are there)."""
    there = available_sets(root)
    for name in sets:
        if name not in there:
            raise SettingsError(f"002-tableA has no data set {name!r}{nearest(name, there)}")
    chosen = sets or [name for name in there if there[name]] or list(there)[:1]
    for name in chosen:
        if not there[name]:
            raise DataError(f"002-tableA needs data: {where_to_put_set(name, root)}")
    tables = {name: _opened(name, root) for name in chosen}  # all are read before any is computed
    judged = []
    for number, (name, table) in enumerate(tables.items(), 1):
        result = _judged(name, table, frozen, folder, tuple(l2_weights), watch)
        say(
            f"[{number}/{len(tables)}] {name}: best on test {result.best_on_test:.2f}, "
            f"chosen on validation {result.chosen_on_validation:.2f}"
        )
        judged.append(result)
        _save(judged, frozen, folder)
    return judged


def cells(found: Sequence[Transferred]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of the table."""
    header = ["data set", "classes", "train", "test", "best on test", "L2", "chosen on val", "L2"]
    rows = [
        [
            TRANSFER[result.data][0],
            *(f"{count:,}" for count in (result.classes, result.train, result.test)),
            *(f"{result.best_on_test:.2f}", f"{result.l2_on_test:.2g}"),
            *(f"{result.chosen_on_validation:.2f}", f"{result.l2_on_validation:.2g}"),
        ]
        for result in found
    ]
    return header, rows


def remarks(found: Sequence[Transferred], frozen: Frozen) -> list[str]:
    """Return what differs from the paper, in sentences."""
    return [
        f"Features of {frozen.name}, weights {frozen.weights or 'random'}; the paper's is a "
        "ResNet-50 trained on ImageNet with each loss.",
        "Each fit is solved to its optimum; the paper's solver is L-BFGS.",
        "Accuracies are in the paper itself, not in the supplement at hand.",
        *(f"{text}." for result in found for text in result.deviations()),
    ]


def _save(found: Sequence[Transferred], frozen: Frozen, folder: Path) -> None:
    write_text(folder / "table.md", table_page(TITLE, *cells(found), remarks(found, frozen)))
    write_text(folder / "figures.json", json.dumps([asdict(result) for result in found], indent=1))


def _opened(name: str, root: Path) -> LabelTable:
    try:
        table = load(str(root / name))
    except DataError as error:
        raise DataError(f"{error}; {where_to_put_set(name, root)}") from error
    if table.split is None or not {"train", "test"} <= set(table.split.tolist()):
        raise DataError(
            f"{root / name} must have the splits train and test; {where_to_put_set(name, root)}"
        )
    counts = table.present.sizes()
    if table.has_unknown() or (counts != 1).any():
        row = int((counts != 1).argmax())
        got = f"{counts[row]} for {table.ids[row]!r}"
        raise DataError(f"{root / name}: every image must have one class, got {got}")
    return table


def _judged(
    name: str,
    table: LabelTable,
    frozen: Frozen,
    folder: Path,
    l2_weights: tuple[float, ...],
    watch: Watch | None,
) -> Transferred:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    backbone = frozen.backbone()
    key = [content_key(table.images, backbone, True), list(map(float, l2_weights))]
    file = folder / f"{name}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):  # what was computed from the same
        saved = json.loads(file.read_text(encoding="utf-8"))
        if saved["key"] == key:
            return Transferred(**saved["result"])
    features = compute(table, backbone, folder / "features", device=device, watch=watch)
    parts = with_validation(features).splits()
    val = features.split == "val"
    whole = features.subset((features.split == "train") | val)
    on_test = accuracies(whole, parts["test"], l2_weights=l2_weights, device=device)
    on_val = accuracies(parts["train"], parts["val"], l2_weights=l2_weights, device=device)
    best, chosen = (  # the strongest of equals
        max(scores, key=lambda l2: (scores[l2], l2)) for scores in (on_test, on_val)
    )
    sizes = len(table.space), len(whole), len(parts["test"])
    figures = 100 * on_test[best], best, 100 * on_test[chosen], chosen
    transferred = Transferred(name, *sizes, *figures)
    path = [{"l2": l2, "test": on_test[l2], "validation": on_val[l2]} for l2 in on_test]
    content = {"key": key, "result": asdict(transferred), "path": path}
    write_text(file, json.dumps(content, indent=1))
    return transferred
