"""Index: photos that answer queries, from logits that were computed once.

Probabilities are the model's link of the stored logits, so another calibration, or a correction,
changes them without a picture being read. Promises are made on held-out photos, which nobody
corrects, so they keep to the model's own link (``refit=False``). The cache keeps log p and
log(1 - p) where they take longer to compute than a search:

    p-LABEL-MODEL.bin, q-...     of a large index: log p, and log(1 - p), of one label

MODEL is a hash of ``model.json``.
"""

import os
import shlex
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from getpass import getuser
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from labelwise.answers.log import now
from labelwise.base.files import MOST_FACTS, read_regular, write_text
from labelwise.base.progress import Watch
from labelwise.base.storage import StorageError, is_uri
from labelwise.decide import Evidence, Rule
from labelwise.errors import CheckpointError, DataError
from labelwise.links import Link, check_log_probs
from labelwise.models.spec import MODEL_FILE, ModelSpec, require_fit
from labelwise.photos.database import file_hash, way_out
from labelwise.photos.embeddings import IndexEmbeddings
from labelwise.photos.store import Correction, Fact, PhotoFiles, Store
from labelwise.photos.topk import LabelOdds, Rows
from labelwise.predictions import Predictions
from labelwise.queries import BoundQuery, Query, bind
from labelwise.taxonomy import Taxonomy
from labelwise.types import LabelSpace

ROWS_AT_ONCE = 1 << 16
KEPT_FROM = 1 << 16  # rows from which each label has files of its own
FAR = 50.0  # log-odds beyond which nothing changes
ENOUGH = 50  # held-out photos that keep a fit where it was
LABELS_KEPT = 64
OLD_CACHES = ("order-*", "fronts-*", "axes-of-fronts*", "labels-*", "held-out-*", "validation-*")
LIKENESS_FILE = "likeness.json"  # what :mod:`labelwise.photos.shift` found

Pair = tuple[NDArray[np.float64], NDArray[np.float64]]
Mapped = Callable[[NDArray[np.float64], NDArray[np.float64]], Pair]


@dataclass(frozen=True, eq=False)
class KnownPhotos:
    """Photos whose labels are known, with their log p and log(1 - p) (N, K) in 64 bits.

    ``probs`` have 32, as rules read them: ``Link.decision_probs``.
    """

    stored: Predictions
    log_p: NDArray[np.float64]
    log_q: NDArray[np.float64]
    probs: NDArray[np.float32]

    def evidence(self, photos: str) -> Evidence:
        known = self.stored
        arrays, names, ids = (self.probs, known.majority, known.observed), known.names, known.ids
        return Evidence.read(*arrays, names=names, ids=ids, photos=photos, groups=known.groups)


class SettledCorrections:
    """What people said, which stands, and what follows by a model's taxonomy or label groups."""

    def __init__(self, store: Store, spec: ModelSpec) -> None:
        self._store, self._space, self._names = store, spec.space, spec.space.names
        self._tree, self._exclusive = spec.label_tree, spec.exclusive

    def of(self, label: int) -> list[Correction]:
        stated = self._store.corrections(self._names[label])
        told = {correction.row for correction in stated}
        follows = {correction.row: correction for correction in self._following(label)}
        return [*stated, *(correction for row, correction in follows.items() if row not in told)]

    def labels(self) -> set[int]:
        labels = {self._space.column(correction.label) for correction in self._store.corrections()}
        if self._tree is not None:
            tops = {self._tree.top(label) for label in labels}
            labels = {label for top in tops for label in (top, *self._tree.below(top))}
        if self._exclusive is not None:
            groups = [group for group in self._exclusive.groups if labels.intersection(group)]
            labels = labels.union(*groups)
        return labels

    def _following(self, label: int) -> Iterator[Correction]:
        if self._tree is not None:
            above, below = self._tree.above(label), self._tree.below(label)
            for relatives, told in ((above, "absent"), (below, "present")):
                for relative in relatives:
                    for correction in self._store.corrections(self._names[relative]):
                        if correction.state == told:
                            yield replace(correction, label=self._names[label])
        rules = self._exclusive
        group = () if rules is None else next((g for g in rules.groups if label in g), ())
        if rules is None or not group:
            return
        answers = [self._store.corrections(self._names[column]) for column in group]
        last = {correction.row: correction for some in answers for correction in some}
        rows = {row: at for at, row in enumerate(sorted(last))}
        labels = np.zeros((len(rows), len(group)))
        observed = np.zeros(labels.shape, np.bool_)
        for column, some in enumerate(answers):
            for correction in some:
                labels[rows[correction.row], column] = correction.state == "present"
                observed[rows[correction.row], column] = correction.state != "unknown"
        settled = rules.alone(group, range(len(group))).settled(labels, observed)
        place = group.index(label)
        for row, at in rows.items():
            if settled.observed[at, place]:  # nothing where they clash
                state: Fact = "present" if settled.labels[at, place] else "absent"
                yield replace(last[row], label=self._names[label], state=state)


class IndexFacts(BaseModel):
    """What ``index.json`` says: the format, and where the model and its held-out photos are."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    model: str
    held_out: str | None = None
    decode: Literal["cpu", "cuda"] = "cpu"  # who decoded its JPEGs

    @property
    def may_promise(self) -> bool:
        """Whether the held-out photos fitted nothing; others are called val, whatever they are."""
        return self.held_out not in (None, "val")

    @property
    def known(self) -> str:
        return "validation" if self.held_out == "val" else "held-out"

    def save(self, path: Path) -> None:
        write_text(path, self.model_dump_json(indent=2) + "\n")

    @staticmethod
    def load(path: Path) -> "IndexFacts":
        try:
            return IndexFacts.model_validate_json(read_regular(path, MOST_FACTS)[0], strict=True)
        except FileNotFoundError:
            make = "make one with `labelwise index FOLDER --model RUN`"
            raise CheckpointError(f"{path.parent} is not an index; {make}") from None
        except (OSError, ValidationError) as error:
            reason = error.strerror if isinstance(error, OSError) else error.errors()[0]["msg"]
            reason = f"{path} does not describe an index: {reason}"
            raise CheckpointError(f"{reason}; {way_out(path.parent)}") from None


class Index(AbstractContextManager["Index", None]):
    """An open index: the store of its photos, and the model that says what their logits mean."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.facts = IndexFacts.load(self.folder / "index.json")
        self.spec = self._read_spec(tried=True)
        self.space: LabelSpace = self.spec.space
        self.store = Store(self.folder, self.space.names)
        try:
            self.store.database.check_file("index.json")
            # of a file without a hash nobody knows whether it was tried
            if not self.store.database.check_file("model.json"):
                self.spec = self._read_spec(tried=False)
        except BaseException:
            self.store.close()
            raise
        self.embeddings = IndexEmbeddings(self.folder, self.store)
        self._odds: OrderedDict[tuple[int, str], tuple[object, LabelOdds]] = OrderedDict()
        self._sets: tuple[object, NDArray[np.bool_]] | None = None
        self.compared: dict[bytes, Any] = {}  # with held-out photos, by hashes of rows

    def _read_spec(self, *, tried: bool) -> ModelSpec:
        try:
            return ModelSpec.load(self.folder / "model.json", tried=tried)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; {way_out(self.folder)}") from None

    @classmethod
    def create(cls, folder: Path, spec: ModelSpec, facts: IndexFacts) -> Self:
        with (
            Store.create(folder, spec.space.names) as store,
            store.database.rewriting("model.json", "index.json"),
        ):
            spec.save(folder / "model.json")  # a spec that exists was tried
            facts.save(folder / "index.json")
        return cls(folder)

    def close(self) -> None:
        self.store.close()

    def __exit__(self, *error: object) -> None:
        self.store.close()

    def use(
        self, spec: ModelSpec, held_out: Predictions | None, validation: Predictions | None = None
    ) -> None:
        """Take another link, rule or promises of the same weights; no picture is read for it."""
        for name, predictions in (("held-out", held_out), ("validation", validation)):
            if predictions is not None:
                with self.store.database.rewriting(f"{name}.parquet"):
                    predictions.save(self.folder / f"{name}.parquet")
        if spec != self.spec:
            with self.store.database.rewriting("model.json"):
                spec.save(self.folder / "model.json")
        self.spec = spec
        (self.folder / LIKENESS_FILE).unlink(missing_ok=True)  # with the held-out photos before
        self._odds.clear()
        self.compared.clear()
        for name in [n for n, member in vars(Index).items() if isinstance(member, cached_property)]:
            self.__dict__.pop(name, None)  # each follows from the model
        if held_out is not None:
            self.__dict__["held_out"] = held_out  # as it was written: it need not be read

    def __len__(self) -> int:
        return self.store.rows

    def require_photos(self) -> None:
        """Raise if no photo is known: "0 of 0 photos match" would sound like an answer."""
        if not len(self):
            raise DataError(
                f"{self.folder} holds no photo: indexing was stopped before it wrote the first, or "
                f"found none; run `labelwise index FOLDER -o {self.folder}` again"
            )

    def bound(self, query: Query) -> BoundQuery:
        """Return a query over this index's columns; one that no photo can answer is an error."""
        bound = bind(query, self.space, self.query_taxonomy, self.spec.exclusive)
        if bound.is_impossible:
            names = self.space.names
            groups = "; ".join(", ".join(names[k] for k in group) for group in bound.groups)
            why = f"of {groups} it has one at most; join them by |"
            raise DataError(f"no photo can be {str(query)!r}: {why}")
        return bound

    @property
    def photos(self) -> int:
        """How many photos are there now; those whose files are gone do not count."""
        return len(self) - len(self.store.dead_rows())

    @cached_property
    def link(self) -> Link:
        """The link of the stored logits, tried on a row: the index was opened without."""
        spec = self.spec
        try:
            require_fit(self.space, link=lambda: spec.made_link, rule=lambda: spec.made_rule)
        except ValueError as error:
            reason = f"{self.folder / 'model.json'} is not usable: {error}"
            raise CheckpointError(f"{reason}; {way_out(self.folder)}") from None
        if spec.made_link is None:
            raise DataError(f"the model of {self.folder} has no probabilities; calibrate it first")
        return spec.made_link

    @cached_property
    def held_out(self) -> Predictions | None:
        """Predictions of photos that no weight was fitted on; promises are made on them."""
        path = self.store.database.sound_file("held-out.parquet")
        return None if path is None else Predictions.load(path)

    @cached_property
    def held_out_photos(self) -> KnownPhotos | None:
        return self._known_photos("held-out")

    @cached_property
    def validation_photos(self) -> KnownPhotos | None:
        """Where others are held out, those of validation set what to try."""
        return self._known_photos("validation")

    @cached_property
    def taxonomy(self) -> Taxonomy | None:
        path = self.store.database.sound_file("taxonomy.csv")
        return self.spec.made_taxonomy if path is None else Taxonomy.read(path)

    @cached_property
    def query_taxonomy(self) -> Taxonomy | None:
        """The taxonomy by which queries ask for kinds too: what the model's own does not say."""
        taxonomy, tree = self.taxonomy, self.spec.taxonomy
        if taxonomy is None or tree is None:
            return taxonomy
        links, labels = taxonomy.parents.items(), set(self.space.names)
        return Taxonomy(
            {kind: up for kind, up in links if up not in labels or tree.get(kind) != up}
        )

    # Probabilities

    @cached_property
    def _model_hash(self) -> str:
        return file_hash(self.folder / "model.json").hex()[:16]

    def _known_photos(self, name: str) -> KnownPhotos | None:
        path = self.store.database.sound_file(f"{name}.parquet")
        if path is None:
            return None
        stored = Predictions.load(path, with_link=False)
        log_p, log_q = self.link.log_probs(stored.logits.astype(np.float64))
        return KnownPhotos(stored, log_p, log_q, np.exp(log_p).astype(np.float32))

    def _of_label(self, label: int, rows: slice | Rows) -> Pair:

        def read(column: int) -> NDArray[np.float64]:
            return np.array(self.store.column(column)[rows], np.float64)

        return check_log_probs(*self.link.label_log_probs(label, read, len(self.space)))

    def _of_photos(self, rows: slice | Rows) -> Pair:
        return check_log_probs(*self.link.log_probs(self.store.logits(rows).astype(np.float64)))

    def prepare(self, watch: Watch) -> None:
        if self.spec.link is None:
            return
        for old in OLD_CACHES:
            self.store.cache.remove(old, but="\0")
        if self.store.rows >= KEPT_FROM:
            watch.start("preparing searches", len(self.space))
            for label in range(len(self.space)):
                self._column(label, 0)
                self._column(label, 1)
                watch.advance(1)
            watch.finish()

    def _column(self, label: int, side: Literal[0, 1]) -> NDArray[np.float32]:
        """Return one side of a label from the cache, after computing the rows that it lacks."""
        kind = f"{'pq'[side]}-{label + 1:05d}"
        self.store.cache.remove(f"{kind}-*", but=self._model_hash)  # those of an earlier link

        def parts(done: int, rows: int) -> Iterator[NDArray[np.float32]]:
            for start in range(done, rows, ROWS_AT_ONCE):
                block = slice(start, min(start + ROWS_AT_ONCE, rows))
                yield self._of_label(label, block)[side].astype(np.float32)

        name, shape = f"{kind}-{self._model_hash}.bin", (self.store.rows, 1)
        return self.store.cache.grown(name, np.dtype(np.float32), shape, parts)[:, 0]

    def odds(self, label: int, *, refit: bool = True, corrected: bool = True) -> LabelOdds:
        """Return the log probabilities of one label, as corrected so far.

        Without ``refit`` only the corrected photos differ from the model's; without ``corrected``
        none does.
        """
        corrections = self.corrections.of(label) if corrected else []
        kind = "model" if not corrections else "refitted" if refit else "corrected"
        key, state = (label, kind), (len(self), corrections)
        if key not in self._odds or self._odds[key][0] != state:
            self._odds[key] = (state, self._computed(label, corrections, refit))
        self._odds.move_to_end(key)
        while len(self._odds) > LABELS_KEPT:
            self._odds.popitem(last=False)
        return self._odds[key][1]

    def _computed(self, label: int, corrections: Sequence[Correction], refit: bool) -> LabelOdds:
        if not corrections and self.store.rows >= KEPT_FROM:
            return LabelOdds(partial(self._column, label, 0), partial(self._column, label, 1))
        mapped = self._mapped(label, corrections if refit else [])
        pair = mapped(*self._of_label(label, slice(0, len(self))))
        log_p, log_q = (side.astype(np.float32) for side in pair)
        for correction in corrections:
            if correction.state in ("present", "absent"):
                certain = correction.state == "present"
                log_p[correction.row] = 0.0 if certain else -np.inf
                log_q[correction.row] = -np.inf if certain else 0.0
        return LabelOdds(log_p, log_q)

    def _mapped(self, label: int, corrections: Sequence[Correction]) -> Mapped:
        """Return the map of (log p, log(1 - p)) that corrections call for:

        p = sigma(slope u + offset) of the log-odds u, fitted on the held-out and the corrected
        photos together. Where fewer than ENOUGH held-out photos speak of the label, the model's own
        probabilities of the first ROWS_AT_ONCE rows make up the number.
        """
        known = [correction for correction in corrections if correction.state != "unknown"]
        if not known:
            return lambda log_p, log_q: (log_p, log_q)
        from labelwise.calibration import platt

        of_label, photos, lacking = self._of_label, self.held_out_photos, None
        log_p, log_q = of_label(label, np.array([correction.row for correction in known], np.int64))
        log_odds = [log_p - log_q]
        labels = [np.array([correction.state == "present" for correction in known], np.float64)]
        if photos is not None:
            observed = photos.stored.observed
            seen = slice(None) if observed is None else observed[:, label]
            log_odds.append((photos.log_p[:, label] - photos.log_q[:, label])[seen])
            labels.append(photos.stored.labels[seen, label].astype(np.float64))
            lacking = ENOUGH - len(labels[-1])
        if lacking is None or lacking > 0:
            log_p, log_q = of_label(label, slice(0, ROWS_AT_ONCE))
            places = np.linspace(0, len(log_p) - 1, lacking or len(log_p)).astype(np.int64)
            log_odds.append((log_p - log_q)[places])
            labels.append(np.exp(log_p)[places])
        u = np.concatenate(log_odds)[:, None].clip(-FAR, FAR)
        link = platt(u, np.concatenate(labels)[:, None], None, scope="shared")

        def refit(log_p: NDArray[np.float64], log_q: NDArray[np.float64]) -> Pair:
            log_p, log_q = link.log_probs((log_p - log_q).clip(-FAR, FAR)[:, None])
            return log_p[:, 0], log_q[:, 0]

        return refit

    def known_log_probs(self, photos: KnownPhotos, labels: Sequence[int], *, refit: bool) -> Pair:
        pairs = []
        for label in labels:
            mapped = self._mapped(label, self.corrections.of(label) if refit else [])
            pairs.append(mapped(photos.log_p[:, label], photos.log_q[:, label]))
        return np.stack([p for p, _ in pairs], 1), np.stack([q for _, q in pairs], 1)

    def log_probs(self, rows: slice | Rows, *, refit: bool = True) -> NDArray[np.float64]:
        every = np.arange(len(self))[rows]
        log_p, _ = self._of_photos(every)
        for label in self.corrections.labels():
            log_p[:, label] = self.odds(label, refit=refit).log_p[every]
        return log_p

    def probability(self, row: int, label: str) -> float:
        return float(np.exp(self.odds(self.space.column(label)).log_p[row]))

    def given(self, label: int) -> NDArray[np.bool_]:
        state = (len(self), self.spec, self.store.corrections())  # others may write, too
        if self._sets is None or self._sets[0] != state:
            parts = [np.empty((0, len(self.space)), np.bool_)]
            for start in range(0, len(self), ROWS_AT_ONCE):
                parts.append(self.sets(slice(start, start + ROWS_AT_ONCE)))
            self._sets = state, np.concatenate(parts)
        return self._sets[1][:, label]

    def sets(self, rows: slice | Rows, rule: Rule | None = None) -> NDArray[np.bool_]:
        """Return the label sets (n, K) of some photos by the model's rule, or a promised one;
        what people said stands above it.
        """
        log_p = self.log_probs(rows, refit=rule is None)
        probs = np.exp(log_p).astype(np.float32)  # as rules are fitted: Link.decision_probs
        sets = np.array((rule or self.spec.made_rule)(probs))
        return np.asarray((sets | (log_p == 0)) & ~np.isneginf(log_p))

    # Corrections

    @cached_property
    def corrections(self) -> SettledCorrections:
        return SettledCorrections(self.store, self.spec)

    def correct(
        self,
        row: int,
        states: dict[str, Fact],
        *,
        who: str | None = None,
        source: str = "correction",
    ) -> None:
        for name, state in states.items():
            self.space.column(name)
            if state not in (known := get_args(Fact)):
                must = f"what is said of {name!r} must be one of {', '.join(known)}"
                raise DataError(f"{must}, got {state!r}")
        if not 0 <= row < len(self):
            raise DataError(f"photos are numbered from 0 to {len(self) - 1}, got {row}")
        facts = (who or getuser(), now(), source)
        self.store.correct([Correction(row, name, state, *facts) for name, state in states.items()])

    def row_of(self, photo: str | Path) -> int:
        row = self.store.row_of(os.fspath(photo))
        if row is None:
            mend = "bring it up to date with `labelwise index`"
            raise DataError(f"{photo} is not in {self.folder}; {mend}")
        return row

    def picture(self, row: int) -> tuple[bytes, str] | None:
        try:
            return self.files_of(row).read()
        except StorageError:
            return None

    def files_of(self, row: int) -> PhotoFiles:
        (content,) = self.store.contents_of([row]).values()
        return PhotoFiles(content.hash, tuple(sorted(self.store.places_of([row])[row])))


def model_changed(index: Index) -> str | None:
    """Return in one sentence how the run's model changed since an index took it; None if not."""
    address = index.facts.model
    if is_uri(address) or not (Path(address) / MODEL_FILE).is_file():
        return None
    try:
        now = ModelSpec.load(Path(address) / MODEL_FILE, tried=True)  # compared, never used
    except CheckpointError:
        return None
    if now.model_copy(update={"versions": index.spec.versions}) == index.spec:
        return None
    folder, update = index.folder, f"labelwise index -o {shlex.quote(str(index.folder))}"
    if now.weights_sha256 != index.spec.weights_sha256:
        other = f"{address} has other weights than those that scored the photos of {folder}"
        return f"{other}; answers are those of the earlier ones until `{update} --rebuild`"
    other = f"{address} has another calibration, rule or promise than {folder} answers by"
    return f"{other}; `{update}` takes it over, without reading photos again"
