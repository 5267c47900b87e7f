"""Predictions: the logits of one split with what is known of its labels, in one Parquet file.

Columns: ``id`` (string), ``logits`` and ``labels`` (fixed-size lists, one number a label), and
``observed`` (fixed-size list of booleans) when some entries are unknown. The label names, the
split and the link stand as JSON under the key ``labelwise`` of the file's metadata.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from labelwise.errors import CheckpointError
from labelwise.files import replacing
from labelwise.links import Link
from labelwise.methods import link_from_spec, link_to_spec

__all__ = ["Predictions"]

FORMAT = 1


@dataclass(frozen=True, eq=False)
class Predictions:
    """Logits (N, K) with labels (N, K), which of them are known, and the link of the logits.

    ``observed is None`` means that every label is known; ``link is None`` that the logits only
    rank labels until a calibrator gives them a link.
    """

    ids: Sequence[str]
    logits: Tensor
    labels: Tensor
    observed: Tensor | None
    names: tuple[str, ...]
    split: str
    link: Link | None = None

    def __post_init__(self) -> None:
        shape = (len(self.ids), len(self.names))
        for field, value in (("logits", self.logits), ("labels", self.labels)):
            if value.shape != shape:
                raise ValueError(f"{field} must have shape {shape}, got {tuple(value.shape)}")
        if self.observed is not None and (
            self.observed.shape != shape or self.observed.dtype != torch.bool
        ):
            raise ValueError(
                f"observed must be boolean with shape {shape}, "
                f"got {self.observed.dtype} {tuple(self.observed.shape)}"
            )

    def __len__(self) -> int:
        return len(self.ids)

    def with_link(self, link: Link | None) -> "Predictions":
        """Return the same logits under another link."""
        return replace(self, link=link)

    def save(self, path: Path) -> None:
        """Write the Parquet file; an interrupted write leaves the old file whole."""
        columns: dict[str, Any] = {
            "id": pa.array(list(self.ids), pa.string()),
            "logits": _to_lists(self.logits.float()),
            "labels": _to_lists(self.labels),
        }
        if self.observed is not None:
            columns["observed"] = _to_lists(self.observed)
        facts = {
            "format": FORMAT,
            "names": self.names,
            "split": self.split,
            "link": None if self.link is None else link_to_spec(self.link),
        }
        table = pa.table(columns).replace_schema_metadata({"labelwise": json.dumps(facts)})
        with replacing(Path(path)) as temporary:
            pq.write_table(table, temporary)

    @staticmethod
    def load(path: Path) -> "Predictions":
        """Return the predictions saved at ``path``."""
        try:
            table = pq.read_table(path)
            facts = json.loads((table.schema.metadata or {})[b"labelwise"])
        except FileNotFoundError:
            raise CheckpointError(f"{path} does not exist") from None
        except KeyError:
            raise CheckpointError(
                f"{path} is a Parquet file without labelwise metadata; "
                "predictions are written by `labelwise train`"
            ) from None
        except (pa.ArrowException, OSError, ValueError) as error:
            raise CheckpointError(f"{path} is not a readable predictions file: {error}") from None
        if facts.get("format") != FORMAT:
            raise CheckpointError(
                f"{path} must have format {FORMAT}, got {facts.get('format')}; "
                "write it again with this version"
            )
        width = len(facts["names"])
        return Predictions(
            ids=table["id"].to_pylist(),
            logits=_from_lists(table["logits"], width),
            labels=_from_lists(table["labels"], width),
            observed=(
                _from_lists(table["observed"], width) if "observed" in table.column_names else None
            ),
            names=tuple(facts["names"]),
            split=facts["split"],
            link=None if facts["link"] is None else link_from_spec(facts["link"]),
        )


def _to_lists(matrix: Tensor) -> Any:
    return pa.FixedSizeListArray.from_arrays(
        pa.array(matrix.detach().cpu().contiguous().view(-1).numpy()), matrix.shape[1]
    )


def _from_lists(column: Any, width: int) -> Tensor:
    parts = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    flat = np.concatenate(parts) if parts else np.empty(0, np.float32)
    return torch.from_numpy(np.array(flat)).view(-1, width)
