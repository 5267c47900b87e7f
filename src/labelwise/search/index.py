"""Index: photos that answer queries, from logits that were computed once.

Probabilities are the model's link of the stored logits, so another calibration, or a correction,
changes every one of them without a picture being read. Those of the model's own link are kept in
the cache of a large index, named after the model, for the first search to be quick:

* what a person said of a photo is certain: probability 1 or 0 for that label;
* for all other photos the label's link is fitted anew on the held-out photos of the model and the
  corrected ones together, p = sigma(slope u + offset) of its log-odds u. Promises are made on the
  held-out photos, so they are made, and kept, under the model's own link (``refit=False``).

People correct what they happen to see, so the corrected photos are not a random sample; the
held-out ones keep the fit where it was unless corrections are many.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from getpass import getuser
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from labelwise.attributes import AttributeColumns
from labelwise.decide import Evidence, Rule, Threshold
from labelwise.errors import CheckpointError, DataError
from labelwise.models.spec import ModelSpec, require_fit
from labelwise.numeric.arrays import to_numpy, to_tensor
from labelwise.predictions import Predictions
from labelwise.retrieval import BoundQuery, Query, bind
from labelwise.search.checksums import file_hash, way_out
from labelwise.search.fronts import Fronts, fronts_of
from labelwise.search.known_photos import KnownPhotos
from labelwise.search.likeness import LIKENESS_FILE, likeness_of
from labelwise.search.photo_files import PhotoFiles
from labelwise.search.scan import ScanTerm, largest_rows, tried_rows
from labelwise.search.similar import PARALLEL, Projection, codes_of, farthest_rows, nearest_rows
from labelwise.search.store import Correction, Fact, Store
from labelwise.system.files import replacing
from labelwise.system.progress import Watch
from labelwise.system.storage import StorageError
from labelwise.taxonomy import LabelTree, Taxonomy
from labelwise.types import LabelSpace

if TYPE_CHECKING:  # what was computed before is searched without torch
    from labelwise.links import Link
    from labelwise.search.held_out_pictures import HeldOutPictures

__all__ = ["Index", "IndexFacts", "LabelOdds"]

ROWS_AT_ONCE = 1 << 16
KEPT_FROM = 1 << 16  # rows from which each label has files of its own
ONE_FILE = 1 << 22  # probabilities that are kept in one file for all labels, of fewer rows
LABELS_KEPT = 64
ORDER = np.dtype([("row", "<i8"), ("value", "<f4")])
CACHED_OF_MODEL = (
    *("link", "held_out", "held_out_photos", "validation_photos", "held_out_pictures"),
    *("taxonomy", "query_taxonomy", "_tree", "_exclusive", "_sets", "_model_key"),
)  # properties of an index that follow from its model

FAR = 50.0  # log-odds beyond which nothing changes

Rows = NDArray[np.int64]
Pair = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True)
class LabelOdds:
    """log p and log(1 - p) of one label for every row."""

    log_p: ScanTerm
    log_q: ScanTerm

    @cached_property
    def pair(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """p and 1 - p themselves, for queries whose scores are not sums of logs."""
        return np.exp(self.log_p.values), np.exp(self.log_q.values)


class Index:
    """An open index: the store of its photos, and the model that says what their logits mean.

    Whoever opens one closes it, best by ``with Index(folder) as index``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.facts = IndexFacts.load(self.folder / "index.json")
        self.spec = self._read_spec(tried=True)
        self.space: LabelSpace = self.spec.space
        self.store = Store(self.folder, self.space.names)
        try:
            for name in ("index.json", "model.json"):
                self.store.checksums.check(name)
            if not self.store.checksums.has("model.json"):  # nobody knows whether it was tried
                self.spec = self._read_spec(tried=False)
        except BaseException:
            self.store.close()
            raise
        self._odds: OrderedDict[tuple[int, str], tuple[Any, LabelOdds]] = OrderedDict()
        self._codes: NDArray[np.uint64] | None = None

    def _read_spec(self, *, tried: bool) -> ModelSpec:
        try:
            return ModelSpec.load(self.folder / "model.json", tried=tried)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; {way_out(self.folder)}") from None

    @classmethod
    def create(cls, folder: Path, spec: ModelSpec, facts: "IndexFacts") -> "Index":
        """Make an empty index for a model."""
        Store.create(folder, spec.space.names).close()
        spec.save(folder / "model.json")
        facts.save(folder / "index.json")
        return cls(folder)

    def close(self) -> None:
        """Let go of the files; a second time does nothing."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def use(
        self, spec: ModelSpec, held_out: Predictions | None, validation: Predictions | None = None
    ) -> None:
        """Take another link, rule or promises of the same weights; no picture is read for it."""
        for name, predictions in (("held-out", held_out), ("validation", validation)):
            if predictions is not None:
                with self.store.checksums.rewriting(f"{name}.parquet"):
                    predictions.save(self.folder / f"{name}.parquet")
        if spec != self.spec:
            with self.store.checksums.rewriting("model.json"):
                spec.save(self.folder / "model.json")
        self.spec = spec
        (self.folder / LIKENESS_FILE).unlink(missing_ok=True)  # with the held-out photos before
        self._odds.clear()
        for name in CACHED_OF_MODEL:
            self.__dict__.pop(name, None)

    def __len__(self) -> int:
        return self.store.rows

    def bound(self, query: Query) -> BoundQuery:
        """Return a query over this index's columns; one that no photo can answer is an error."""
        found = bind(query, self.space, self.query_taxonomy, self._exclusive)
        if found.is_impossible:
            groups = "; ".join(
                ", ".join(self.space.names[column] for column in group) for group in found.groups
            )
            raise DataError(
                f"no photo can be {str(query)!r}, its probability is 0: of {groups} a photo has "
                "one at most; ask for one of them, or for any with |"
            )
        return found

    @property
    def photos(self) -> int:
        """How many photos are there now; those whose files are gone do not count."""
        return len(self) - len(self.store.dead_rows())

    @cached_property
    def link(self) -> "Link":
        """The link of the stored logits, tried on a row: the index was opened without."""
        spec = self.spec
        try:
            require_fit(self.space, link=lambda: spec.made_link, rule=lambda: spec.made_rule)
        except ValueError as error:
            reason = f"{self.folder / 'model.json'} is not usable: {error}"
            raise CheckpointError(f"{reason}; {way_out(self.folder)}") from None
        link = spec.made_link
        if link is None:
            raise DataError(
                f"the model of {self.folder} ranks labels and has no probabilities; "
                "calibrate it first, then index again"
            )
        return link

    @cached_property
    def _model_key(self) -> str:
        """A name for what probabilities follow from, beside the logits."""
        return file_hash(self.folder / "model.json").hex()[:16]

    @cached_property
    def held_out(self) -> Predictions | None:
        """Predictions of photos that no weight was fitted on; promises are made on them."""
        path = self._checked("held-out.parquet")
        return None if path is None else Predictions.load(path)

    @cached_property
    def held_out_photos(self) -> KnownPhotos | None:
        """The held-out photos as searches and promises read them."""
        return self._known_photos("held-out")

    @cached_property
    def validation_photos(self) -> KnownPhotos | None:
        """Those of validation, likewise, where others are held out: they set what to try."""
        return self._known_photos("validation")

    def _known_photos(self, name: str) -> KnownPhotos | None:
        path = self._checked(f"{name}.parquet")
        if path is None:
            return None
        return KnownPhotos.read(path, self.store.cache, self._model_key, lambda: self.link)

    def _checked(self, name: str) -> Path | None:
        """Return the path of a file that is as it was written, None where there is none."""
        path = self.folder / name
        if not path.is_file():
            return None
        self.store.checksums.check(name)
        return path

    @cached_property
    def held_out_pictures(self) -> "HeldOutPictures | None":
        """What held-out photos look like to the backbone, where it is known of this model."""
        from labelwise.search.held_out_pictures import PICTURES_FILE, HeldOutPictures

        found = HeldOutPictures.load(self.folder / PICTURES_FILE)
        same = found is not None and found.weights_sha256 == self.spec.weights_sha256
        return found if same else None

    def start_with(self, pictures: "HeldOutPictures") -> None:
        """Keep what held-out photos look like, and embed all photos as the fitted ones say."""
        from labelwise.search.held_out_pictures import PICTURES_FILE

        pictures.save(self.folder / PICTURES_FILE)
        self.__dict__.pop("held_out_pictures", None)
        self.start_projection(pictures.fitted.astype(np.float32))

    @cached_property
    def taxonomy(self) -> Taxonomy | None:
        """Which labels are kinds of which: as the index was told, or else its model."""
        path = self._checked("taxonomy.csv")
        return self.spec.made_taxonomy if path is None else Taxonomy.read(path)

    @cached_property
    def query_taxonomy(self) -> Taxonomy | None:
        """The taxonomy by which queries ask for kinds too.

        A label of a model that obeys its taxonomy is there wherever one of its kinds is, and asks
        for itself alone: with its kinds, as if they were independent, it would count twice.
        """
        taxonomy, own = self.taxonomy, self.spec.taxonomy
        if taxonomy is None or own is None:
            return taxonomy
        labels = set(self.space.names)
        kept = {
            child: parent
            for child, parent in taxonomy.parents.items()
            if parent not in labels or own.get(child) != parent
        }
        return Taxonomy(kept)

    def evidence(self) -> Evidence:
        """Return the photos that a promise can be made on: ones that fitted nothing.

        Where the library does not look like them, no promise can rest on them.
        """
        held_out = self.held_out_photos
        if held_out is None and self.spec.answers is not None:
            raise DataError(
                f"a promise needs answered photos that were set aside, and the model of "
                f"{self.folder} has none; answer photos, then `labelwise start PHOTOS --words "
                "WORDS --answers TABLE --set-aside 0.3`, and index again with --rebuild"
            )
        if held_out is None or not self.facts.may_promise:
            raise DataError(
                f"a promise needs photos that fitted nothing, and the model of {self.folder} has "
                "none; train it with a split test or promise, then index again"
            )
        found = likeness_of(self)
        if found.likeness.outcome == "pictures differ":
            raise DataError(f"nothing can be promised of {self.folder}. {found.sentence()}")
        return held_out.evidence(f"{self.facts.held_out} photos of the model")

    def tuning(self) -> Evidence | None:
        """Return the photos that may say what to promise, though not whether it holds."""
        known = self.validation_photos
        return None if known is None else known.evidence("validation photos of the model")

    # Probabilities

    def odds(self, label: int, *, refit: bool = True, corrected: bool = True) -> LabelOdds:
        """Return the log probabilities of one label, as corrected so far.

        Without ``refit`` only the corrected photos have other ones than the model's; without
        ``corrected`` none has, as the held-out photos of a promise have none.
        """
        corrections = self.corrections_of(label) if corrected else []
        kind = "model" if not corrections else "refitted" if refit else "corrected"
        key, state = (label, kind), (len(self), corrections)
        if key not in self._odds or self._odds[key][0] != state:
            self._odds[key] = (state, self._computed(label, corrections, refit))
        self._odds.move_to_end(key)
        while len(self._odds) > LABELS_KEPT:
            self._odds.popitem(last=False)
        return self._odds[key][1]

    def known_log_probs(self, photos: KnownPhotos, labels: Sequence[int], *, refit: bool) -> Pair:
        """Return log p and log(1 - p) (n, len(labels)) of known photos, mapped as odds are."""
        pairs = []
        for label in labels:
            corrections = self.corrections_of(label) if refit else []
            refitted = self._refitted(label, corrections)
            pairs.append(refitted(photos.log_p[:, label], photos.log_q[:, label]))
        return np.stack([p for p, _ in pairs], 1), np.stack([q for _, q in pairs], 1)

    def _computed(self, label: int, corrections: Sequence[Correction], refit: bool) -> LabelOdds:
        rows = len(self)
        if not corrections and rows >= KEPT_FROM:
            return LabelOdds(
                *(
                    ScanTerm(partial(self._kept, label, side), partial(self._order, label, side))
                    for side in (0, 1)
                )
            )
        if not corrections and self._in_one_file:
            kept = self._kept_table()
            return LabelOdds(*(ScanTerm(kept[:, 2 * label + side].copy()) for side in (0, 1)))
        log_p, log_q = np.empty(rows, np.float32), np.empty(rows, np.float32)
        mapped = self._refitted(label, corrections if refit else [])
        for start in range(0, rows, ROWS_AT_ONCE):
            part = slice(start, min(start + ROWS_AT_ONCE, rows))
            log_p[part], log_q[part] = mapped(*self._log_probs(label, part))
        for one in corrections:
            if one.state in ("present", "absent"):
                certain = one.state == "present"
                log_p[one.row] = 0.0 if certain else -np.inf
                log_q[one.row] = -np.inf if certain else 0.0
        return LabelOdds(ScanTerm(log_p), ScanTerm(log_q))

    @property
    def _in_one_file(self) -> bool:
        """Whether the probabilities of all labels are kept together."""
        return len(self) < KEPT_FROM and len(self) * len(self.space) <= ONE_FILE

    def _kept_table(self) -> NDArray[np.float32]:
        """Return log p and log(1 - p) (rows, 2 K), in turn, under the model's own link.

        They are kept in the cache, since computing them takes torch, which takes longer to import
        than a search.
        """
        cache, labels = self.store.cache, range(len(self.space))
        cache.remove("labels-*", but=self._model_key)  # those of an earlier link

        def computed(done: int, rows: int) -> Iterator[NDArray[np.float32]]:
            pairs = [self._log_probs(label, slice(done, rows)) for label in labels]
            yield np.stack([side for pair in pairs for side in pair], axis=1).astype(np.float32)

        shape = (len(self), 2 * len(labels))
        name = f"labels-{self._model_key}.bin"
        return cache.grown(name, np.dtype(np.float32), shape, computed)

    def _kept(self, label: int, side: Literal[0, 1]) -> NDArray[np.float32]:
        """Return log p, or log(1 - p) at side 1, of every row under the model's own link.

        They are kept in the cache, since computing them takes a hundred times as long as a search.
        """
        cache = self.store.cache
        kind = f"{'pq'[side]}-{label + 1:05d}"
        name = f"{kind}-{self._model_key}.bin"
        cache.remove(f"{kind}-*", but=self._model_key)  # those of an earlier link

        def computed(done: int, rows: int) -> Iterator[NDArray[np.float32]]:
            for start in range(done, rows, ROWS_AT_ONCE):
                part = slice(start, min(start + ROWS_AT_ONCE, rows))
                yield self._log_probs(label, part)[side].astype(np.float32)

        return cache.grown(name, np.dtype(np.float32), (len(self), 1), computed)[:, 0]

    def _order(self, label: int, side: Literal[0, 1]) -> tuple[Rows, NDArray[np.float32]]:
        """Return the rows that searches of a kept column try first, and their values, kept too."""
        cache, rows = self.store.cache, len(self)
        kind, made_of = f"order-{'pq'[side]}-{label + 1:05d}", f"{self._model_key}-{rows}"
        cache.remove(f"{kind}-*", but=made_of)

        def computed(_done: int, _rows: int) -> Iterator[NDArray[np.void]]:
            found = np.empty(tried_rows(rows), ORDER)
            found["row"], found["value"] = largest_rows(self._kept(label, side))
            yield found

        shape = (tried_rows(rows), 1)
        order = cache.grown(f"{kind}-{made_of}.bin", ORDER, shape, computed)[:, 0]
        return order["row"], order["value"]

    def prepare(self, watch: Watch) -> None:
        """Write what the first searches would wait for to the cache."""
        if self.spec.answers is not None:  # it began with words: it is searched by texts
            self._fronts(self.store.embeddings())
        if self.spec.link is None:
            return
        if self._in_one_file:
            self._kept_table()
        _ = self.held_out_photos, self.validation_photos  # reading them keeps them
        if len(self) < KEPT_FROM:
            return
        watch.start("preparing searches", len(self.space))
        for label in range(len(self.space)):
            for side in (0, 1):
                self._order(label, side)  # made of the column, which it writes
            watch.advance(1)
        watch.finish()

    def _log_probs(self, label: int, rows: slice | Rows) -> Pair:
        """Return log p and log(1 - p) (n,) of some rows under the model's own link."""
        import torch

        from labelwise.links import check_log_probs

        def read(column: int) -> torch.Tensor:
            return torch.from_numpy(np.array(self.store.column(column)[rows])).double()

        with torch.no_grad():
            pair = self.link.label_log_probs(label, read, len(self.space))
            log_p, log_q = check_log_probs(*pair)
        return log_p.numpy(), log_q.numpy()

    def _refitted(self, label: int, corrections: Sequence[Correction]) -> Callable[..., Pair]:
        """Return the map of (log p, log(1 - p)) that held-out photos and corrections call for."""
        known = [one for one in corrections if one.state != "unknown"]
        if not known:
            return lambda log_p, log_q: (log_p, log_q)
        from labelwise.calibrate import platt

        log_p, log_q = self._log_probs(label, np.array([one.row for one in known], np.int64))
        odds = [log_p - log_q]
        labels = [np.array([one.state == "present" for one in known], np.float64)]
        held_out = self.held_out_photos
        if held_out is not None:
            seen = slice(None) if held_out.observed is None else held_out.observed[:, label]
            odds.append((held_out.log_p[:, label] - held_out.log_q[:, label])[seen])
            labels.append(held_out.labels[seen, label].astype(np.float64))
        else:  # the model's own word, as soft labels
            log_p, log_q = self._log_probs(label, slice(0, ROWS_AT_ONCE))
            odds.append(log_p - log_q)
            labels.append(np.exp(log_p))
        u = to_tensor(np.concatenate(odds)[:, None].clip(-FAR, FAR))
        link = platt(u, to_tensor(np.concatenate(labels)[:, None]), None, scope="shared")

        def refit(log_p: NDArray[np.float64], log_q: NDArray[np.float64]) -> Pair:
            given = to_tensor((log_p - log_q).clip(-FAR, FAR)[:, None])
            found = link.log_probs(given)
            return to_numpy(found[0])[:, 0], to_numpy(found[1])[:, 0]

        return refit

    def log_probs(self, rows: slice | Rows, *, refit: bool = True) -> NDArray[np.float64]:
        """Return log p (n, K) of all labels of some photos, as corrected so far."""
        from labelwise.links import check_log_probs

        every = np.arange(len(self))[rows]
        columns = [self.store.column(k)[every] for k in range(len(self.space))]
        logits = to_tensor(np.stack(columns, axis=1)).double()
        log_p = to_numpy(check_log_probs(*self.link.log_probs(logits))[0])
        corrected = {self.space.column(one.label) for one in self.store.corrections()}
        if self._tree is not None:
            tops = {self._tree.top(label) for label in corrected}
            corrected = {k for top in tops for k in (top, *self._tree.below(top))}
        if self._exclusive is not None:
            groups = [group for group in self._exclusive.groups if corrected.intersection(group)]
            corrected = corrected.union(*groups)
        for label in corrected:
            log_p[:, label] = self.odds(label, refit=refit).log_p.values[every]
        return log_p

    def probability(self, row: int, label: str) -> float:
        """Return the probability of one label of one photo."""
        return float(np.exp(self.odds(self.space.column(label)).log_p.values[row]))

    def given(self, label: int) -> NDArray[np.bool_]:
        """Return which photos the model's rule, or a person, gives a label (rows,)."""
        rule = self.spec.made_rule
        log_p = self.odds(label).log_p.values
        if isinstance(rule, Threshold):
            value = rule.value if isinstance(rule.value, float) else rule.value[label]
            above: NDArray[np.bool_] = np.exp(log_p) >= value
            return above
        sets: NDArray[np.bool_] = self._sets
        return sets[:, label]

    def sets(self, rows: slice | Rows, rule: Rule | None = None) -> NDArray[np.bool_]:
        """Return the label sets (n, K) of some photos; what people said stands above the rule.

        A ``rule`` that is given was promised on held-out photos under the model's own link.
        """
        log_p = self.log_probs(rows, refit=rule is None)
        probs = np.exp(log_p).astype(np.float32)  # as rules are fitted: Link.decision_probs
        sets = np.array((rule or self.spec.made_rule)(probs))
        certain: NDArray[np.bool_] = (sets | (log_p == 0)) & ~np.isneginf(log_p)
        return certain

    @cached_property
    def _sets(self) -> NDArray[np.bool_]:
        """The label sets of a rule that looks at all labels of a photo together."""
        starts = range(0, len(self), ROWS_AT_ONCE)
        parts = [self.sets(slice(start, start + ROWS_AT_ONCE)) for start in starts]
        return np.concatenate([np.empty((0, len(self.space)), np.bool_), *parts])

    # Corrections

    @cached_property
    def _tree(self) -> LabelTree | None:
        """The taxonomy among the labels of a model that obeys one."""
        own = self.spec.made_taxonomy
        return None if own is None else own.within(self.space)

    @cached_property
    def _exclusive(self) -> AttributeColumns | None:
        """The groups of labels that exclude each other, of a model that obeys such."""
        # Only a grouped link knows such labels, and to make one takes torch.
        link = self.spec.made_link if (self.spec.link or {}).get("kind") == "grouped" else None
        return None if link is None else link.exclusive

    def corrections_of(self, label: int) -> list[Correction]:
        """Return what people say of a label, and what follows for it by the model's rules.

        By its taxonomy a label is present where one of its kinds is, and absent where what it is a
        kind of is absent. Of labels that exclude each other, those beside a present one are
        absent, and the last one left of exactly one is present. What was said of the label itself
        stands.
        """
        own = self.store.corrections(self.space.names[label])
        told = {one.row for one in own}
        follows = {one.row: one for one in (*self._by_tree(label), *self._by_group(label))}
        return [*own, *(one for row, one in follows.items() if row not in told)]

    def _by_tree(self, label: int) -> Iterator[Correction]:
        """Yield what follows for a label from those above and below it in the taxonomy."""
        if self._tree is None:
            return
        for relatives, state in (
            (self._tree.above(label), "absent"),
            (self._tree.below(label), "present"),
        ):
            for relative in relatives:
                for one in self.store.corrections(self.space.names[relative]):
                    if one.state == state:
                        yield replace(one, label=self.space.names[label])

    def _by_group(self, label: int) -> Iterator[Correction]:
        """Yield what follows for a label from those that exclude it; nothing where they clash."""
        rules = self._exclusive
        group = () if rules is None else next((g for g in rules.groups if label in g), ())
        if rules is None or not group:
            return
        last: dict[int, Correction] = {}
        said = [self.store.corrections(self.space.names[column]) for column in group]
        rows = {
            row: at for at, row in enumerate(sorted({one.row for some in said for one in some}))
        }
        labels = np.zeros((len(rows), len(group)))
        observed = np.zeros(labels.shape, np.bool_)
        for at, some in enumerate(said):
            for one in some:
                labels[rows[one.row], at] = one.state == "present"
                observed[rows[one.row], at] = one.state != "unknown"
                last[one.row] = one
        found = rules.alone(group, range(len(group))).settled(labels, observed)
        place = group.index(label)
        for row, at in rows.items():
            if found.observed[at, place]:
                state: Fact = "present" if found.labels[at, place] else "absent"
                yield replace(last[row], label=self.space.names[label], state=state)

    def correct(
        self,
        row: int,
        states: dict[str, Fact],
        *,
        who: str | None = None,
        source: str = "correction",
    ) -> None:
        """Note what a person says of some labels of a photo; an unknown label is refused."""
        for name, state in states.items():
            self.space.column(name)
            if state not in get_args(Fact):
                known = ", ".join(get_args(Fact))
                raise DataError(f"what is said of {name!r} must be one of {known}, got {state!r}")
        if not 0 <= row < len(self):
            raise DataError(f"photos are numbered from 0 to {len(self) - 1}, got {row}")
        self.__dict__.pop("_sets", None)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        self.store.correct(
            [
                Correction(row, name, state, who or getuser(), at, source)
                for name, state in states.items()
            ]
        )

    def row_of(self, photo: str | Path) -> int:
        """Return the row of a photo, which must be in the index."""
        row = self.store.row_of(os.fspath(photo))
        if row is None:
            raise DataError(
                f"{photo} is not in {self.folder}; bring it up to date with `labelwise index`"
            )
        return row

    def picture(self, row: int) -> tuple[bytes, str] | None:
        """Return the bytes and the name of a photo; None where no file gives them."""
        try:
            return self.files_of(row).read()
        except StorageError:
            return None

    def files_of(self, row: int) -> PhotoFiles:
        """Return the files of a photo, which can be read without the index."""
        (content,) = self.store.contents_of([row]).values()
        return PhotoFiles(content.hash, tuple(sorted(self.store.places_of([row])[row])))

    # Similar photos

    @cached_property
    def projection(self) -> Projection | None:
        """From the backbone's features to the embeddings kept here; None before the first."""
        path = self._checked("projection.npy")
        return None if path is None else Projection(np.load(path, allow_pickle=False))

    def start_projection(self, features: NDArray[np.float32]) -> Projection:
        """Fit the projection of this index to some features."""
        projection = Projection.fitted(features)
        path = self.folder / "projection.npy"
        with (
            self.store.checksums.rewriting(path.name),
            replacing(path) as temporary,
            temporary.open("wb") as file,
        ):
            np.save(file, projection.numbers)
        self.__dict__.pop("projection", None)
        return projection

    def similar(
        self, embedding: NDArray[np.float16], count: int, without: Iterable[int] = ()
    ) -> list[tuple[int, float]]:
        """Return the rows whose photos look most like an embedding, with the cosines."""
        vectors = self.store.embeddings()
        excluded = np.union1d(self.store.dead_rows(), np.array([*without], np.int64))
        if self._codes is None or self._codes.shape[1] != len(vectors):
            self._codes = codes_of(vectors)
        rows, cosines = nearest_rows(embedding, vectors, self._codes, count, excluded)
        return list(zip(rows.tolist(), cosines.tolist(), strict=True))

    def along(
        self, direction: NDArray[np.float64], count: int, among: Rows | None = None
    ) -> tuple[Rows, NDArray[np.float64]]:
        """Return the rows whose features lie farthest along a direction (D,), with the cosines.

        ``among`` are the rows that are looked at, None for all. The answer is exact.
        """
        projection, vectors = self.projection, self.store.embeddings()
        if projection is None or not vectors.shape[1]:
            raise DataError(
                f"{self.folder} keeps no embeddings, so its photos cannot be ranked by a text; "
                "make it again with a model of `labelwise start`"
            )
        if direction.shape != projection.numbers.shape[1:]:
            raise DataError(
                f"the text has {len(direction):,} features and the photos of {self.folder} have "
                f"{projection.numbers.shape[1]:,}; index them with the model of the text"
            )
        turned = projection.numbers[1:].astype(np.float64) @ direction
        dead = self.store.dead_rows()
        return farthest_rows(turned, vectors, count, dead, among, self._fronts(vectors))

    def _fronts(self, vectors: NDArray[np.float16]) -> Fronts | None:
        """Return what says which rows need not be measured; None where measuring all is quick."""
        return fronts_of(self.store.cache, vectors) if len(vectors) >= PARALLEL else None


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

    def save(self, path: Path) -> None:
        """Write the JSON file."""
        with replacing(path) as temporary:
            temporary.write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")

    @staticmethod
    def load(path: Path) -> "IndexFacts":
        """Return what the file says, or raise with what is wrong."""
        try:
            return IndexFacts.model_validate_json(path.read_bytes(), strict=True)
        except FileNotFoundError:
            raise CheckpointError(
                f"{path.parent} is not an index; make one with `labelwise index FOLDER --model RUN`"
            ) from None
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise CheckpointError(
                f"{path} does not describe an index: {reason}; {way_out(path.parent)}"
            ) from None
