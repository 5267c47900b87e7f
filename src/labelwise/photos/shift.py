"""Is the library of an index like the photos that its model was tested on?

Logits of the library are compared with those of held-out photos, and embeddings too where the
features of these are kept with the model. The result stays in ``likeness.json``, with its own hash,
until the library has grown or shrunk by more than a tenth, or the model changed.

Of near-duplicates, and of groups of held-out photos, one is compared. A library of few long bursts
looks different by chance: where all photos differ and there are folders enough, photos differ only
if one photo per folder does, too.
"""

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from labelwise.base.files import MOST_FACTS, read_regular, replacing, require_regular, write_text
from labelwise.base.progress import Watch
from labelwise.decide import Evidence
from labelwise.errors import DataError, LabelwiseError
from labelwise.metrics.shift import (
    FEWEST,
    Likeness,
    PointsOfPhotos,
    audit_order,
    compare_photos,
    far_points,
    held_out_shares,
)
from labelwise.models.seen_photos import trained_note
from labelwise.photos.index import LIKENESS_FILE, Index
from labelwise.photos.topk import Rows
from labelwise.pictures import ImageSource
from labelwise.pictures.duplicates import NEAR, first_near

if TYPE_CHECKING:  # searches do without torch, which takes seconds to import
    from labelwise.models import DeployedModel
    from labelwise.models.run_folder import RunFolder

PICTURES_FILE = "held-out-pictures.npz"
SAMPLE = 500
FEWEST_FITTED = 50  # photos that set a projection

Halves = NDArray[np.float16]
Floats = NDArray[np.float32]
SHARE_PHOTOS = 4096  # whose probabilities tell the shares
FOLDER_PHOTOS = 1 << 14  # among which one of each folder is sought
REFERENCE_PHOTOS = 1000  # held-out photos that others are near to or far from
ROWS_AT_ONCE = 1 << 14
FAR_KEPT = 1000
GROWTH = 0.1
KEPT_COMPARISONS = 32


@dataclass(frozen=True)
class LibraryLikeness:
    """How like a library of ``rows`` photos is to the held-out ones, and which are far from all.

    ``far_rows`` are the farthest first. ``embedded`` held-out photos were compared by embeddings,
    too; ``copies`` photos are near copies of one of these. ``trained`` photos have the bytes of one
    that the model was trained on. One photo was compared of each group of ``grouped`` held-out
    ones, and of each of ``folders``, where not 0.
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
    trained: int = 0

    def sentence(self) -> str:
        words, all_ = self.likeness.sentence(self.known), f"of {self.rows:,} photos are"
        if self.folders:
            words += f" Of each of {self.folders:,} folders one photo was compared."
        elif self.grouped and self.likeness.outcome in ("shares differ", "pictures differ"):
            chance = "a library of few groups may look different by chance."
            words += f" The {self.known} photos come in groups; {chance}"
        if self.likeness.outcome == "pictures differ" and self.far:
            words += f" {self.far:,} {all_} far from every {self.known} one."
        if self.copies:
            words += f" {self.copies:,} {all_} {self.known} ones or near copies of them "
            words += f"({self.embedded:,} compared)."
        return f"{words} {trained_note(self.trained, self.rows)}".rstrip()


FOUND = TypeAdapter(LibraryLikeness)


def likeness_of(index: Index, rows: Rows | None = None) -> LibraryLikeness:
    """Return how like the library is to the held-out photos, compared anew where it changed."""
    if rows is not None:
        key = hashlib.blake2b(rows.tobytes(), digest_size=16).digest()
        kept: dict[bytes, LibraryLikeness] = index.compared
        if key not in kept:
            kept[key] = _compared(index, rows, far=False)
            for old in list(kept)[:-KEPT_COMPARISONS]:
                kept.pop(old, None)
        return kept[key]
    path = index.folder / LIKENESS_FILE
    try:
        facts = json.loads(read_regular(path, MOST_FACTS)[0])
        known = FOUND.validate_python(facts["found"])
        near = abs(index.photos - known.rows) <= GROWTH * known.rows
        if near and facts["hash"] == sealed(known)["hash"]:
            return known
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        pass
    comparison = _compared(index, index.store.alive_rows())
    with suppress(OSError):  # else an index that may only be read
        write_text(path, json.dumps(sealed(comparison), indent=2))
    return comparison


def sealed(likeness: LibraryLikeness) -> dict[str, object]:
    """Return what is written: the comparison, and its hash."""
    digest = hashlib.blake2b(FOUND.dump_json(likeness), digest_size=16).hexdigest()
    return {"found": FOUND.dump_python(likeness, mode="json"), "hash": digest}


def evidence_of(index: Index) -> Evidence:
    """Return held-out photos that fitted nothing; an error where there are none."""
    held_out = index.held_out_photos
    none = f"and the model of {index.folder} has none"
    if held_out is None and index.spec.answers is not None:
        train = "labelwise train PHOTOS --words WORDS --answers TABLE --set-aside 0.3"
        raise DataError(
            f"a promise needs answered photos that were set aside, {none}; answer photos, then run "
            f"`{train}`, and index again with --rebuild"
        )
    if held_out is None or not index.facts.may_promise:
        train = "train it with a split test or promise, then index again"
        raise DataError(f"a promise needs photos that fitted nothing, {none}; {train}")
    return held_out.evidence(f"{index.facts.held_out} photos of the model")


def _compared(index: Index, alive: Rows, *, far: bool = True) -> LibraryLikeness:
    held_out, link, photos = index.held_out, index.spec.made_link, len(alive)
    if held_out is None or link is None:
        lacks = (
            "predictions of held-out photos" if held_out is None else "probabilities; calibrate it"
        )
        unknown = Likeness("unknown", 0, photos, reason=f"the model has no {lacks}")
        return LibraryLikeness(unknown, photos)
    kept, grouped = np.arange(len(held_out)), held_out.groups is not None
    if held_out.groups is not None:  # the comparison deals single photos to both sides
        kept = held_out.groups.one_of_each()
        held_out = held_out.take(kept)
    known = index.facts.known
    ordered = alive[np.argsort(audit_order("likeness", alive))[:FOLDER_PHOTOS]]
    distinct, looks = ordered[:SHARE_PHOTOS], index.store.looks()
    if looks.shape[1]:  # one photo of each picture: those of a burst are not independent
        distinct = distinct[np.unique(first_near(looks[distinct].astype(np.float32), NEAR))]
    if min(len(held_out), len(distinct)) < FEWEST:
        few = Likeness("unknown", len(held_out), len(distinct))
        return LibraryLikeness(few, photos, known=known)
    pictures, vectors = _pictures(index, kept), index.store.embeddings()
    own_probs: NDArray[np.float64] = link(held_out.logits.astype(np.float64))
    own_logits, observed = held_out.logits.astype(np.float32), held_out.observed
    labels = held_out.labels.astype(np.float64)
    if observed is not None:  # probabilities where labels are not known
        labels = np.where(observed, labels, own_probs)

    def points(rows: Rows) -> NDArray[np.float32]:
        return np.asarray(vectors[rows], np.float32)

    def compared(rows: Rows) -> Likeness:
        logits = index.store.logits(rows)
        return compare_photos(
            index.space.names,
            own_logits,
            labels,
            held_out_shares(own_probs, held_out.majority, observed),
            logits,
            link(logits.astype(np.float64)),
            own_probs=own_probs,
            more=None if pictures is None else PointsOfPhotos(*pictures[:2], points(rows)),
        )

    likeness, folders = compared(distinct), 0
    if grouped and likeness.outcome in ("shares differ", "pictures differ"):
        first: dict[str, int] = {}  # photo of each folder, in an order that says nothing of them
        for position, paths in enumerate(index.store.paths_of(ordered.tolist()).values()):
            first.setdefault(os.path.dirname(paths[0]), position)
        single = ordered[sorted(first.values())]
        if len(single) >= FEWEST:
            likeness, folders = compared(single[:SHARE_PHOTOS]), len(single)
    if not far:
        return LibraryLikeness(likeness, photos, grouped=grouped, folders=folders, known=known)
    places = np.argsort(audit_order("likeness", np.arange(len(held_out))))[:REFERENCE_PHOTOS]
    distances = list[Floats]()  # from every held-out photo; above 1 they are far
    embedded = copies = 0
    for start in range(0, photos, ROWS_AT_ONCE):
        block = alive[start : start + ROWS_AT_ONCE]
        distances.append(far_points(own_logits[places], index.store.logits(block)))
        if pictures is not None:
            rows, own, own_looks = pictures
            distances[-1] = np.maximum(distances[-1], far_points(own, points(block)))
            embedded = len(rows)
            if looks.shape[1] and own_looks.shape[1]:
                near = (looks[block].astype(np.float32) @ own_looks.T).max(axis=1) >= NEAR
                copies += int(near.sum())
    distance = np.concatenate(distances)
    count = int((distance > 1).sum())
    named = alive[np.argsort(-distance, kind="stable")[: min(count, FAR_KEPT)]]
    facts = (count, tuple(named.tolist()), embedded, copies, grouped, folders, known)
    return LibraryLikeness(likeness, photos, *facts, trained=_trained_on(index, alive))


def _pictures_of(index: Index) -> "HeldOutPictures | None":
    """Return what the index keeps of its model's photos, None where it is of another model."""
    known = HeldOutPictures.load(index.folder / PICTURES_FILE)
    same = known is not None and known.weights_sha256 == index.spec.weights_sha256
    return known if same else None


def _trained_on(index: Index, alive: Rows) -> int:
    """Return how many of the photos have the bytes of one that the model was trained on."""
    known = _pictures_of(index)
    if known is None:
        return 0
    rows = index.store.rows_by_hash(map(bytes, known.trained))
    return int(np.isin(alive, [*rows.values()]).sum())


def _pictures(index: Index, kept: Rows) -> tuple[Rows, Floats, Floats] | None:
    """Return places in ``kept``, embeddings and looks of held-out pictures; None if too few."""
    projection, known = index.embeddings.projection, _pictures_of(index)
    if projection is None or known is None:
        return None
    there = np.isin(known.rows, kept)
    if there.sum() < FEWEST:
        return None
    embeddings = projection(known.features[there].astype(np.float32)).astype(np.float32)
    looks = known.looks[there].astype(np.float32)
    return np.searchsorted(kept, known.rows[there]), embeddings, looks


def _hash_of(images: ImageSource, row: int) -> bytes:
    """Return the SHA-256 of a photo's bytes, empty where they cannot be read."""
    try:
        return hashlib.sha256(images.content(row)).digest()
    except (LabelwiseError, OSError):
        return b""


@dataclass(frozen=True, eq=False)
class HeldOutPictures:
    """Features (n, D) and looks (n, W) of some ``rows`` of held-out predictions.

    Features ``fitted`` (m, D) of photos that the model was fitted on set the projection of an
    index: one that was fitted on a side of the comparison would make the sides look different.
    ``trained`` (k, 32) are the SHA-256 of every photo that it was fitted on and can be read.
    """

    rows: Rows
    features: Halves
    looks: Halves
    fitted: Halves
    trained: NDArray[np.uint8]
    weights_sha256: str

    @classmethod
    def of_run(
        cls, run: "RunFolder", weights: str, predictor: "DeployedModel", watch: Watch
    ) -> "HeldOutPictures | None":
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
            with suppress(OSError):  # a folder that may only be read
                made.save(path)
        return made

    @classmethod
    def _made(
        cls, run: "RunFolder", weights_sha256: str, predictor: "DeployedModel", watch: Watch
    ) -> "HeldOutPictures | None":
        from labelwise.models.scoring import Scored, score
        from labelwise.models.seen_photos import own_table

        held_out, table = run.ids(*run.held_out_splits), own_table(run)
        if not held_out or table.images.blocks is not None:
            return None
        apart, trained = {name: row for row, name in enumerate(held_out)}, set(run.fitted_ids)
        sides = [
            np.array([row for row, name in enumerate(table.ids) if name in some], np.int64)
            for some in (apart, trained)
        ]
        if len(sides[1]) < FEWEST_FITTED or not len(sides[0]):
            return None
        parts: list[Scored] = []
        hashes = [_hash_of(table.images, row) for row in sides[1].tolist()]
        watch.start("looking at photos of the model", sum(min(len(s), SAMPLE) for s in sides))
        for name, rows in zip(("held-out", "fitted"), sides, strict=True):
            sample = np.sort(rows[np.argsort(audit_order(name, rows))[:SAMPLE]])
            batches = []
            for scored in score(predictor, table.images, rows=sample.tolist(), embed=True):
                batches.append(scored)
                watch.advance(len(scored) + len(scored.failures))
            parts.append(Scored.join(batches))
        watch.finish()
        own, others = parts
        if own.embeddings is None or others.embeddings is None:
            raise ValueError("photos were scored without embeddings")
        looks = np.empty((len(own), 0)) if own.looks is None else own.looks
        matrices = (own.embeddings, looks, others.embeddings)
        features, looked, fitted = (matrix.astype(np.float16) for matrix in matrices)
        rows = np.array([apart[name] for name in own.ids], np.int64)
        hashed = np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, 32)
        return cls(rows, features, looked, fitted, hashed, weights_sha256)

    def save(self, path: Path) -> None:
        arrays = dict(vars(self))
        arrays["weights"] = np.array([*bytes.fromhex(arrays.pop("weights_sha256"))], np.uint8)
        with replacing(path) as temporary, temporary.open("wb") as stream:
            np.savez(stream, **arrays)

    @staticmethod
    def load(path: Path) -> "HeldOutPictures | None":
        require_regular(path)
        try:
            with ZipFile(path) as file:  # nothing that grows when it is read
                if any(member.compress_type != ZIP_STORED for member in file.infolist()):
                    return None
                if file.testzip() is not None:
                    return None
            with np.load(path, allow_pickle=False) as file:
                arrays: dict[str, Any] = {name: file[name] for name in file.files}
            weights = bytes(arrays.pop("weights").tolist()).hex()
            read = HeldOutPictures(**arrays, weights_sha256=weights)
        except (BadZipFile, OSError, EOFError, KeyError, TypeError, ValueError):
            return None
        rows, matrices = read.rows, (read.features, read.looks, read.fitted)
        fits = rows.dtype == np.int64 and rows.ndim == 1 and not (rows < 0).any()
        fits &= all(matrix.dtype == np.float16 and matrix.ndim == 2 for matrix in matrices)
        fits = fits and len(rows) == len(read.features) == len(read.looks) and len(weights) == 64
        fits = fits and read.fitted.shape[1] == read.features.shape[1]
        fits = fits and read.trained.dtype == np.uint8 and read.trained.shape[1:] == (32,)
        return read if fits and all(np.isfinite(matrix).all() for matrix in matrices) else None
