"""Predictions: the logits of one split with what is known of its labels, in one Parquet file.

Columns: ``id`` (string), ``logits`` and ``labels`` (fixed-size lists, one number per label), and
``observed`` (fixed-size list of booleans) when some entries are unknown, and ``group`` (string)
when photos come in groups. The label names, the split and the link stand as JSON under the key
``labelwise`` of the file's metadata.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from labelwise.base.arrays import Floats, Values, is_tensor, to_numpy
from labelwise.base.files import replacing, require_regular, summed, without_sum
from labelwise.base.groups import Groups
from labelwise.base.pydantic_errors import first_fault
from labelwise.base.table_files import matrix_of_lists, with_text
from labelwise.base.text import counted, first_line, one_line_of
from labelwise.calibration.auto import link_from_spec, link_to_spec
from labelwise.decide import Evidence, Rule
from labelwise.errors import CheckpointError, DataError, LabelwiseError, SettingsError
from labelwise.links import Link, check_log_probs
from labelwise.taxonomy import AttributeColumns, Settled
from labelwise.types import LabelSpace, matching_columns

FORMAT = 1


@dataclass(frozen=True, eq=False)
class Predictions:
    """Logits (N, K) with labels (N, K), which of them are known, and the link of the logits.

    All are NumPy arrays; tensors that are given are copied to the host.

    ``observed is None`` means that every label is known; ``link is None`` that the logits only
    rank labels until a calibrator gives them a link. ``group`` (N,) names what a photo belongs to,
    such as its patient or its site: photos of one group are alike, and stay together.
    """

    ids: Sequence[str]
    logits: Floats
    labels: Values
    observed: NDArray[np.bool_] | None
    names: tuple[str, ...]
    split: str
    link: Link | None = None
    group: Sequence[str] | None = None

    def __post_init__(self) -> None:
        for field in ("logits", "labels", "observed"):
            if is_tensor(getattr(self, field)):
                object.__setattr__(self, field, to_numpy(getattr(self, field)))
        shape = (len(self.ids), len(self.names))
        for field in ("logits", "labels", "observed"):
            value = getattr(self, field)
            if value is not None and value.shape != shape:
                raise ValueError(f"{field} must have shape {shape}, got {tuple(value.shape)}")
        if self.observed is not None and self.observed.dtype != np.bool_:
            raise ValueError(f"observed must be boolean, got {self.observed.dtype}")
        if self.group is not None and len(self.group) != len(self.ids):
            raise ValueError(f"group must name {len(self.ids)} groups, got {len(self.group)}")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def majority(self) -> NDArray[np.bool_]:
        """The labels as booleans, soft ones cut at 1/2: what rules, promises and queries read."""
        return self.labels > 0.5

    def settled(self, columns: AttributeColumns) -> "tuple[Predictions, Settled]":
        """Return the rows with their labels as groups that exclude each other leave them."""
        settled = columns.settled(self.labels.astype(np.float64), self.observed)
        labels = np.where(settled.observed, settled.labels, 0.0).astype(self.labels.dtype)
        known = None if settled.observed.all() else settled.observed
        return replace(self, labels=labels, observed=known), settled

    @cached_property
    def groups(self) -> Groups | None:
        """The groups of the photos; None where each photo stands for itself."""
        groups = None if self.group is None else Groups.of(self.group)
        return None if groups is None or groups.are_photos else groups

    def refuse_shared_groups(self, fitted_on: "Predictions", what: str) -> None:
        """Raise a DataError, with ``what`` would be wrong, if a group has photos on both sides."""
        if self.group is None or fitted_on.group is None:
            return
        if shared := set(self.group) & set(fitted_on.group):
            raise DataError(
                f"photos of a group must stay together, but {counted(len(shared), 'group')} can be "
                f"found on both sides, first {min(shared)!r}: {what}; divide the photos by group"
            )

    def log_probs(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return log p and log(1 - p) (N, K) in float64."""
        return self._own_link().log_probs(self.logits.astype(np.float64))

    def probs(self) -> NDArray[np.float64]:
        """Return the probabilities (N, K) in float64."""
        return self._own_link()(self.logits.astype(np.float64))

    def decision_probs(self) -> NDArray[np.float32]:
        """Return the probabilities (N, K) that rules are fitted and applied to."""
        return self._own_link().decision_probs(self.logits)

    def _own_link(self) -> Link:
        if self.link is None:
            way_out = "calibrate them first, for example with --calibrator platt"
            raise SettingsError(f"these scores only rank labels, without probabilities; {way_out}")
        return self.link

    def sets(self, rule: Rule) -> NDArray[np.bool_]:
        """Return the label sets (N, K) that a rule chooses."""
        return rule(self.decision_probs())

    def evidence(self, *, photos: str, fitted_on: Iterable[str] = ()) -> Evidence:
        """Return these rows as evidence for guarantees; ids in ``fitted_on`` are an error."""
        return Evidence.read(
            self.decision_probs(),
            self.majority,
            self.observed,
            names=self.names,
            ids=self.ids,
            fitted_on=fitted_on,
            photos=photos,
            groups=self.groups,
        )

    def certain(self) -> NDArray[np.bool_] | None:
        """Return which labels are known to be 0 or 1, (N, K); None if all are."""
        soft = (self.labels > 0) & (self.labels < 1)
        if not soft.any():
            return self.observed
        return ~soft if self.observed is None else self.observed & ~soft

    def has_soft_labels(self) -> bool:
        """Return whether a known label lies strictly between 0 and 1."""
        known = True if self.observed is None else self.observed
        return bool(((self.labels > 0) & (self.labels < 1) & known).any())

    def with_link(self, link: Link | None) -> "Predictions":
        return replace(self, link=link)

    def take(self, rows: NDArray[np.intp]) -> "Predictions":
        return replace(
            self,
            ids=[self.ids[row] for row in rows],
            logits=self.logits[rows],
            labels=self.labels[rows],
            observed=None if self.observed is None else self.observed[rows],
            group=None if self.group is None else [self.group[row] for row in rows],
        )

    def with_columns(self, names: tuple[str, ...], *, of: str, source: str) -> "Predictions":
        """Return the columns in the order of ``names``, which must be the same labels."""
        columns = matching_columns(names, self.names, of=of, in_=source)
        return replace(
            self,
            names=names,
            logits=self.logits[:, columns],
            labels=self.labels[:, columns],
            observed=None if self.observed is None else self.observed[:, columns],
        )

    def joined(self, other: "Predictions") -> "Predictions":
        """Return the rows of these and other predictions of the same model, with this link."""
        if other.names != self.names:
            got = f"got {self.names}, {other.names}"
            raise ValueError(f"predictions must share their labels, {got}")
        observed = group = None
        if self.observed is not None or other.observed is not None:
            pairs = ((table.observed, table.labels.shape) for table in (self, other))
            observed = np.concatenate([np.ones(s, bool) if o is None else o for o, s in pairs])
        if self.group is not None and other.group is not None:
            group = [*self.group, *other.group]
        return replace(
            self,
            ids=[*self.ids, *other.ids],
            logits=np.concatenate([self.logits, other.logits]),
            labels=np.concatenate([self.labels, other.labels]),
            observed=observed,
            split=f"{self.split} and {other.split}",
            group=group,
        )

    def save(self, path: Path) -> None:
        """Write the Parquet file; an interrupted write leaves the old file whole."""
        with np.errstate(over="ignore"):
            logits = self.logits.astype(np.float32)
        if (np.isinf(logits) & np.isfinite(self.logits)).any():
            largest = float(np.abs(self.logits).max())
            raise DataError(f"{path}: logits must lie in the range of float32, got {largest:.3g}")
        columns = {
            "id": pa.array(list(self.ids), pa.string()),
            "logits": _to_lists(logits),
            "labels": _to_lists(self.labels),
        }
        if self.observed is not None:
            columns["observed"] = _to_lists(self.observed)
        if self.group is not None:
            columns["group"] = pa.array(list(self.group), pa.string())
        facts = {
            "format": FORMAT,
            "names": self.names,
            "split": self.split,
            "link": None if self.link is None else link_to_spec(self.link),
        }
        table = pa.table(columns).replace_schema_metadata({"labelwise": json.dumps(summed(facts))})
        with replacing(Path(path)) as temporary:
            pq.write_table(table, temporary, write_page_checksum=True)

    @staticmethod
    def load(path: Path, *, with_link: bool = True) -> "Predictions":
        """Return the predictions saved at ``path``; who has the link already needs no other."""
        table, stated = _opened(path)
        with _usable(path):
            facts = PredictionsFacts.model_validate(stated)
            names = LabelSpace(facts.names).names
            columns = {
                name: matrix_of_lists(table[name], len(names), name)
                for name in ("logits", "labels", "observed")
                if name in table.column_names
            }
            made = Predictions(
                _texts(table, "id"),
                columns["logits"].astype(np.float32),
                columns["labels"],
                columns.get("observed"),
                names,
                facts.split,
                _made_link(facts.link, names) if facts.link is not None and with_link else None,
                _texts(table, "group") if "group" in table.column_names else None,
            )
            for row in np.flatnonzero(np.isnan(made.logits).any(axis=1))[:1].tolist():
                raise DataError(f"logits: row {row + 1} must hold numbers, got nan")
            unseen = False if made.observed is None else ~made.observed
            odd = ~(((made.labels >= 0) & (made.labels <= 1)) | unseen).all(axis=1)
            for row in np.flatnonzero(odd)[:1].tolist():
                rule = f"row {row + 1} must hold numbers between 0 and 1, got {made.labels[row]}"
                raise DataError(f"labels: {rule}")
            return made


def stored_ids(path: Path) -> list[str]:
    """Return the ids of a predictions file, and read nothing else of it."""
    table, _ = _opened(path, ["id"])
    with _usable(path):
        return _texts(table, "id")


@contextmanager
def _usable(path: Path) -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        raise CheckpointError(f"{path}: metadata {first_fault(error)}") from None
    except (LabelwiseError, KeyError, TypeError, ValueError) as error:
        reason = one_line_of(error)
        raise CheckpointError(f"{path} is not a usable predictions file: {reason}") from None


class PredictionsFacts(BaseModel):
    """What the metadata of a predictions file states."""

    model_config = ConfigDict(strict=True)

    names: tuple[str, ...] = Field(strict=False)
    split: str
    link: dict[str, object] | None


def _opened(path: Path, columns: list[str] | None = None) -> tuple[pa.Table, dict[str, object]]:
    """Return the table, which has these columns, and what its metadata states."""
    try:
        require_regular(path)
        # read_table does the same by pyarrow.dataset, which takes long to import
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read(columns)
        with_text(table, path)
        read = json.loads((table.schema.metadata or {})[b"labelwise"])
        stated: dict[str, object] = (
            read if isinstance(read, dict) else {"format": type(read).__name__}
        )
        whole = without_sum(stated)
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except KeyError:
        way_out = "predictions are written by `labelwise train`"
        raise CheckpointError(
            f"{path} is a Parquet file without labelwise metadata; {way_out}"
        ) from None
    except (pa.ArrowException, OSError, ValueError, RecursionError) as error:
        reason = first_line(error)
        raise CheckpointError(f"{path} is not a readable predictions file: {reason}") from None
    if stated.get("format") != FORMAT:
        got = f"got {stated.get('format')!r:.40}; write it again with this version"
        raise CheckpointError(f"{path} must have format {FORMAT}, {got}")
    if whole is None:
        raise CheckpointError(f"{path} is damaged: its metadata is not what was written")
    for name in columns or ("id", "logits", "labels"):
        if name not in table.column_names:
            reason = f"there is no column {name!r}, got {', '.join(table.column_names)}"
            raise CheckpointError(f"{path} is not a usable predictions file: {reason}")
    return table, whole


def _made_link(spec: dict[str, object], names: Sequence[str]) -> Link:
    """Return the link if it can be used with so many labels; one row is enough to see it."""
    link = link_from_spec(spec)
    try:
        check_log_probs(*link.log_probs(np.zeros((1, len(names)))))
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
        raise DataError(f"the link does not fit {len(names)} labels") from None
    return link


def _texts(table: pa.Table, name: str) -> list[str]:
    values: list[str] = table[name].to_pylist()
    if not all(isinstance(value, str) for value in values):
        raise DataError(f"{name} must be a column of text without empty cells")
    return values


def _to_lists(matrix: Values) -> pa.FixedSizeListArray:
    return pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), matrix.shape[1])
