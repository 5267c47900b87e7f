"""Start: a run from photos and words, before and after people have answered.

    embeddings/                        features of photos, by content: .npz files of 512 photos
    words.txt                          the words
    words.json                         the text-image model, and the hash of what makes its texts
    words.safetensors                  of classes and words: vectors and weights of the classes
    text-head.safetensors              scores of the words that no answer has moved
    answers.jsonl                      what people said of photos
    answers.csv                        the same as a label table, those set aside as its split test
    predictions/train, test.parquet    answered photos that fitted the model, and those set aside
    model.json, model.onnx             network, linear head, link and rule: a model like any other
                                       (of towers and other classifiers model.safetensors)

Without answers the link is a guess, :meth:`TextImageModel.guessed`. With answers the head is
:func:`.answered.answered_head`; words that nobody answered about are ranked but never chosen.
"""

import json
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from labelwise.answers.agreement import ASIDE, write_table
from labelwise.answers.log import AnswerLog, LoggedAnswer, answered, lines_of_run
from labelwise.base.arrays import Mask, Numbers, to_numpy
from labelwise.base.files import locked, replacing, write_error, write_text
from labelwise.base.progress import Silent, Watch
from labelwise.base.tensors import load_arrays, save_tensors
from labelwise.base.text import counted, one_line_of
from labelwise.decide import NEVER, Rule, Threshold, WithParents
from labelwise.errors import CheckpointError, DataError, ImageError, SettingsError
from labelwise.eyes import Eye
from labelwise.eyes.feature_cache import eye_key
from labelwise.links import Consistent, Link, Sigmoid
from labelwise.models.run_folder import RunFolder
from labelwise.models.solved import SolvedModel, weights_of
from labelwise.models.spec import MODEL_FILE, SOLVED_FILE, WEIGHTS_FILE, ModelSpec
from labelwise.photos import Index
from labelwise.photos.lists import CheckSession, name_of
from labelwise.photos.query import TEXTS_FILE, Hit, photos_along
from labelwise.photos.words.answered import AnsweredHead, answered_head
from labelwise.photos.words.classes import SentenceEncoder, WeighedTexts
from labelwise.photos.words.guide import QuestionGuide
from labelwise.photos.words.text_image import (
    TextDirections,
    TextHead,
    TextImageKind,
    TextImageModel,
)
from labelwise.photos.words.word_list import WordList, usual_texts
from labelwise.pictures import ImageSource, PictureImages
from labelwise.pictures.inputs import Failure, mapped
from labelwise.predictions import Predictions
from labelwise.queries import Query
from labelwise.scores.tables import aligned_labels
from labelwise.tables import LabelTable
from labelwise.taxonomy import Taxonomy
from labelwise.types import LabelSpace

if TYPE_CHECKING:
    from labelwise.learn.backbones import Backbone

KEY_BYTES = 8


@dataclass(frozen=True)
class PhotoAnswer:
    """What was said of one photo: whether each of some labels is there."""

    id: str
    labels: dict[str, bool]
    aside: bool


@dataclass(frozen=True)
class KeptAnswers:
    """Answers by the digest of the photo."""

    photos: Mapping[bytes, PhotoAnswer]

    @staticmethod
    def of(table: LabelTable, digests: Mapping[int, bytes], set_aside: float) -> "KeptAnswers":
        """Return what a table says of photos; of those without a split a share is set aside."""
        table.require_hard("answers")
        labels, observed = table.targets()
        known = np.ones(labels.shape, bool) if observed is None else observed
        answers: dict[bytes, PhotoAnswer] = {}
        for row, digest in digests.items():
            every = zip(table.space.names, labels[row], known[row], strict=True)
            if said := {name: bool(label) for name, label, told in every if told}:
                split = None if table.split is None else str(table.split[row])
                aside = split == "test" or (split != "train" and is_set_aside(digest, set_aside))
                _join(answers, digest, PhotoAnswer(str(table.ids[row]), said, aside))
        return KeptAnswers(answers)

    def merged(self, newer: "KeptAnswers") -> "KeptAnswers":
        photos = dict(self.photos)
        for digest, photo in newer.photos.items():
            _join(photos, digest, photo)
        return KeptAnswers(photos)

    def targets(self, names: Sequence[str], *, aside: bool) -> tuple[list[bytes], Numbers, Mask]:
        """Return digests, labels (n, K) and which are known, of photos with any of some labels."""
        rows = {
            digest: [answer.labels.get(name) for name in names]
            for digest, answer in sorted(self.photos.items())
            if answer.aside == aside and not answer.labels.keys().isdisjoint(names)
        }
        said = np.array([*rows.values()], np.float64).reshape(len(rows), len(names))
        return [*rows], np.nan_to_num(said), ~np.isnan(said)  # None is NaN

    def extended(self, path: Path, newer: "KeptAnswers") -> "KeptAnswers":
        """Return both, and append what is new to the log in a file."""
        both = self.merged(newer)
        lines = [
            answered(digest.hex(), label, "yes" if said else "no", None, "label", path=photo.id,
                     draw=ASIDE if photo.aside else None)
            for digest, photo in both.photos.items()
            for label, said in photo.labels.items()
            if (old := self.photos.get(digest)) is None
            or (old.labels.get(label), old.aside) != (said, photo.aside)
        ]  # fmt: skip
        _log(path).append(lines)
        return both

    @staticmethod
    def load(path: Path) -> "KeptAnswers":
        photos: dict[bytes, PhotoAnswer] = {}
        for line in _log(path).lines():
            if isinstance(line, LoggedAnswer):
                digest, known = bytes.fromhex(line.photo), {line.label: line.answer == "yes"}
                said = PhotoAnswer(line.path or line.photo, known, line.draw == ASIDE)
                _join(photos, digest, said)
                if line.answer not in ("yes", "no"):
                    photos[digest].labels.pop(line.label)
        return KeptAnswers({digest: photo for digest, photo in photos.items() if photo.labels})


def _log(path: Path) -> AnswerLog:
    return AnswerLog(path, lambda: lines_of_run(path.with_suffix(".parquet")))


def _join(photos: dict[bytes, PhotoAnswer], digest: bytes, new: PhotoAnswer) -> None:
    """Add what was said of a photo; what was set aside once stays aside."""
    old = photos.get(digest, PhotoAnswer(new.id, {}, aside=False))
    photos[digest] = PhotoAnswer(new.id, {**old.labels, **new.labels}, old.aside or new.aside)


def is_set_aside(digest: bytes, share: float) -> bool:
    """Return whether a photo of this content is among the share that is set aside."""
    return int.from_bytes(digest[:KEY_BYTES]) < share * float(1 << 8 * KEY_BYTES)


PART = 512  # photos


@dataclass(frozen=True, eq=False)
class PhotoFeatures:
    """Features by content: ``digests`` of readable rows, all ``known``, how many ``computed``."""

    digests: Mapping[int, bytes]
    known: Mapping[bytes, NDArray[np.float32]]
    failures: tuple[Failure, ...]
    computed: int

    def of(self, digests: Sequence[bytes]) -> NDArray[np.float32]:
        return np.stack([self.known[digest] for digest in digests])


def features_of(
    images: ImageSource,
    network: "Eye | Backbone",
    cache: Path,
    *,
    batch_size: int = 64,
    device: str = "cpu",
    watch: Watch | None = None,
) -> PhotoFeatures:
    """Return the features of photos, from the cache or computed and written there."""
    folder = Path(cache) / _key(network)
    watch = watch or Silent()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(folder, error) from None

    def identity(row: int) -> bytes | Failure:
        try:
            return images.identity(row)
        except ImageError as error:
            return Failure(row, images.ids[row], str(error))

    with locked(folder):
        with ThreadPoolExecutor() as pool:
            answers = list(pool.map(identity, range(len(images))))
        digests = {row: answer for row, answer in enumerate(answers) if isinstance(answer, bytes)}
        failures = [answer for answer in answers if isinstance(answer, Failure)]
        known = _read_parts(folder)
        # of photos with one content the first is computed
        first = {d: row for row, d in reversed(digests.items()) if d not in known}
        held: dict[bytes, NDArray[np.float32]] = {}
        watch.start("reading photos", len(digests), len(digests) - len(first))
        try:
            for batch in _means(network, images, sorted(first.values()), batch_size, device):
                failures += batch.failures
                vectors = to_numpy(batch.values[0]) if batch.values else ()
                for row, vector in zip(batch.rows.tolist(), vectors, strict=True):
                    held[digests[row]] = vector
                watch.advance(len(batch.rows) + len(batch.failures))
                if len(held) >= PART:
                    known |= _write_part(folder, held)
                    held = {}
        finally:
            if held:  # also when someone stops it: what was computed is kept
                known |= _write_part(folder, held)
            watch.finish()
    readable = {row: digest for row, digest in digests.items() if digest in known}
    return PhotoFeatures(readable, known, tuple(failures), len(first))


def _key(network: "Eye | Backbone") -> str:
    if isinstance(network, Eye):
        return eye_key(network)
    from labelwise.training.features import content_key

    return content_key(PictureImages([]), network, pooled=True)


def _means(
    network: "Eye | Backbone", images: ImageSource, rows: list[int], batch_size: int, device: str
) -> Iterator[Any]:
    """Yield the pooled features of rows, batch by batch, and which cannot be read."""
    if isinstance(network, Eye) and device == "cpu":
        eye = network
        yield from mapped(
            lambda pixels: (eye.see(pixels)["means"],), images, eye.transform, rows=rows
        )
        return
    from labelwise.photos.words.torch_networks import means_by_torch

    yield from means_by_torch(network, images, rows, batch_size, device)


def _read_parts(folder: Path) -> dict[bytes, NDArray[np.float32]]:
    """Return the features by content; a part that is damaged is computed again."""
    known: dict[bytes, NDArray[np.float32]] = {}
    for path in sorted(folder.glob("*.npz")):
        try:
            with path.open("rb") as stream, np.load(stream) as arrays:
                digests, features = arrays["digests"], arrays["features"]
        except (OSError, ValueError, LookupError, EOFError, BadZipFile):
            path.unlink(missing_ok=True)
            continue
        known |= {bytes(digest): vector for digest, vector in zip(digests, features, strict=True)}
    return known


def _write_part(
    folder: Path, held: dict[bytes, NDArray[np.float32]]
) -> dict[bytes, NDArray[np.float32]]:
    numbers = [int(path.stem) for path in folder.glob("*.npz") if path.stem.isdigit()]
    path = folder / f"{max(numbers, default=0) + 1:09d}.npz"
    digests = np.frombuffer(b"".join(held), np.uint8).reshape(len(held), -1)
    with replacing(path) as temporary, temporary.open("wb") as stream:
        np.savez(stream, digests=digests, features=np.stack(list(held.values())))
    return held


EMBEDDINGS, ANSWERS_FILE, WORDS_FILE = "embeddings", "answers.jsonl", "words.txt"
TABLE_FILE, TEXT_HEAD_FILE = "answers.csv", "text-head.safetensors"
SET_ASIDE = 0.2  # of the answered photos, unless told otherwise
DOUBTS_SHOWN = 20  # sentences
WORDS_SHOWN = 5  # of those that have left the list
LEAST_ANSWERS = 10  # photos, before answers move anything


@dataclass(frozen=True, eq=False)
class Started:
    """What a start came to; ``nearest_classes`` are those that the words lean on most, if any."""

    folder: Path
    spec: ModelSpec
    photos: int
    computed: int
    failures: tuple[Failure, ...]
    fitted_on: int
    aside: int
    answered: AnsweredHead | None
    nearest_classes: tuple[str, ...]
    notes: tuple[str, ...]


def start(
    images: ImageSource,
    words: WordList,
    model: TextImageModel,
    out: Path,
    *,
    answers: LabelTable | None = None,
    set_aside: float = SET_ASIDE,
    batch_size: int = 64,
    device: str = "cpu",
    watch: Watch | None = None,
) -> Started:
    """Make the run of photos and words in ``out``, or add photos, words and answers to it;
    the share ``set_aside`` of answered photos fits nothing.
    """
    if not 0 <= set_aside < 1:
        raise SettingsError(f"set_aside must be a share from 0 up to 1, got {set_aside:g}")
    run = RunFolder(out)
    if (run.path / MODEL_FILE).is_file() and run.spec.answers is None:
        raise SettingsError(f"{run.path} holds a run that was trained, not one of words; change -o")
    with run.lock():
        notes = model.doubts(words)
        if len(notes) > DOUBTS_SHOWN:  # a thousand words have many pairs
            more = f"and {len(notes) - DOUBTS_SHOWN:,} more doubts about words"
            notes = [*notes[:DOUBTS_SHOWN], f"{more}: start with fewer of them"]
        cache, network = run.path / EMBEDDINGS, model.network
        read = partial(
            features_of, network=network, cache=cache, batch_size=batch_size, device=device
        )
        photos = read(images, watch=watch)
        if not photos.digests:
            reasons = "; ".join(failure.reason for failure in photos.failures[:1])
            raise DataError(f"of {counted(len(images), 'photo')} none could be read: {reasons}")
        kept, paths = KeptAnswers.load(run.path / ANSWERS_FILE), _paths(images, photos)
        if answers is not None:
            notes += aligned_labels(answers, words.names)[1]
            their = read(answers.images)
            paths = {**_paths(answers.images, their), **paths}
            new = KeptAnswers.of(answers, their.digests, set_aside)
            kept = kept.extended(run.path / ANSWERS_FILE, new)
            failures, computed = photos.failures + their.failures, photos.computed + their.computed
            photos = PhotoFeatures(photos.digests, their.known, failures, computed)
        # A photo is called by where it lies, or else as it was when it was answered.
        names = {digest: photo.id for digest, photo in kept.photos.items()} | paths
        notes += _unused(words, kept.photos)
        return _finished(run, words, model, photos, kept.photos, names, notes)


def targets_of(
    words: WordList, answers: KeptAnswers, photos: Container[bytes], *, aside: bool
) -> tuple[list[bytes], Numbers, Mask]:
    """Return digests, labels (n, K) and which are known, of the answered ones among photos."""
    digests, labels, observed = answers.targets(words.names, aside=aside)
    if words.taxonomy is not None:
        labels, known = words.taxonomy.within(words.space).complete(labels, observed)
        observed = np.ones_like(observed) if known is None else known
    there = [row for row, digest in enumerate(digests) if digest in photos]
    return [digests[row] for row in there], labels[there], observed[there]


def _unanswered(words: WordList, observed: Mask) -> tuple[str, ...]:
    columns = zip(words.names, observed.T, strict=True)
    return tuple(name for name, known in columns if not known.any())


def can_teach(digests: Sequence[bytes], labels: Numbers, observed: Mask) -> bool:
    """Return whether answers are enough to move anything: some photos, a yes and a no."""
    said = labels[observed]
    return len(digests) >= LEAST_ANSWERS and bool((said > 0.5).any() and (said < 0.5).any())


def _paths(images: ImageSource, photos: PhotoFeatures) -> dict[bytes, str]:
    rows = sorted(photos.digests, reverse=True)  # of copies, the first
    located = zip(rows, images.locations(rows), strict=True)
    return {
        photos.digests[row]: str(Path(file.path).absolute())
        for row, file in located
        if file is not None and file.size is None
    }


def _finished(
    run: RunFolder,
    words: WordList,
    model: TextImageModel,
    photos: PhotoFeatures,
    answers: Mapping[bytes, PhotoAnswer],
    names: Mapping[bytes, str],
    notes: list[str],
) -> Started:
    space, taxonomy = words.space, words.taxonomy
    every = photos.of(list(dict.fromkeys(photos.digests.values())))  # each content once
    text = model.head([word.texts for word in words.words], every.mean(0), every)
    notes += model.disagreements(words, every)
    sides = [
        targets_of(words, KeptAnswers(answers), photos.known, aside=own) for own in (False, True)
    ]
    digests, labels, observed = sides[0]
    count, answered, unanswered = len(digests), None, tuple[str, ...]()
    link: Link
    rule: Rule = Threshold(0.5)
    if can_teach(*sides[0]):
        answered = answered_head(text, photos.of(digests), labels, observed, pool=every)
        head, link = answered.head, answered.calibration.link
        unanswered = _unanswered(words, observed)
        if unanswered:
            rule = Threshold(tuple(NEVER if name in unanswered else 0.5 for name in words.names))
    else:
        head, link = text, model.guessed(text.scores(every))
        if count:
            when = "when there is a yes and a no among the answers"
            notes.append(
                f"{counted(count, 'answered photo')} kept; they count from {LEAST_ANSWERS} on, "
                f"without those set aside, and {when}"
            )
        count = 0
    if taxonomy is not None:
        parent = taxonomy.within(space).parent
        link, rule = Consistent(link, parent), WithParents(rule, parent)
    text.save(run.path / TEXT_HEAD_FILE)
    for split, (digests, labels, observed) in zip(("train", "test"), sides, strict=True):
        path = run.predictions_path(split)
        if not count or not digests:
            path.unlink(missing_ok=True)
            continue
        logits = head.scores(photos.of(digests)).astype(np.float32)
        facts = (labels.astype(np.float32), observed, words.names, split, Sigmoid())
        Predictions([names[digest] for digest in digests], logits, *facts).save(path)
    if answers:
        said = {name for photo in answers.values() for name in photo.labels}
        by_name = {names[digest]: photo.labels for digest, photo in answers.items()}
        aside = {names[digest] for digest, photo in answers.items() if photo.aside}
        with replacing(run.path / TABLE_FILE) as temporary:
            columns = [name for name in words.names if name in said]
            write_table(temporary, columns, by_name, aside)
    write_text(run.path / WORDS_FILE, words.text())
    save_free_text(model, run.path)
    _save_model(run, model, head, (space, link, rule), taxonomy, count, unanswered)
    facts_of_photos = (len(photos.digests), photos.computed, photos.failures)
    nearest = tuple(model.nearest_classes(words))
    answers_of = (count, len(sides[1][0]), answered)
    return Started(run.path, run.spec, *facts_of_photos, *answers_of, nearest, tuple(notes))


def _save_model(
    run: RunFolder,
    model: TextImageModel,
    head: TextHead,
    deployed: tuple[LabelSpace, Link, Rule],
    taxonomy: Taxonomy | None,
    answers: int,
    unanswered: tuple[str, ...],
) -> None:
    weight, network = np.asarray(head.weight.T), model.network
    facts: dict[str, Any] = {"taxonomy": taxonomy, "answers": answers, "unanswered": unanswered}
    if isinstance(network, Eye):
        made = SolvedModel.of(network, ("means",), weight, head.bias, *deployed, "words")
        (run.path / WEIGHTS_FILE).unlink(missing_ok=True)
        replace(made, **facts).save(run.path)
        return
    from labelwise.photos.words.torch_networks import torch_model

    (run.path / SOLVED_FILE).unlink(missing_ok=True)
    replace(torch_model(network, weight, head.bias, *deployed), **facts).save(run.path)


def _unused(words: WordList, answers: Mapping[bytes, PhotoAnswer]) -> list[str]:
    said = Counter(name for photo in answers.values() for name in photo.labels)
    others = [name for name in said if name not in words.names]
    if not others:
        return []
    shown = ", ".join(map(repr, others[:WORDS_SHOWN])) + ", ..." * (len(others) > WORDS_SHOWN)
    count = counted(sum(said[name] for name in others), "answer")
    return [
        f"what was said about {shown} ({count}) is kept, and counts when the list has "
        f"{'it' if len(others) == 1 else 'them'} again; to describe a word otherwise, keep its "
        f"name, as in '{others[0]}: another text'"
    ]


# What scores any text. A text is a direction in the space of the network's features, and photos
# are ranked by the cosine with it. That is a likeness and not a probability, because nobody has
# answered about this text.


CLASSES_FILE = "words.safetensors"
LONGEST_TEXT = 1000  # characters


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: TextImageKind = "classes"  # earlier runs do not say
    model: str
    encoder: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    classes: tuple[str, ...] = ()
    captions: bool = False  # whether the package's maps of captions belong to the network


def save_free_text(model: TextImageModel, run: Path) -> None:
    """Keep in a run what scores texts."""
    texts, classes, captions = model.texts, tuple[str, ...](), False
    if isinstance(texts, WeighedTexts):
        classes, vectors = texts.names, texts.name_vectors
        captions = texts.maps is not None
        with replacing(run / CLASSES_FILE) as temporary:
            save_tensors(temporary, {"vectors": vectors, "weight": texts.weight})
    made = {"kind": model.kind, "model": str(model.folder.resolve()), "encoder": model.digest}
    facts = {**made, "classes": classes, "captions": captions}
    write_text(run / TEXTS_FILE, json.dumps(facts, indent=2, ensure_ascii=False) + "\n")


@dataclass(frozen=True, eq=False)
class FreeText:
    """The text half of the model that a run began with."""

    texts: TextDirections

    @classmethod
    def of(cls, index: Index, encoder: Path | None = None) -> "FreeText":
        run = Path(index.facts.model)
        if not (run / TEXTS_FILE).is_file():
            lacks = f"{run} of {index.folder} did not, or is not there"
            mend = "run `labelwise train PHOTOS --words WORDS`"
            raise DataError(f"free text needs a model that began with words, and {lacks}; {mend}")
        if RunFolder(run).spec.weights_sha256 != index.spec.weights_sha256:
            again = "index again with --rebuild"
            raise DataError(f"{run} was made again after {index.folder}; {again}")
        return cls.load(run, encoder)

    @classmethod
    def load(cls, run: Path, encoder: Path | None = None) -> "FreeText":
        path = run / TEXTS_FILE
        try:
            facts = _Facts.model_validate_json(path.read_bytes())
            if facts.kind == "classes":
                arrays = load_arrays(run / CLASSES_FILE)
                vectors, weight = arrays["vectors"], arrays["weight"]
                if not len(vectors) == len(weight) == len(facts.classes):
                    raise ValueError("it does not say as many classes as there are weights")
        except (OSError, CheckpointError, ValidationError, ValueError, LookupError) as error:
            reason = f"{path} and {CLASSES_FILE} cannot be used ({one_line_of(error)})"
            raise CheckpointError(f"{reason}; run `labelwise train --words` again") from None
        folder = Path(facts.model) if encoder is None else encoder
        what = "text-image model" if facts.kind == "towers" else "sentence encoder"
        if not folder.is_dir():
            missing = f"the {what} of {run} is not in {folder}"
            raise SettingsError(f"{missing}; name its folder with --encoder")
        made: TextImageModel | SentenceEncoder
        if facts.kind == "towers":
            from labelwise.photos.words.tower_files import TwoTowers

            made = TwoTowers(folder)
        else:
            made = SentenceEncoder(folder)
        if made.digest != facts.encoder:
            other = f"{folder} holds another {what} than {run} was made with"
            raise SettingsError(f"{other}; name its --encoder")
        if isinstance(made, SentenceEncoder):
            return cls(WeighedTexts(made, facts.classes, vectors, weight))
        return cls(made.texts)

    def doubt(self, text: str) -> str | None:
        return self.texts.doubt(text, (text,))

    def direction(self, text: str) -> NDArray[np.float64]:
        if not text.strip() or len(text) > LONGEST_TEXT:
            must = f"a text must have 1 to {LONGEST_TEXT:,} characters, got {len(text):,}"
            raise DataError(f"{must}; describe what the photos show, as in: a red bicycle")
        texts = usual_texts(text) if len(text.split()) == 1 else (text,)
        return np.asarray(self.texts.directions([texts])[:, 0])

    def photos(
        self,
        index: Index,
        text: str,
        count: int,
        *,
        query: Query | None = None,
        at_least: float = 0.5,
    ) -> list[Hit]:
        """Return the photos most like a text, as :func:`photos_along` does."""
        direction = self.direction(text)
        return photos_along(index, direction, count, query=query, at_least=at_least)

    def check(self, index: Index, text: str, count: int, **options: Any) -> CheckSession:
        hits = self.photos(index, text, count)
        return CheckSession.of_ranked(index, name_of("text", text), hits, **options)


POOL = 5000  # photos


def _network_of(run: Path, spec: ModelSpec) -> "tuple[Eye | Backbone, TextHead]":
    """Return what sees the photos of a run, and its head."""
    if not RunFolder(run).is_solved:
        from labelwise.photos.words.torch_networks import network_and_head

        return network_and_head(run)
    weights = weights_of(run)
    head = TextHead(weights["head/weight"].T, weights["head/bias"])
    return Eye.open().with_transform(spec.transform), head


class WordsLearner:
    """What a run of words thinks of some photos (``guide``), and would with more answers;
    one of an earlier version does not learn: it keeps no text head.
    """

    def __init__(
        self, run: Path, photos: Sequence[Path], *, share: float = SET_ASIDE, watch: Watch
    ) -> None:
        """Read a run, and the features of photos, of which ``share`` is set aside."""
        spec = RunFolder(run).spec
        if spec.answers is None or spec.made_link is None:
            give = "give a run of `labelwise train --words`"
            raise SettingsError(f"{run} did not begin with words; {give}")
        network, head = _network_of(run, spec)
        images = PictureImages(photos)
        self._features = features_of(images, network, run / EMBEDDINGS, watch=watch)
        rows = sorted(self._features.digests)
        self._digests = [self._features.digests[row] for row in rows]
        self._names = tuple(str(photos[row].absolute()) for row in rows)
        self._share = share
        named = zip(self._names, self._digests, strict=True)
        self._aside = frozenset(name for name, digest in named if is_set_aside(digest, share))
        self._words = WordList.read(run / WORDS_FILE)
        self._kept = KeptAnswers.load(run / ANSWERS_FILE)
        path = run / TEXT_HEAD_FILE
        self._text = TextHead.load(path) if path.is_file() else None
        self.guide = self._guide(head, spec.made_link, spec.answers, spec.unanswered)

    def learnt(self, answers: Mapping[str, Mapping[str, bool]]) -> QuestionGuide:
        """Return the guide that follows from answers, by the path of the photo and the word."""
        of_path = dict(zip(self._names, self._digests, strict=True))
        given = {
            of_path[path]: PhotoAnswer(path, dict(said), is_set_aside(of_path[path], self._share))
            for path, said in answers.items()
            if path in of_path
        }
        kept, known = self._kept.merged(KeptAnswers(given)), self._features.known
        digests, labels, observed = targets_of(self._words, kept, known, aside=False)
        if self._text is None or not can_teach(digests, labels, observed):
            return self.guide
        x = self._features.of(digests)
        pool = self._features.of(sorted(set(self._digests))[-POOL:])
        made = answered_head(self._text, x, labels, observed, pool=pool)
        link: Link = made.calibration.link
        if self._words.taxonomy is not None:
            link = Consistent(link, self._words.taxonomy.within(self._words.space).parent)
        return self._guide(made.head, link, len(digests), _unanswered(self._words, observed))

    def _guide(
        self, head: TextHead, link: Link, learnt_from: int, unanswered: Sequence[str]
    ) -> QuestionGuide:
        words = self._words.names
        single = TextHead(head.weight.astype(np.float32), head.bias.astype(np.float32))
        parts = [np.empty((0, len(words)))]
        for start in range(0, len(self._digests), POOL):
            features = self._features.of(self._digests[start : start + POOL])
            parts.append(np.exp(link.log_probs(single.scores(features).astype(np.float64))[0]))
        probs, others = np.concatenate(parts), frozenset(unanswered)
        return QuestionGuide(self._aside, self._names, words, probs, learnt_from, others)
