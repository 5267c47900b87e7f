"""Is the library of an index like the photos that its model was tested on?

What the model says of photos, their logits, is compared with what it says of the held-out ones.
Both are known wherever a model has held-out predictions, no picture is read, and the logits were
fitted on neither side. Where the features of held-out photos are kept with the model
(:class:`HeldOutPictures`), embeddings are compared too; the projection was fitted on photos of
neither side. Far are photos that are far by the ones or the others. The result stays
in ``likeness.json`` until the library has grown or shrunk by more than a tenth, or the model
changed. The file holds its own hash: a damaged one is made anew.

Of near-duplicates in the library one is compared, so that bursts do not alarm. Where held-out
photos come in groups, one of each is compared. The groups of a library are not
known, and a library of few long bursts looks different by chance. So where all photos differ and
there are folders enough, one photo of each folder is compared instead: photos differ only if these
do, too.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from labelwise.decide import Evidence
from labelwise.errors import CheckpointError, DataError, LabelwiseError
from labelwise.metrics.shift import (
    FEWEST,
    Likeness,
    PointsOfPhotos,
    audit_order,
    compare_photos,
    far_points,
    held_out_shares,
)
from labelwise.numeric.duplicates import first_near
from labelwise.photos.index import LIKENESS_FILE, Index
from labelwise.pictures import ImageSource
from labelwise.pictures.fingerprint import NEAR
from labelwise.predictions import Predictions
from labelwise.system.files import replacing
from labelwise.system.progress import Watch

if TYPE_CHECKING:  # searches do without torch, which takes seconds to import
    import torch

    from labelwise.models import Predictor
    from labelwise.models.run_folder import RunFolder
    from labelwise.models.scoring import Scored

PICTURES_FILE = "held-out-pictures.safetensors"
SAMPLE = 500
FEWEST_FITTED = 50  # photos that set a projection

Halves = NDArray[np.float16]
SHARE_PHOTOS = 4096  # whose probabilities tell the shares
FOLDER_PHOTOS = 1 << 14  # among which one of each folder is sought
REFERENCE_PHOTOS = 1000  # held-out photos that others are near to or far from
ROWS_AT_ONCE = 1 << 14
FAR_KEPT = 1000
GROWTH = 0.1


@dataclass(frozen=True)
class LibraryLikeness:
    """How like a library is to the held-out photos, and which of its photos are far from all.

    ``rows`` is how many photos the library had, ``far`` how many of them are far; ``far_rows`` are
    the farthest of these, the farthest first. ``embedded`` is how many held-out photos were
    compared by their embeddings too, ``copies`` how many photos are near copies of one of these.
    ``grouped`` says that the held-out photos come in groups, of each of which one was compared, and
    ``folders`` of how many folders one photo each was; 0 where photos of any folder were. ``known``
    is what the held-out photos are called: see :attr:`IndexFacts.known`.
    """

    likeness: Likeness
    rows: int
    far: int = 0
    far_rows: tuple[int, ...] = ()
    embedded: int = 0
    copies: int = 0
    grouped: bool = False
    folders: int = 0
    known: str = "held-out"

    def sentence(self) -> str:
        """Return what a person should know of it, and what to do."""
        words = self.likeness.sentence(self.known)
        if self.folders:
            words += f" Of each of {self.folders:,} folders one photo was compared."
        elif self.grouped and self.likeness.outcome in ("shares differ", "pictures differ"):
            words += (
                f" The {self.known} photos come in groups; a library of few groups may look "
                "different by chance."
            )
        if self.likeness.outcome == "pictures differ" and self.far:
            words += f" {self.far:,} of {self.rows:,} photos are far from every {self.known} one."
        if self.copies:
            words += (
                f" {self.copies:,} of {self.rows:,} photos are near copies of {self.known} ones "
                f"({self.embedded:,} compared)."
            )
        return words


@dataclass(frozen=True)
class SealedLikeness:
    """What ``likeness.json`` holds: what was found, and the hash of it."""

    found: LibraryLikeness
    hash: str

    @classmethod
    def of(cls, found: LibraryLikeness) -> "SealedLikeness":
        """Return what is written for it."""
        digest = hashlib.blake2b(FOUND.dump_json(found), digest_size=16)
        return cls(found, digest.hexdigest())


FOUND, SEALED = TypeAdapter(LibraryLikeness), TypeAdapter(SealedLikeness)


def likeness_of(index: Index, rows: NDArray[np.int64] | None = None) -> LibraryLikeness:
    """Return how like the library is to the held-out photos, compared anew where it changed.

    Some ``rows`` of it are compared each time, and far ones are not looked for.
    """
    if rows is not None:
        return _compared(index, rows, far=False)
    path = index.folder / LIKENESS_FILE
    try:
        read = SEALED.validate_json(path.read_bytes())
        known = read.found if read == SealedLikeness.of(read.found) else None
    except (OSError, ValidationError):
        known = None
    if known is not None and abs(index.photos - known.rows) <= GROWTH * known.rows:
        return known
    comparison = _compared(index, index.store.alive_rows())
    try:
        with replacing(path) as temporary:
            temporary.write_bytes(SEALED.dump_json(SealedLikeness.of(comparison), indent=2))
    except OSError:  # an index that may only be read
        pass
    return comparison


def evidence_of(index: Index) -> Evidence:
    """Return held-out photos that fitted nothing; an error where there are none."""
    held_out = index.held_out_photos
    if held_out is None and index.spec.answers is not None:
        raise DataError(
            f"a promise needs answered photos that were set aside, and the model of "
            f"{index.folder} has none; answer photos, then `labelwise train PHOTOS --words "
            "WORDS --answers TABLE --set-aside 0.3`, and index again with --rebuild"
        )
    if held_out is None or not index.facts.may_promise:
        raise DataError(
            f"a promise needs photos that fitted nothing, and the model of {index.folder} has "
            "none; train it with a split test or promise, then index again"
        )
    return held_out.evidence(f"{index.facts.held_out} photos of the model")


def _compared(index: Index, alive: NDArray[np.int64], *, far: bool = True) -> LibraryLikeness:
    held_out, link = index.held_out, index.spec.made_link
    if held_out is None or link is None:
        lacks = "the model has no predictions of held-out photos"
        reason = lacks if held_out is None else "the model has no probabilities; calibrate it"
        return LibraryLikeness(Likeness("unknown", 0, len(alive), reason=reason), len(alive))
    kept, grouped = np.arange(len(held_out)), held_out.groups is not None
    if held_out.groups is not None:  # the comparison deals single photos to both sides
        kept = held_out.groups.one_of_each()
        held_out = held_out.take(kept)
    known = index.facts.known
    ordered = alive[np.argsort(audit_order("likeness", alive))[:FOLDER_PHOTOS]]
    distinct = _distinct(index, ordered[:SHARE_PHOTOS])
    if min(len(held_out), len(distinct)) < FEWEST:
        few = Likeness("unknown", len(held_out), len(distinct))
        return LibraryLikeness(few, len(alive), known=known)
    pictures = _pictures(index, kept)
    own_probs: NDArray[np.float64] = link(held_out.logits.astype(np.float64))
    observed = held_out.observed

    def compared(rows: NDArray[np.int64]) -> Likeness:
        logits = _logits(index, rows)
        return compare_photos(
            index.space.names,
            held_out.logits.astype(np.float32),
            _labels(held_out, own_probs),
            held_out_shares(own_probs, held_out.majority, observed),
            logits,
            link(logits.astype(np.float64)),
            own_probs=own_probs,
            more=None if pictures is None else pictures.beside(index.store.embeddings()[rows]),
        )

    likeness, folders = compared(distinct), 0
    if grouped and likeness.outcome in ("shares differ", "pictures differ"):
        single = _one_of_each_folder(index, ordered)
        if len(single) >= FEWEST:
            likeness, folders = compared(single[:SHARE_PHOTOS]), len(single)
    if not far:
        return LibraryLikeness(likeness, len(alive), grouped=grouped, folders=folders, known=known)
    places = np.argsort(audit_order("likeness", np.arange(len(held_out))))[:REFERENCE_PHOTOS]
    distances = _distances(
        alive, held_out.logits.astype(np.float32)[places], partial(_logits, index)
    )
    embedded = copies = 0
    if pictures is not None:
        vectors = index.store.embeddings()
        own = _distances(alive, pictures.embeddings, lambda rows: vectors[rows].astype(np.float32))
        distances = np.maximum(distances, own)
        embedded = len(pictures.rows)
        copies = _copies(index.store.looks(), alive, pictures.looks)
    count = int((distances > 1).sum())
    named = alive[np.argsort(-distances, kind="stable")[: min(count, FAR_KEPT)]]
    far_rows = tuple(named.tolist())
    return LibraryLikeness(
        likeness, len(alive), count, far_rows, embedded, copies, grouped, folders, known
    )


def _distinct(index: Index, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return one photo of each picture: the photos of a burst are not independent."""
    looks = index.store.looks()
    if not looks.shape[1]:
        return rows
    firsts = first_near(looks[rows].astype(np.float32), NEAR)
    return rows[np.unique(firsts)]


def _one_of_each_folder(index: Index, ordered: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first photo of each folder, of rows in an order that says nothing of them."""
    first: dict[str, int] = {}
    for position, paths in enumerate(index.store.paths_of(ordered.tolist()).values()):
        first.setdefault(os.path.dirname(paths[0]), position)
    return ordered[sorted(first.values())]


@dataclass(frozen=True, eq=False)
class _Pictures:
    """Held-out photos by their embeddings (n, D) and looks (n, W); ``rows`` are theirs."""

    rows: NDArray[np.int64]
    embeddings: NDArray[np.float32]
    looks: NDArray[np.float32]

    def beside(self, photos: NDArray[np.float16]) -> PointsOfPhotos:
        """Return the embeddings of both sides, to be compared."""
        return PointsOfPhotos(self.rows, self.embeddings, photos.astype(np.float32))


def _pictures(index: Index, kept: NDArray[np.int64]) -> _Pictures | None:
    """Return the held-out photos among the rows ``kept`` whose pictures are known, if enough are.

    Their rows are places in ``kept``.
    """
    projection = index.embeddings.projection
    if projection is None:
        return None
    held_out_pictures = HeldOutPictures.load(index.folder / PICTURES_FILE)
    if held_out_pictures is None or held_out_pictures.weights_sha256 != index.spec.weights_sha256:
        return None
    there = np.isin(held_out_pictures.rows, kept)
    if there.sum() < FEWEST:
        return None
    rows = np.searchsorted(kept, held_out_pictures.rows[there])
    features = held_out_pictures.features[there].astype(np.float32)
    return _Pictures(
        rows,
        projection(features).astype(np.float32),
        held_out_pictures.looks[there].astype(np.float32),
    )


def _copies(
    looks: NDArray[np.float16], alive: NDArray[np.int64], held_out: NDArray[np.float32]
) -> int:
    """Return how many photos look like a held-out one."""
    if not looks.shape[1] or not held_out.shape[1]:
        return 0
    near = 0
    for start in range(0, len(alive), ROWS_AT_ONCE):
        block = looks[alive[start : start + ROWS_AT_ONCE]].astype(np.float32)
        near += int(((block @ held_out.T).max(axis=1) >= NEAR).sum())
    return near


def _labels(held_out: Predictions, probs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the labels, with probabilities where they are not known."""
    labels: NDArray[np.float64] = held_out.labels.astype(np.float64)
    if held_out.observed is None:
        return labels
    return np.where(held_out.observed, labels, probs)


def _distances(
    alive: NDArray[np.int64],
    reference: NDArray[np.float32],
    points: Callable[[NDArray[np.int64]], NDArray[np.float32]],
) -> NDArray[np.float32]:
    """Return how far photos are from every held-out one, by their points; above 1 they are far."""
    parts = [
        far_points(reference, points(alive[start : start + ROWS_AT_ONCE]))
        for start in range(0, len(alive), ROWS_AT_ONCE)
    ]
    return np.concatenate(parts)


def _logits(index: Index, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    columns = [index.store.column(label)[rows] for label in range(len(index.space))]
    return np.stack(columns, axis=1).astype(np.float32)


# What the held-out photos of a model look like to its backbone: features of at most SAMPLE of them,
# and of as many photos that it was fitted on. These set the projection of an index: a map that was
# fitted on one of the two sides that are compared would make them look different.


@dataclass(frozen=True, eq=False)
class HeldOutPictures:
    """Features (n, D) and looks (n, W) of the ``rows`` of held-out predictions, and ``fitted``.

    ``fitted`` (m, D) are features of photos that the model was fitted on; W is 0 for a model of
    stored features.
    """

    rows: NDArray[np.int64]
    features: Halves
    looks: Halves
    fitted: Halves
    weights_sha256: str

    @classmethod
    def of_run(
        cls, run: "RunFolder", weights: str, predictor: "Predictor", watch: Watch
    ) -> "HeldOutPictures | None":
        """Return what is kept with a run of these weights, made if need be.

        None where its photos are not there.
        """
        path = run.path / PICTURES_FILE
        kept = cls.load(path)
        if kept is not None and kept.weights_sha256 == weights:
            return kept
        if not run.settings_path.is_file():  # a model that was copied out of its run
            return None
        try:
            made = cls._made(run, weights, predictor, watch)
        except (LabelwiseError, LookupError, OSError):
            return None
        if made is not None:
            try:
                made.save(path)
            except OSError:  # a folder that may only be read
                return made
        return made

    @classmethod
    def _made(
        cls, run: "RunFolder", weights_sha256: str, predictor: "Predictor", watch: Watch
    ) -> "HeldOutPictures | None":
        import torch

        from labelwise.models.seen_photos import own_table

        held_out, table = run.ids(*run.held_out_splits), own_table(run)
        if not held_out or table.images.blocks is not None:
            return None
        apart = {name: row for row, name in enumerate(held_out)}
        places = np.array([row for row, name in enumerate(table.ids) if name in apart], np.int64)
        trained = set(run.ids("train"))
        fitted = [row for row, name in enumerate(table.ids) if name in trained]
        sides = [_sample("held-out", places), _sample("fitted", np.array(fitted, np.int64))]
        if len(sides[1]) < FEWEST_FITTED or not len(sides[0]):
            return None
        watch.start("looking at photos of the model", sum(map(len, sides)))
        own = _scored(predictor, table.images, sides[0], watch)
        others = _scored(predictor, table.images, sides[1], watch)
        watch.finish()
        looks = torch.empty(len(own), 0) if own.looks is None else own.looks
        return cls(
            np.array([apart[name] for name in own.ids], np.int64),
            _halves(own.embeddings),
            _halves(looks),
            _halves(others.embeddings),
            weights_sha256,
        )

    def save(self, path: Path) -> None:
        """Write the file."""
        import torch

        from labelwise.system.tensors import save_tensors

        tensors = {
            "rows": torch.from_numpy(self.rows),
            "features": torch.from_numpy(self.features),
            "looks": torch.from_numpy(self.looks),
            "fitted": torch.from_numpy(self.fitted),
            "weights": torch.frombuffer(bytearray.fromhex(self.weights_sha256), dtype=torch.uint8),
        }
        with replacing(path) as temporary:
            save_tensors(temporary, tensors)

    @staticmethod
    def load(path: Path) -> "HeldOutPictures | None":
        """Return what a file holds; None where it is not there or not whole."""
        from labelwise.system.tensors import load_tensors

        try:
            tensors = load_tensors(path)
            held_out_pictures = HeldOutPictures(
                tensors["rows"].numpy(),
                tensors["features"].numpy(),
                tensors["looks"].numpy(),
                tensors["fitted"].numpy(),
                bytes(tensors["weights"].tolist()).hex(),
            )
        except (CheckpointError, OSError, KeyError, TypeError, ValueError):
            return None
        return held_out_pictures if held_out_pictures._is_whole() else None

    def _is_whole(self) -> bool:
        """Return whether the numbers are of the kinds and sizes that belong together."""
        matrices = (self.features, self.looks, self.fitted)
        if self.rows.dtype != np.int64 or self.rows.ndim != 1 or (self.rows < 0).any():
            return False
        if any(matrix.dtype != np.float16 or matrix.ndim != 2 for matrix in matrices):
            return False
        count, width = self.features.shape
        fits = len(self.rows) == count == len(self.looks) and self.fitted.shape[1] == width
        return fits and len(self.weights_sha256) == 64 and all(map(_are_finite, matrices))


def _are_finite(values: Halves) -> bool:
    return bool(np.isfinite(values).all())


def _sample(name: str, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return some of the rows at random, in order; the same each time."""
    return np.sort(rows[np.argsort(audit_order(name, rows))[:SAMPLE]])


def _scored(
    predictor: "Predictor", images: ImageSource, rows: NDArray[np.int64], watch: Watch
) -> "Scored":
    from labelwise.models.scoring import Scored, score

    parts = []
    for scored in score(predictor, images, rows=rows.tolist(), embed=True):
        parts.append(scored)
        watch.advance(len(scored) + len(scored.failures))
    return Scored.join(parts)


def _halves(values: "torch.Tensor | None") -> Halves:
    if values is None:
        raise ValueError("photos were scored without embeddings")
    return np.asarray(values.numpy(), np.float16)
