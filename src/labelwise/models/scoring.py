"""The one inference engine: images in, batches of answers out.

    images --decoders--> uint8 pixels --device--> logits --link--> log p, log(1 - p) --rule--> sets

Rows come in order and each exactly once: answered, or failed with its reason. Link and rule are
applied on the CPU in float64, as they were fitted: in float32 a probability can fall on the other
side of its threshold.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.base.names import Names
from labelwise.decide import Rule
from labelwise.errors import ImageError, LabelwiseError, SettingsError
from labelwise.links import Link, check_log_probs, consistent_log_probs
from labelwise.models.answer_files import NOT_FINITE, Answer
from labelwise.pictures import FeatureRows, ImageSource
from labelwise.pictures.batches import read_ahead
from labelwise.pictures.duplicates import looks_of
from labelwise.pictures.inputs import Failure
from labelwise.pictures.loading import Decode, Inputs, PictureReader
from labelwise.pictures.prefetch import started_ahead
from labelwise.pictures.transform import Transform
from labelwise.taxonomy import LabelTree, Taxonomy
from labelwise.types import LabelSpace

# On a GPU a CUDA graph launches all kernels of a network with one call: launched one by one, each
# waits for Python's lock, which the threads that feed the GPU hold.


Network = Callable[[Tensor], tuple[Tensor, ...]]


Waiting = Callable[[], tuple[Tensor, ...]]


def launch(values: tuple[Tensor, ...], device: torch.device) -> Waiting:
    """Begin to copy values to the host; return what waits for them, where a GPU computes them."""
    if device.type != "cuda":
        hosts = [value.to("cpu") for value in values]
        return lambda: tuple(hosts)
    hosts = [torch.empty_like(value, device="cpu", pin_memory=True) for value in values]
    for host, value in zip(hosts, values, strict=True):
        host.copy_(value, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record(torch.cuda.current_stream(device))  # type: ignore[no-untyped-call]

    def wait() -> tuple[Tensor, ...]:
        copied.synchronize()
        return tuple(host.clone() for host in hosts)  # pinned memory is scarce

    return wait


def captured(network: Network, example: Tensor) -> Network:
    """Return the network as a CUDA graph for inputs that lie in memory as the example does."""
    try:
        held = example.clone(memory_format=torch.preserve_format)
        with torch.cuda.device(held.device):
            current = torch.cuda.current_stream()
            beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            beside.wait_stream(current)
            with torch.cuda.stream(beside):
                network(held)  # libraries set themselves up, constants are sent
            current.wait_stream(beside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                outputs = network(held)
    except RuntimeError:  # it waits for the GPU, or the memory does not suffice
        torch.cuda.synchronize(example.device)
        return network

    def layout(values: Tensor) -> tuple[object, ...]:
        return values.shape, values.stride(), values.dtype, values.device

    def replayed(inputs: Tensor) -> tuple[Tensor, ...]:
        if layout(inputs) != layout(held):
            return network(inputs)
        held.copy_(inputs)
        graph.replay()
        return tuple(value.clone() for value in outputs)  # the next batch is written over them

    return replayed


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread of the CPU inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


PICTURES_AT_ONCE = 8  # on a CPU: as fast as more, in less memory
WORTH_CAPTURING = 16  # batches on a GPU: to capture a network takes as long as some of them


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

    @property
    def device(self) -> torch.device:
        """Where ``logits`` wants its inputs."""

    def logits(self, inputs: Tensor) -> Tensor:
        """Return float32 logits (N, K) of pixels (N, 3, size, size), bands or features (N, D)."""


class DeployedModel(Scorer, Protocol):
    """A scorer as it was saved or exported, of any runtime."""

    @property
    def taxonomy(self) -> Taxonomy | None:
        """Which label is a kind of which, where its answers obey that."""

    @property
    def caution(self) -> str | None:
        """What must stand beside every probability of this model, None if nothing must."""

    def fused(self, images: int = ...) -> "DeployedModel":
        """Return a model that answers faster, if that is worth it for so many images."""


@runtime_checkable
class Embedder(Protocol):
    """A scorer that can also say where images lie: near each other where they look alike."""

    def embed(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (N, K) and pooled features of the backbone (N, D), float32."""


@dataclass(frozen=True, eq=False)
class Inferred:
    """What a network makes of one batch: ``values`` (one row for each of ``rows``) on the CPU."""

    rows: NDArray[np.int64]
    values: tuple[Tensor, ...]
    failures: tuple[Failure, ...] = ()


@dataclass(frozen=True, eq=False)
class Scored:
    """Answers for a batch: ``rows``, ``ids`` and arrays of those with one, and the failures.

    ``logits`` (n, K) are float32, ``log_p`` and ``log_q`` = log(1 - p) float64, ``sets`` boolean,
    all on the CPU; ``embeddings`` (n, D) are there if they were asked for, and then ``looks`` of
    pictures too (:func:`labelwise.pictures.duplicates.looks_of`).
    """

    space: LabelSpace
    rows: NDArray[np.int64]
    ids: tuple[str, ...]
    logits: Tensor
    log_p: Tensor
    log_q: Tensor
    sets: Tensor
    failures: tuple[Failure, ...] = ()
    embeddings: Tensor | None = None
    looks: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def probs(self) -> Tensor:
        return self.log_p.exp()

    @property
    def probabilities(self) -> NDArray[np.float64]:
        values: NDArray[np.float64] = self.probs.numpy()
        return values

    def to_frame(self) -> Any:
        try:
            from pandas import DataFrame
        except ImportError:
            raise SettingsError("to_frame needs pandas: pip install pandas") from None
        return DataFrame(self.probabilities, index=list(self.ids), columns=list(self.space.names))

    @property
    def labels(self) -> list[tuple[str, ...]]:
        """The label names of each set, surest first."""
        names = self.space.names
        order = self.log_p.argsort(dim=1, descending=True, stable=True)
        chosen = self.sets.gather(1, order)
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
            return torch.cat(values) if values else None

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
    decode: Decode = "cpu",
    reader: PictureReader | None = None,
) -> Generator[Scored]:
    """Yield the answers of a model for images, batch by batch.

    ``rows`` (increasing) chooses some of the images; ``workers`` threads, or processes for a
    GPU, decode, by default one per core; with ``embed`` the pooled features of the backbone come
    too, and what pictures look like. ``decode="cuda"`` lets nvJPEG decode JPEGs on the model's
    device, with pixels a few levels off; ``auto`` does so wherever the model is on one. A
    ``reader`` reads in place of this process.
    """
    require_probabilities(scorer)
    if embed and not isinstance(scorer, Embedder):
        raise TypeError(f"{type(scorer).__name__} gives no embeddings; it has no method embed")

    def network(inputs: Tensor) -> tuple[Tensor, ...]:
        if embed and isinstance(scorer, Embedder):
            answers = scorer.embed(inputs)
            return (*answers, looks_of(inputs)) if inputs.ndim == 4 else answers
        return (scorer.logits(inputs),)

    parts = infer(
        network,
        images,
        scorer.transform,
        rows=rows,
        batch_size=batch_size,
        workers=workers,
        device=scorer.device,
        decode=decode,
        reader=reader,
    )
    names, empty = Names(images.ids), torch.empty(0, len(scorer.space))
    with closing(parts):
        for batch in parts:
            logits, *more = batch.values or (empty,)
            with one_thread() if scorer.device.type == "cuda" else nullcontext():
                answers = scored(
                    scorer,
                    logits,
                    batch.rows,
                    list(names.take(batch.rows)),
                    failures=batch.failures,
                    embeddings=more[0] if more else None,
                    looks=more[1] if len(more) > 1 else None,
                )
            yield answers


@torch.no_grad()
def obeying(answers: Scored, tree: LabelTree, rule: Rule) -> Scored:
    """Return answers that obey a taxonomy: the nearest probabilities, and sets with all parents."""
    log_p, log_q = consistent_log_probs(answers.log_p, answers.log_q, tree)
    sets = tree.closed(rule(log_p.exp().float()))
    return replace(answers, log_p=log_p, log_q=log_q, sets=sets)


@torch.no_grad()
def scored(
    scorer: Scorer,
    logits: Tensor,
    rows: NDArray[np.int64] | None = None,
    ids: Sequence[str] | None = None,
    *,
    failures: Iterable[Failure] = (),
    embeddings: Tensor | None = None,
    looks: Tensor | None = None,
) -> Scored:
    """Return what a model's link and rule say of logits (n, K); those not finite are failures."""
    link = require_probabilities(scorer)
    labels = len(scorer.space.names)
    if logits.ndim != 2 or logits.shape[1] != labels:
        raise ValueError(f"logits must have {labels} columns, got shape {tuple(logits.shape)}")
    logits = logits.detach().cpu().float()
    rows = np.arange(len(logits)) if rows is None else rows
    names = [f"{row:06d}" for row in rows.tolist()] if ids is None else list(ids)
    whole = logits.isfinite().all(dim=1)
    lost = [
        Failure(int(rows[at]), names[at], f"{names[at]}: {NOT_FINITE}")
        for at in (~whole).nonzero().flatten().tolist()
    ]
    if lost:
        kept = whole.nonzero().flatten()
        logits, rows = logits[kept], rows[kept.numpy()]
        names = [names[at] for at in kept.tolist()]
        embeddings = None if embeddings is None else embeddings[kept]
        looks = None if looks is None else looks[kept]
    log_p, log_q = check_log_probs(*link.log_probs(logits.double()))
    every = sorted([*failures, *lost], key=lambda failure: failure.row)
    return Scored(
        scorer.space,
        rows,
        tuple(names),
        logits,
        log_p,
        log_q,
        scorer.rule(log_p.exp().float()),  # as link.decision_probs, which it was fitted to
        tuple(every),
        embeddings,
        looks,
    )


def require_probabilities(scorer: Scorer) -> Link:
    """Return the link of a model; one that only ranks labels says what to do."""
    if scorer.link is None:
        raise LabelwiseError(
            "this model ranks labels and has no probabilities; "
            "calibrate it first with `labelwise calibrate`"
        )
    return scorer.link


def infer(
    network: Network,
    images: ImageSource,
    transform: Transform,
    *,
    rows: Sequence[int] | NDArray[np.int64] | None = None,
    batch_size: int = 64,
    workers: int | None = None,
    device: torch.device | str = "cpu",
    decode: Decode = "cpu",
    reader: PictureReader | None = None,
) -> Generator[Inferred]:
    """Yield what ``network`` makes of images, batch by batch, in the order of the rows."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be positive, got {batch_size}")
    device = torch.device(device)
    chosen = np.arange(len(images)) if rows is None else np.asarray(rows, dtype=np.int64)
    batches = [chosen[at : at + batch_size] for at in range(0, len(chosen), batch_size)]

    on_gpu = device.type == "cuda"
    if on_gpu and len(batches) > WORTH_CAPTURING and not isinstance(images, FeatureRows):
        shape = batch_size, transform.channels, transform.size, transform.size
        whole = torch.zeros(shape, dtype=transform.dtype, device=device)
        with torch.inference_mode():
            network = captured(network, whole.contiguous(memory_format=torch.channels_last))

    whole_rows = batch_size if len(batches) > 1 else 0

    def launched(batch: Inputs) -> tuple[Inputs, Waiting]:
        with torch.inference_mode():
            values = _in_parts(network, batch.values, whole_rows) if len(batch.rows) else ()
            return batch, launch(values, device)

    here = partial(read_ahead, workers=workers, decode=decode)
    with closing((reader or here)(images, transform, batches, device=device)) as inputs:
        for batch, wait in started_ahead(inputs, launched, 1 if on_gpu else 0):
            yield Inferred(batch.rows, wait(), tuple(batch.failures))


def _in_parts(network: Network, values: Tensor, whole_rows: int) -> tuple[Tensor, ...]:
    """Return what a network makes of inputs on its device; on a CPU, of some pictures at a time.

    A GPU gets batches of ``whole_rows``: to plan convolutions of another size takes cuDNN seconds.
    """
    rows = len(values)
    if values.is_cuda and values.ndim == 4 and rows < whole_rows:
        padded = torch.cat([values, values[:1].expand(whole_rows - rows, -1, -1, -1)])
        padded = padded.contiguous(memory_format=torch.channels_last)
        return tuple(value[:rows] for value in network(padded))
    if values.is_cuda or values.ndim != 4:
        return network(values)
    starts = range(0, rows, PICTURES_AT_ONCE)
    parts = [network(values[at : at + PICTURES_AT_ONCE]) for at in starts]
    return tuple(torch.cat(some) for some in zip(*parts, strict=True))


def raise_failure(part: Inferred | Scored) -> None:
    """Raise the first failure of a batch, for those who cannot go on without an image."""
    if part.failures:
        raise ImageError(part.failures[0].reason)
