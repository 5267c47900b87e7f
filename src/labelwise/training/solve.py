"""Solve: a run's linear head on frozen features at its optimum, cross-fitted on its rows."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.base.arrays import to_numpy
from labelwise.eyes.fit import Fitted, fit, fit_noted
from labelwise.learn.heads import LinearHead
from labelwise.learn.predictor import Model
from labelwise.pictures import FeatureRows
from labelwise.training import checkpoint
from labelwise.training.inference import validation_figures
from labelwise.training.learning import LEARNING, learning
from labelwise.training.prepare import Training
from labelwise.types import Targets


def solve_head(training: Training) -> tuple[Model, Fitted[Tensor]]:
    """Return the model with its head at the optimum, and what its folds say."""
    model, watch, journal = training.model, training.watch, training.run.journal
    head, table = model.head, training.splits["train"]
    if not isinstance(head, LinearHead) or not isinstance(table.images, FeatureRows):
        raise TypeError(f"a linear head on features is solved, got {type(head).__name__}")
    labels, observed = training.targets("train")
    kept = labels.double() if labels.is_floating_point() else labels.float()  # 0 and 1 are exact
    loss = training.objective.convex(Targets(kept, observed))
    if loss is None:
        raise TypeError(f"{training.settings.method} has no convex loss")
    journal.cut(0)
    watch.say(f"solving the head: {len(table):,} rows of features, {loss.num_labels:,} labels")
    step, labels_each = 0, loss.num_labels

    def tried(l2: float, value: float) -> None:
        nonlocal step
        step += 1
        each = value / labels_each
        watch.say(f"L2 weight {l2:,.4g} per row: out-of-fold loss {each:.4f} per label")
        journal.write({"step": step, "l2": l2, "val_loss": each})

    features = torch.from_numpy(np.asarray(table.images.features))
    if training.device.type == "cuda":  # others have no float64
        features = features.to(training.device)
        loss = loss.each(lambda values: values.to(training.device))
    rows = to_numpy(labels), None if observed is None else to_numpy(observed)
    how: dict[str, Any] = {"seed": training.settings.seed, "tried": tried}
    how["groups"] = None if table.group is None else np.array(list(table.group))
    fitted: Fitted[Tensor] | None = None
    if training.noted:
        fitted = fit_noted(features, *rows, several=training.several, **how)
    if fitted is None:
        fitted = fit(features, *rows, loss=loss, link=training.objective.link, **how)
    curve = learning(fitted, *rows, table.space.names)
    if curve is not None:
        journal.write({"step": step + 1, LEARNING: curve.record()})
    with torch.no_grad():
        head.classifier.weight.copy_(fitted.weight)
        head.classifier.bias.copy_(fitted.bias)
    figures = validation_figures(fitted.out_of_fold, labels, observed, fitted.own)
    found = {f"val_{name}": value for name, value in figures.items()}
    typical = float(np.exp(np.log(fitted.strength).mean()))
    journal.write({"step": step + 1, "l2": typical, **found})
    least, most = (f"{end:,.4g}" for end in (fitted.strength.min(), fitted.strength.max()))
    weights = f"the L2 weight {least}" if least == most else f"L2 weights from {least} to {most}"
    score = figures["map"]
    shown = "undefined" if score is None else f"{score:.4f}"
    folds = int(fitted.folds.max()) + 1
    watch.say(f"solved with {weights} per row: mAP {shown}, each row by the head of other folds")
    watch.say(f"cross-fitted in {folds} folds: every row trains the head, and none judges itself")
    model = model.to(training.device)
    # What the folder belongs to, for a command that comes back to it.
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    checkpoint.save(training.run.checkpoint, tensors, training.contents)
    return model, fitted
