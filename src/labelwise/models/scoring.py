"""Images in, batches of answers out, by a model of any runtime.

    images --decoders--> uint8 pixels --model--> logits --link--> log p, log(1 - p) --rule--> sets

Rows come in order and each exactly once: answered, or failed with its reason. Link and rule are
applied in float64, as they were fitted: in float32 a probability can fall on the other side of its
threshold. Answers are NumPy's, whatever computed them.
"""

import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from labelwise.base.arrays import Array, Mask, Numbers, to_numpy
from labelwise.decide import Rule
from labelwise.errors import ImageError, LabelwiseError, SettingsError
from labelwise.links import Link, check_log_probs, consistent_log_probs
from labelwise.models.answer_files import NOT_FINITE, Answer
from labelwise.pictures import ImageSource, as_images
from labelwise.pictures.duplicates import looks_of
from labelwise.pictures.inputs import Failure, Mapped, mapped
from labelwise.pictures.memory import Pictures
from labelwise.pictures.transform import Transform
from labelwise.taxonomy import LabelTree, Taxonomy
from labelwise.types import LabelSpace

if TYPE_CHECKING:  # models of onnxruntime do without torch
    from labelwise.pictures.batches import Decode


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch, where it is used, compute on one thread of the CPU inside the block."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Scorer(Protocol):
    """A deployed model: how pictures become its inputs, and what its logits mean."""

    @property
    def transform(self) -> Transform:
        """How a picture becomes uint8 pixels (3, size, size), or bands (n, size, size)."""

    @property
    def space(self) -> LabelSpace:
        """The label names, in the order of the logits."""

    @property
    def link(self) -> Link | None:
        """The link of the logits, on the CPU; None if they only rank labels."""

    @property
    def rule(self) -> Rule:
        """The rule from probabilities to label sets."""

    def logits(self, inputs: Any) -> Any:
        """Return float32 logits (N, K) of pixels (N, 3, size, size), bands or features (N, D).

        A model with a ``device`` is torch's and takes tensors there; others take arrays.
        """


class DeployedModel(Scorer, Protocol):
    """A scorer as it was saved or exported, of any runtime."""

    @property
    def promises(self) -> tuple[Mapping[str, object], ...]:
        """The guarantees that were made with it."""

    @property
    def taxonomy(self) -> Taxonomy | None:
        """Which label is a kind of which, where its answers obey that."""

    @property
    def caution(self) -> str | None:
        """What must stand beside every probability of this model, None if nothing must."""

    def predict(
        self, pictures: Pictures, /, *, batch_size: int = ..., workers: int | None = ...
    ) -> "Scored":
        """Return the probabilities and label sets of pictures of any kind."""

    def for_many(self, images: int = ..., /) -> "DeployedModel":
        """Return the model for so many images, which several threads may bring."""


@runtime_checkable
class Embedder(Protocol):
    """A scorer that can also say where images lie: near each other where they look alike."""

    def embed(self, inputs: Any) -> tuple[Any, Any]:
        """Return logits (N, K) and pooled features of the backbone (N, D), float32."""


@runtime_checkable
class TorchScorer(Protocol):
    """A scorer that takes tensors, and reads images in its own way, perhaps for a GPU."""

    def inferred(
        self, network: Callable[[Any], tuple[Any, ...]], images: ImageSource, /, **how: Any
    ) -> Generator[Any]:
        """Yield what a network makes of images, batch by batch."""


@dataclass(frozen=True, eq=False)
class Scored:
    """Answers for a batch: ``rows``, ``ids`` and arrays of those with one, and the failures.

    ``logits`` (n, K) are float32, ``log_p`` and ``log_q`` = log(1 - p) float64, ``sets`` boolean,
    all NumPy's; ``embeddings`` (n, D) are there if they were asked for, and then ``looks`` of
    pictures too (:func:`labelwise.pictures.duplicates.looks_of`).
    """

    space: LabelSpace
    rows: NDArray[np.int64]
    ids: tuple[str, ...]
    logits: NDArray[np.float32]
    log_p: Numbers
    log_q: Numbers
    sets: Mask
    failures: tuple[Failure, ...] = ()
    embeddings: NDArray[np.float32] | None = None
    looks: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def probs(self) -> Numbers:
        return np.exp(self.log_p)

    probabilities = probs

    def to_frame(self) -> Any:
        try:
            from pandas import DataFrame
        except ImportError:
            raise SettingsError("to_frame needs pandas: pip install pandas") from None
        return DataFrame(self.probs, index=list(self.ids), columns=list(self.space.names))

    @property
    def labels(self) -> list[tuple[str, ...]]:
        """The label names of each set, surest first."""
        names = self.space.names
        order = np.argsort(-self.log_p, axis=1, kind="stable")
        chosen = np.take_along_axis(self.sets, order, axis=1)
        return [
            tuple(names[column] for column in columns[mask].tolist())
            for columns, mask in zip(order, chosen, strict=True)
        ]

    def answers(self, caution: str | None = None) -> Iterator[Answer]:
        """Yield one answer per image, failures among them, in the order of the rows."""
        parts = zip(self.rows.tolist(), self.ids, self.labels, self.probs.tolist(), strict=True)
        good = [
            Answer(row, name, labels, tuple(probs), caution=caution)
            for row, name, labels, probs in parts
        ]
        bad = [Answer(failure.row, failure.id, error=failure.reason) for failure in self.failures]
        yield from sorted(good + bad, key=lambda answer: answer.row)

    @staticmethod
    def join(parts: Sequence["Scored"]) -> "Scored":
        def whole(name: str) -> Any:
            values = [getattr(part, name) for part in parts if getattr(part, name) is not None]
            return np.concatenate(values) if values else None

        return Scored(
            parts[0].space,
            np.concatenate([part.rows for part in parts]),
            tuple(name for part in parts for name in part.ids),
            whole("logits"),
            whole("log_p"),
            whole("log_q"),
            whole("sets"),
            tuple(failure for part in parts for failure in part.failures),
            whole("embeddings"),
            whole("looks"),
        )


def score(
    scorer: Scorer,
    images: ImageSource,
    *,
    rows: Sequence[int] | None = None,
    batch_size: int = 64,
    workers: int | None = None,
    embed: bool = False,
    decode: "Decode" = "cpu",
) -> Generator[Scored]:
    """Yield the answers of a model for images, batch by batch.

    ``rows`` (increasing) chooses some of the images; ``workers`` threads, or processes for a
    GPU, decode, by default one per core; with ``embed`` the pooled features of the backbone come
    too, and what pictures look like. ``decode="cuda"`` lets nvJPEG decode JPEGs on the model's
    device, with pixels a few levels off; ``auto`` does so wherever the model is on one.
    """
    require_probabilities(scorer)
    if embed and not isinstance(scorer, Embedder):
        raise TypeError(f"{type(scorer).__name__} gives no embeddings; it has no method embed")

    def network(inputs: Any) -> tuple[Any, ...]:
        if embed and isinstance(scorer, Embedder):
            answers = scorer.embed(inputs)
            return (*answers, looks_of(inputs)) if inputs.ndim == 4 else answers
        return (scorer.logits(inputs),)

    parts = inferred(
        scorer,
        network,
        images,
        rows=rows,
        batch_size=batch_size,
        workers=workers,
        decode=decode,
    )
    empty = np.empty((0, len(scorer.space)), np.float32)
    with closing(parts):
        for batch in parts:
            logits, *more = batch.values or (empty,)
            on_gpu = "cuda" in str(getattr(scorer, "device", ""))
            with one_thread() if on_gpu else nullcontext():
                answers = scored(
                    scorer,
                    logits,
                    batch.rows,
                    [images.ids[row] for row in batch.rows.tolist()],
                    failures=batch.failures,
                    embeddings=more[0] if more else None,
                    looks=more[1] if len(more) > 1 else None,
                )
            yield answers


def inferred(
    scorer: Scorer,
    network: Callable[[Any], tuple[Any, ...]],
    images: ImageSource,
    *,
    rows: Sequence[int] | None = None,
    batch_size: int = 64,
    workers: int | None = None,
    decode: "Decode" = "cpu",
) -> Generator[Any]:
    """Yield what a network, such as a model's logits, makes of images, batch by batch.

    The network takes and returns tensors where the scorer is torch's, else arrays. A batch has
    ``rows``, ``values`` (one row for each of them) and ``failures``.
    """
    if isinstance(scorer, TorchScorer):
        return scorer.inferred(
            network, images, rows=rows, batch_size=batch_size, workers=workers, decode=decode
        )
    if decode == "cuda":
        raise ValueError("decode=cuda needs a model on a CUDA device; this one is on the cpu")
    some = mapped(network, images, scorer.transform, rows=rows, threads=workers)
    return joined(some, batch_size)


def joined(parts: Generator[Mapped], batch_size: int) -> Generator[Mapped]:
    """Yield batches of so many rows, or some more, from smaller ones."""
    with closing(parts):
        waiting: list[Mapped] = []
        for part in parts:
            waiting.append(part)
            if sum(len(some.rows) + len(some.failures) for some in waiting) >= batch_size:
                yield Mapped.join(waiting)
                waiting = []
        if waiting:
            yield Mapped.join(waiting)


def obeying(answers: Scored, tree: LabelTree, rule: Rule) -> Scored:
    """Return answers that obey a taxonomy: the nearest probabilities, and sets with all parents."""
    log_p, log_q = consistent_log_probs(answers.log_p, answers.log_q, tree)
    sets = tree.closed(rule(np.exp(log_p).astype(np.float32)))
    return replace(answers, log_p=log_p, log_q=log_q, sets=sets)


def scored(
    scorer: Scorer,
    logits: Array,
    rows: NDArray[np.int64] | None = None,
    ids: Sequence[str] | None = None,
    *,
    failures: Iterable[Failure] = (),
    embeddings: Array | None = None,
    looks: Array | None = None,
) -> Scored:
    """Return what a model's link and rule say of logits (n, K); those not finite are failures."""
    link = require_probabilities(scorer)
    labels = len(scorer.space.names)
    if logits.ndim != 2 or logits.shape[1] != labels:
        raise ValueError(f"logits must have {labels} columns, got shape {tuple(logits.shape)}")
    values = to_numpy(logits).astype(np.float32, copy=False)
    features = None if embeddings is None else to_numpy(embeddings)
    seen = None if looks is None else to_numpy(looks)
    rows = np.arange(len(values)) if rows is None else rows
    names = [f"{row:06d}" for row in rows.tolist()] if ids is None else list(ids)
    finite: Mask = np.asarray(np.isfinite(values).all(axis=1))
    lost = [
        Failure(int(rows[at]), names[at], f"{names[at]}: {NOT_FINITE}")
        for at in np.flatnonzero(~finite).tolist()
    ]
    if lost:
        values, rows = values[finite], rows[finite]
        names = [name for name, is_finite in zip(names, finite, strict=True) if is_finite]
        features = None if features is None else features[finite]
        seen = None if seen is None else seen[finite]
    log_p, log_q = check_log_probs(*link.log_probs(values.astype(np.float64)))
    every = sorted([*failures, *lost], key=lambda failure: failure.row)
    return Scored(
        scorer.space,
        rows,
        tuple(names),
        values,
        log_p,
        log_q,
        scorer.rule(np.exp(log_p).astype(np.float32)),  # as link.decision_probs, of its fit
        tuple(every),
        features,
        seen,
    )


def predict(
    scorer: Scorer,
    pictures: Pictures,
    *,
    batch_size: int = 64,
    workers: int | None = None,
) -> Scored:
    """Return the answers for pictures of any kind; one that cannot be read raises."""
    images = as_images(pictures, any_depth=scorer.transform.bands is not None)
    parts = []
    for part in score(scorer, images, batch_size=batch_size, workers=workers):
        raise_failure(part)
        parts.append(part)
    empty = np.empty((0, len(scorer.space)), np.float32)
    return Scored.join(parts or [scored(scorer, empty)])


def require_probabilities(scorer: Scorer) -> Link:
    """Return the link of a model; one that only ranks labels says what to do."""
    if scorer.link is None:
        raise LabelwiseError(
            "this model ranks labels and has no probabilities; "
            "calibrate it first with `labelwise calibrate`"
        )
    return scorer.link


def raise_failure(part: Any) -> None:
    """Raise the first failure of a batch, for those who need every image."""
    if part.failures:
        raise ImageError(part.failures[0].reason)
