"""The values that travel between layers: Targets, Outputs, LabelSpace, DatasetFacts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING

from labelwise.errors import DataError

if TYPE_CHECKING:  # tables of labels are read without torch, which takes seconds to import
    from torch import Tensor


@dataclass(frozen=True)
class Targets:
    """What is known of a batch: labels (B, K) in [0, 1], which entries are observed, row numbers.

    ``observed is None`` means everything is known. An unobserved entry leaves sums and
    denominators, whatever its label says. ``index`` (B,) numbers the rows of the training set.
    """

    labels: "Tensor"
    observed: "Tensor | None" = None
    index: "Tensor | None" = None

    def rows(self, chosen: slice) -> "Targets":
        return self.each(lambda values: values[chosen])

    def each(self, change: "Callable[[Tensor], Tensor]") -> "Targets":
        observed = None if self.observed is None else change(self.observed)
        index = None if self.index is None else change(self.index)
        return Targets(change(self.labels), observed, index)


@dataclass(frozen=True)
class Outputs:
    """What a head returns: logits (B, K), and named extra outputs such as ``proposal``."""

    logits: "Tensor"
    aux: "Mapping[str, Tensor]" = field(default_factory=dict)


@dataclass(frozen=True)
class DatasetFacts:
    """What an objective or a head may need to know of the training set before it is built.

    ``priors`` are the shares of labels among images in which they are known, ``known_present``
    among all images, those in which they are unknown counted as absent.
    """

    num_images: int
    num_labels: int
    mean_labels: float
    priors: tuple[float, ...] | None = None
    known_present: tuple[float, ...] | None = None

    def known_shares(self) -> tuple[float, ...] | None:
        """Return ``priors``, but 1/2 for a label that some images do not know and none lacks.

        Where only presences are written down, the share among known labels is 1 and says nothing.
        """
        if self.priors is None or self.known_present is None:
            return self.priors
        pairs = zip(self.priors, self.known_present, strict=True)
        return tuple(0.5 if prior == 1 > among_all else prior for prior, among_all in pairs)


@dataclass(frozen=True)
class LabelSpace:
    """The label names of a problem, in column order."""

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for name in self.names:
            if not name.strip():
                raise DataError(f"label names must not be empty, got {name!r}")
            if name in seen:
                raise DataError(f"label names must be distinct, got {name!r} twice")
            seen.add(name)

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def _columns(self) -> dict[str, int]:
        return {name: column for column, name in enumerate(self.names)}

    def column(self, name: str) -> int:
        """Return the column of a label; an unknown name says which names are nearest."""
        try:
            return self._columns[name]
        except KeyError:
            raise DataError(f"unknown label {name!r}{nearest(name, self.names)}") from None


def matching_columns(
    names: Sequence[str], there: Sequence[str], *, of: str, in_: str, others: bool = False
) -> list[int]:
    """Return the column in ``there`` of each of ``names``: labels are matched by name alone.

    Each name must be there, and nothing else unless ``others`` may. ``of`` and ``in_`` say whose
    labels these are.
    """
    sides = (names, there, of, in_), (there, names, in_, of)
    for ours, theirs, whose, where in sides[:1] if others else sides:
        for name in sorted(set(ours).difference(theirs))[:1]:
            what = f"label {name!r} of {whose} is missing"
            raise DataError(f"{where}: {what}{nearest(name, theirs)}")
    column = {name: number for number, name in enumerate(there)}
    return [column[name] for name in names]


def nearest(name: str, names: Iterable[str]) -> str:
    """Return '; did you mean ...?' with the closest names, or '; there are: ...' with the first."""
    choices = list(names)
    folded = {choice.casefold(): choice for choice in choices}
    close = get_close_matches(name.casefold(), folded, n=3, cutoff=0.5)
    if close:
        return f"; did you mean {' or '.join(repr(folded[match]) for match in close)}?"
    more = f" and {len(choices) - 8} more" if len(choices) > 8 else ""
    return f"; there are: {', '.join(map(repr, choices[:8]))}{more}"
