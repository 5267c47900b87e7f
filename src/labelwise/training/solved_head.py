"""The head of a run on features: solved where its loss is convex; else the loop trains it."""

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import SettingsError
from labelwise.models import Model
from labelwise.networks.heads import LinearHead
from labelwise.objectives.convex import ConvexLoss
from labelwise.pictures import FeatureRows
from labelwise.pictures.mapped import MappedFeatures
from labelwise.system.allocator import memory_bytes
from labelwise.training import checkpoint
from labelwise.training.prepare import Training
from labelwise.training.solve import solve
from labelwise.training.validation import validation_figures
from labelwise.types import Targets

COPIES = 8  # times the features are in memory while they are solved, most of it in float64


def solve_head(training: Training) -> Model | None:
    """Return the model with its head at the optimum; None if it must be trained in steps."""
    head = training.model.head
    if training.frozen is None or not isinstance(head, LinearHead):
        return None
    rows = training.splits["train"].images
    if not isinstance(rows, FeatureRows) or rows.features.ndim != 2:
        return None
    if isinstance(rows.features, MappedFeatures) and COPIES * rows.features.nbytes > memory_bytes():
        training.watch.say(
            f"the features take {rows.features.nbytes / 2**30:,.1f} GiB, too much to solve the "
            "head in this machine's memory: training it in steps"
        )
        return None
    loss = _loss(training, "train")
    if loss is None:
        return None
    val_loss = _loss(training, "val") if "val" in training.splits else None
    if val_loss is None:
        raise SettingsError(
            "the L2 weight of a solved head is chosen on validation, and there is none; give a "
            "val split, or a val_share above 0"
        )
    watch, journal, labels = training.watch, training.run.journal, loss.num_labels
    journal.cut(0)
    watch.say(f"solving the head: {len(rows):,} rows of features, {labels:,} labels")
    step = 0

    def tried(l2: float, value: float) -> None:
        nonlocal step
        step += 1
        watch.say(f"L2 weight {l2:,.4g}: validation loss {value / labels:.4f} per label")
        journal.write({"step": step, "l2": l2, "val_loss": value / labels})

    val = _features(training, "val")
    solution = solve(_features(training, "train"), loss, val, val_loss, tried=tried)
    with torch.no_grad():
        head.classifier.weight.copy_(solution.weight.T)
        head.classifier.bias.copy_(solution.bias)
    figures = validation_figures(
        solution.logits(val).cpu(), *training.targets("val"), training.objective.link
    )
    journal.write(
        {
            "step": step + 1,
            "l2": solution.l2.log().mean().exp().item(),
            **{f"val_{name}": value for name, value in figures.items()},
        }
    )
    watch.say(_words(solution.l2, figures["map"]))
    model = training.model.to(training.device)
    # What the folder belongs to, for a command that comes back to it.
    checkpoint.save(
        training.run.checkpoint,
        {f"model.{name}": tensor for name, tensor in model.state_dict().items()},
        training.contents,
    )
    return model


def _words(l2: Tensor, score: float | None) -> str:
    least, most = (f"{end.item():,.4g}" for end in l2.aminmax())
    weights = f"the L2 weight {least}" if least == most else f"L2 weights from {least} to {most}"
    shown = "undefined" if score is None else f"{score:.4f}"
    return f"solved with {weights}: val map {shown}"


def _features(training: Training, split: str) -> Tensor:
    images, device = training.splits[split].images, training.device
    if not isinstance(images, FeatureRows):
        raise TypeError(f"the rows of {split} must be features, got {type(images).__name__}")
    features = torch.from_numpy(np.asarray(images.features))
    return features.to(device) if device.type == "cuda" else features  # others have no float64


def _loss(training: Training, split: str) -> ConvexLoss | None:
    labels, observed = training.targets(split)
    kept = labels.double() if labels.is_floating_point() else labels.float()  # 0 and 1 are exact
    return training.objective.convex(Targets(kept, observed))
