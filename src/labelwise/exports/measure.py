"""Labelled tables scored by a model in any form, so that what is shipped can be measured."""

import numpy as np
import torch

from labelwise.data import LabelTable
from labelwise.models.scoring import Scorer, infer, raise_failure
from labelwise.predictions import Predictions
from labelwise.system.progress import Silent, Watch
from labelwise.types import LabelSpace, matching_columns


def measured_predictions(
    scorer: Scorer,
    table: LabelTable,
    split: str,
    *,
    batch_size: int = 32,
    watch: Watch | None = None,
) -> Predictions:
    """Return the logits of a scorer with the labels of a table, in the scorer's columns."""
    labels, observed = same_labels(table, scorer.space)
    parts = []
    watch = watch or Silent()
    watch.start("scoring", len(table))
    for part in infer(
        lambda pixels: (scorer.logits(pixels),),
        table.images,
        scorer.transform,
        batch_size=batch_size,
        device=scorer.device,
    ):
        raise_failure(part)
        parts.append(part.values[0])
        watch.advance(len(part.rows))
    watch.finish()
    return Predictions(
        table.ids,
        torch.cat(parts),
        labels,
        observed,
        scorer.space.names,
        split,
        scorer.link,
        table.group,
    )


def same_labels(table: LabelTable, space: LabelSpace) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return labels (N, K) of a table, and which are known, in the columns of a model."""
    there = table.space.names
    columns = matching_columns(space.names, there, of="the model", in_=table.name, others=True)
    labels, observed = table.targets()
    known = (
        None if observed is None else torch.from_numpy(np.ascontiguousarray(observed[:, columns]))
    )
    return torch.from_numpy(np.ascontiguousarray(labels[:, columns])), known
