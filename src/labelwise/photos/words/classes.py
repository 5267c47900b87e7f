"""ClassesAndWords: a text-image model made of an image classifier and a sentence encoder.

    a_kc      = softmax over classes c of cos(text(k), text(c)) / T
    score_k   = sum_c a_kc (logit_c - mean of logit_c over the photos)

logit_c = W_c f + b_c is linear in the pooled features f, so word k has the weights sum_c a_kc W_c.
Two more routes join where they can (:class:`Kinds`, :class:`CaptionMaps`). Neither is linear in the
features, so a ridge regression on the photos moves the head to where it gives their weighted sum.

    p(dog)       = sum of the classifier's probabilities over its 118 classes of dogs
    caption(t)   = cos(A (features - mean) / deviation, B (text - mean))

A folder of such a model holds an encoder (one .onnx file and tokenizer.json), and perhaps the
classifier as timm writes it for a hub, with the names of its classes in classes.txt. Otherwise the
classifier is the built-in eye, EfficientNet-Lite0, which needs no torch. Each text is encoded
alone: files of 8-bit weights answer otherwise when a text has company.
"""

import hashlib
import tomllib
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.base.arrays import Numbers
from labelwise.base.files import replacing
from labelwise.base.text import counted, first_line
from labelwise.errors import DataError, SettingsError
from labelwise.eyes import Eye
from labelwise.eyes.kinds import Kinds, imagenet_kinds, imagenet_names
from labelwise.eyes.session import open_session
from labelwise.photos.embeddings import MAPS_FILE
from labelwise.photos.words.text_image import (
    TextDirections,
    TextHead,
    TextImageModel,
    pairs_above,
)
from labelwise.photos.words.word_list import WordList, usual_texts

CONCEPTS_FILE = "concepts.toml"
SAME_TEXT, SAME_ROW = 0.95, 0.999  # cosines
PROBE = "a photo of a dog"

Vectors = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class CaptionMaps:
    """Photos (D,) and texts (E,) in one space, and ``weights`` (2, 3) of the three routes.

    The first row is of words that are not a kind of any class.
    """

    image: Vectors  # (d, D), of standardised features
    text: Vectors  # (d, E)
    deviation: Vectors  # (D,)
    text_mean: Vectors  # (E,)
    weights: Vectors
    row: Vectors  # (D,), of the classifier's weights
    probe: Vectors  # (E,), of a text

    def fit(self, weight: Vectors, encode: Callable[[str], Vectors]) -> bool:
        if weight.shape[1:] != self.row.shape or _cosine(weight[0], self.row) < SAME_ROW:
            return False
        vector = encode(PROBE)
        return vector.shape == self.probe.shape and _cosine(vector, self.probe) > SAME_TEXT

    def texts(self, vectors: Vectors) -> Vectors:
        mapped = (vectors - self.text_mean) @ self.text.T
        return np.asarray(mapped / np.linalg.norm(mapped, axis=1, keepdims=True))

    def directions(self, vectors: Vectors) -> Vectors:
        """Return the directions (D, K) of texts among the features, without photos' lengths."""
        return np.asarray((self.texts(vectors) @ self.image / self.deviation).T)

    def scores(self, features: Vectors, vectors: Vectors) -> Vectors:
        mapped = ((features - features.mean(0)) / self.deviation) @ self.image.T
        mapped /= np.maximum(np.linalg.norm(mapped, axis=1, keepdims=True), 1e-12)
        return np.asarray(mapped @ self.texts(vectors).T)


@cache
def caption_maps() -> CaptionMaps:
    """Return the maps of the package."""
    with np.load(MAPS_FILE, allow_pickle=False) as file:
        return CaptionMaps(**{name: np.asarray(file[name], np.float32) for name in file.files})


def _cosine(one: Vectors, other: Vectors) -> float:
    return float(one @ other / max(float(np.linalg.norm(one) * np.linalg.norm(other)), 1e-12))


EXTRA = "pip install 'labelwise[words]'"
TOKENIZER_FILE = "tokenizer.json"
LONGEST = 128  # tokens; what comes after is cut off, as all-MiniLM-L6-v2 does
REMEMBERED = 4096  # vectors; a list of words is asked about several times
SHORTEST = 3  # letters of a word that may be spelled out
PIECE = 1.5  # letters per piece, below which a word is spelled out


def read_tokenizer(path: Path) -> Any:
    """Return the tokenizer of a file."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        needed = f"words need the package {error.name!r}"
        raise SettingsError(f"{needed}; install it with `{EXTRA}`") from None
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises no class of its own
        raise SettingsError(f"{path} cannot be read: {first_line(error)}") from None


class SentenceEncoder:
    """A text encoder of a local folder; nothing is fetched and no code of the folder is run."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not (self.folder / TOKENIZER_FILE).is_file():
            lacking = f"{self.folder} must hold {TOKENIZER_FILE}"
            raise SettingsError(f"{lacking}; copy it from the encoder's home")
        graphs = sorted([*self.folder.glob("*.onnx"), *self.folder.glob("onnx/*.onnx")])
        if len(graphs) != 1:
            names = ", ".join(path.name for path in graphs) or "none"
            raise SettingsError(f"{self.folder} must hold one .onnx file, got {names}")
        (graph,) = graphs
        self.tokenizer = read_tokenizer(self.folder / TOKENIZER_FILE)
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(LONGEST)
        content = graph.read_bytes()
        self.digest = hashlib.sha256(content).hexdigest()
        self.session = open_session(content, threads=1, name=str(graph))
        self.inputs = {node.name for node in self.session.get_inputs()}
        self._vector = lru_cache(REMEMBERED)(self._encoded)
        unknown = self.inputs - {"input_ids", "attention_mask", "token_type_ids"}
        if unknown or "input_ids" not in self.inputs:
            inputs = ", ".join(self.inputs)
            raise SettingsError(f"{graph} must take input_ids and attention_mask, got {inputs}")

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.stack([self._vector(text) for text in texts])

    def _encoded(self, text: str) -> NDArray[np.float32]:
        encoding = self.tokenizer.encode(text)
        ids = np.array([encoding.ids], np.int64)
        if not ids.size:
            raise DataError(f"the encoder knows no part of the text {text!r}; write another")
        mask = np.array([encoding.attention_mask], np.int64)
        fed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        answer = self.session.run(None, {name: fed[name] for name in self.inputs})[0]
        if answer.ndim == 3:
            answer = (answer * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
        vector = answer.reshape(-1).astype(np.float64)
        length = np.linalg.norm(vector)
        if not np.isfinite(length) or length == 0:
            raise DataError(f"the encoder gives {text!r} no direction; describe it otherwise")
        return np.asarray(vector / length, np.float32)

    def describe(self, texts: Sequence[str]) -> NDArray[np.float32]:
        mean = self.encode(texts).mean(0)
        return np.asarray(mean / np.linalg.norm(mean))

    def knows(self, text: str) -> bool:
        unknown = {self.tokenizer.token_to_id(mark) for mark in ("[UNK]", "<unk>")} - {None}
        return not unknown & set(self.tokenizer.encode(text).ids)

    def spelled(self, text: str) -> str | None:
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for number, span in zip(encoding.word_ids, encoding.offsets, strict=True):
            if number is not None:
                spans[number].append(span)
        for pieces in spans.values():
            word = text[pieces[0][0] : pieces[-1][1]]
            if word.isalpha() and SHORTEST <= len(word) < PIECE * len(pieces):
                return word
        return None


TEMPERATURE = 0.08  # T; on COCO photos .065 to .1 rank about equally well
CLASSIFIER_FILE, CLASSES_FILE = "config.json", "classes.txt"
FAR = 0.45  # cosine of a word and the nearest class, below which the word is far from all classes
AGREE = 0.2  # correlation over photos of what kinds and captions say of a word
LEAST_PHOTOS, MOST_PHOTOS = 50, 5000  # that the routes are standardised and joined on
RIDGE = 0.1  # on COCO .01 to 1 rank about equally well
ALIKE = 0.9  # cosine of what two words make of the classes; couch and sofa have .95


@dataclass(frozen=True, eq=False)
class WeighedTexts(TextDirections):
    """The text half: an encoder, and classes with vectors (C, E) of their names, weights (C, D)."""

    encoder: SentenceEncoder
    names: tuple[str, ...]
    name_vectors: NDArray[np.float32]
    weight: NDArray[np.float32]

    @cached_property
    def kinds(self) -> Kinds | None:
        kinds = imagenet_kinds()
        return kinds if kinds.are_of(self.names) else None

    @cached_property
    def maps(self) -> CaptionMaps | None:
        maps = caption_maps()
        return maps if maps.fit(self.weight, lambda text: self.encoder.encode([text])[0]) else None

    def shares(self, vectors: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return what each class counts (K, C) for texts that have these vectors (K, E)."""
        return softmax((vectors @ self.name_vectors.T).astype(np.float64) / TEMPERATURE)

    def nearest_class(self, vector: NDArray[np.float32]) -> tuple[str, float]:
        cosines = self.name_vectors @ vector
        number = int(cosines.argmax())
        return self.names[number], float(cosines[number])

    def directions(self, texts: Sequence[Sequence[str]]) -> NDArray[np.float64]:
        vectors, weight = self.vectors(texts), self.weight.astype(np.float64)
        named = np.asarray((self.shares(vectors) @ weight).T)
        if self.maps is None:
            return named
        kinds, union = self.kinds_of(texts), np.zeros_like(named)
        for column, own in enumerate(kinds):
            if own:
                union[:, column] = weight[list(own)].mean(0)
        weights = self.maps.weights[[int(bool(own)) for own in kinds]].T
        parts = np.stack([named, union, self.maps.directions(vectors)])
        lengths = np.linalg.norm(parts * self.maps.deviation[:, None], axis=1, keepdims=True)
        return np.asarray((parts / lengths.clip(1e-12) * weights[:, None]).sum(0))

    def kinds_of(self, texts: Sequence[Sequence[str]]) -> list[tuple[int, ...]]:
        return [() if self.kinds is None else self.kinds.of(own) for own in texts]

    def vectors(self, texts: Sequence[Sequence[str]]) -> NDArray[np.float32]:
        return np.stack([self.encoder.describe(own) for own in texts])

    def nearest(self, texts: Sequence[Sequence[str]]) -> list[str]:
        """Return the class that each thing leans on most, or how many are kinds of it."""
        nearest = [self.nearest_class(vector)[0] for vector in self.vectors(texts)]
        for position, kinds in enumerate(self.kinds_of(texts)):
            if kinds:
                more = f" and {counted(len(kinds) - 1, 'more kind')}" if kinds[1:] else ""
                nearest[position] = self.names[kinds[0]] + more
        return nearest

    def doubt(self, name: str, texts: Sequence[str]) -> str | None:
        way = f"describe {name!r} in the language it was trained on, as in: name: a text in English"
        for text in texts:
            if not self.encoder.knows(text):
                return f"the encoder does not know all of {text!r}: {way}"
        for word in filter(None, map(self.encoder.spelled, texts)):
            return f"the encoder takes {word!r} letter by letter and hardly knows it: {way}"
        nearest, cosine = self.nearest_class(self.encoder.describe(texts))
        if cosine < FAR and not self.kinds_of([texts])[0]:
            return (
                f"{name!r} is far from everything the classifier knows (nearest: {nearest!r}): "
                "its first scores are little more than a guess until photos are answered"
            )
        return None

    def alike(self, texts: Sequence[Sequence[str]]) -> list[tuple[int, int]]:
        shares = self.shares(self.vectors(texts))
        return pairs_above(shares / np.linalg.norm(shares, axis=1, keepdims=True), ALIKE)


def softmax(values: Numbers) -> Numbers:
    """Return the softmax of each row."""
    likely = np.exp(values - values.max(1, keepdims=True))
    return np.asarray(likely / likely.sum(1, keepdims=True))


def _moved(weight: Numbers, x: Numbers, target: Numbers) -> Numbers:
    """Return the weights (D, K) nearest to given ones, but for a ridge, that score ``target``."""
    spread = x.std(0).clip(1e-6)
    rows = (x - x.mean(0)) / spread
    start = rows @ (weight * spread[:, None])
    slope = (start * target).sum(0) / (start * start).sum(0).clip(1e-12)
    rest, count = target - slope * start, rows.shape[1]
    ridge = RIDGE * count * np.eye(min(rows.shape))
    if len(rows) < count:
        moved = rows.T @ np.linalg.solve(rows @ rows.T + ridge, rest)
    else:
        moved = np.linalg.solve(rows.T @ rows + ridge, rows.T @ rest)
    return np.asarray(weight * slope + moved / spread[:, None])


class ClassesAndWords(TextImageModel):
    """An image classifier whose classes are weighed by what words mean.

    ``cache`` is a folder in which the vectors of the class names are kept.
    """

    kind = "classes"

    def __init__(
        self, folder: str | Path, *, image_size: int | None = None, cache: Path | None = None
    ) -> None:
        self.folder, self.cache, self.image_size = Path(folder), cache, image_size
        if not self.folder.is_dir():
            raise SettingsError(f"{folder} is not a folder; it must hold a sentence encoder")
        self.encoder = SentenceEncoder(self.folder)
        self.digest = self.encoder.digest
        # Whole photos: a label may be at their edge.
        if (self.folder / CLASSIFIER_FILE).is_file():
            from labelwise.learn.backbones import create_classifier
            from labelwise.learn.backbones.weights import architecture_of

            name, how = architecture_of(self.folder) or "", {"weights": str(self.folder)}
            network, *layer = create_classifier(name, image_size=image_size, squash=True, **how)
            self.network = network.eval()
            self.weight, self.bias = (side.numpy() for side in layer)
        else:
            eye = Eye.open()
            size = image_size or eye.transform.size
            self.network = eye.with_transform(replace(eye.transform, size=size, crop=None))
            self.weight, self.bias = eye.classifier()
        self.classes = self._classes()

    def _classes(self) -> tuple[str, ...]:
        file, count = self.folder / CLASSES_FILE, len(self.bias)
        if file.is_file():
            lines = file.read_text(encoding="utf-8-sig").splitlines()
            names = tuple(line.strip() for line in lines if line.strip())
            if len(names) != count:
                what = f"the {count:,} classes, one per line"
                raise SettingsError(f"{file} must name {what}, got {len(names):,}")
            return names
        names = imagenet_names()
        if len(names) != count:
            counts = f"{count:,} classes and ImageNet {len(names):,}"
            raise SettingsError(f"the classifier has {counts}; name them in {file}, one per line")
        return names

    @cached_property
    def class_vectors(self) -> NDArray[np.float32]:
        key = hashlib.sha256("\n".join((self.encoder.digest, *self.classes)).encode()).hexdigest()
        file = None if self.cache is None else self.cache / f"classes-{key[:32]}.npy"
        if file is not None and file.is_file():
            with suppress(OSError, ValueError):  # half a file: encode them again
                return np.asarray(np.load(file), np.float32)
        vectors = np.stack([self.encoder.describe(usual_texts(name)) for name in self.classes])
        if file is not None:
            with replacing(file) as temporary, temporary.open("wb") as stream:
                np.save(stream, vectors)
        return vectors

    def head(
        self,
        texts: Sequence[Sequence[str]],
        mean_features: NDArray[Any],
        features: NDArray[Any] | None = None,
    ) -> TextHead:
        weight = self.texts.directions(texts)
        maps = self.texts.maps
        if features is not None and len(features) >= LEAST_PHOTOS and maps is not None:
            x = features[:: -(-len(features) // MOST_PHOTOS)]
            routes, agree = self.routes(texts, x, maps)
            target = np.einsum("rnk,kr->nk", routes, maps.weights[agree.astype(int)])
            weight = _moved(weight, x.astype(np.float64), target)
        common = None if maps is None else (maps.image / maps.deviation).T
        return TextHead(weight, -mean_features.astype(np.float64) @ weight, common)

    def routes(
        self, texts: Sequence[Sequence[str]], features: NDArray[np.float32], maps: CaptionMaps
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return the scores (3, N, K) of class names, kinds and captions, standardised over photos.

        Also for which words kinds and captions agree about the photos; for others kinds are 0.
        """
        vectors = self.texts.vectors(texts)
        logits = (features @ self.weight.T + self.bias).astype(np.float64)
        named = logits @ self.texts.shares(vectors).T
        odds = np.zeros_like(named)
        chances = softmax(logits)
        for column, kinds in enumerate(self.texts.kinds_of(texts)):
            if kinds:
                p = np.clip(chances[:, list(kinds)].sum(axis=1), 1e-9, 1 - 1e-9)
                odds[:, column] = np.log(p / (1 - p))
        routes = np.stack([named, odds, maps.scores(features, vectors).astype(np.float64)])
        routes -= routes.mean(axis=1, keepdims=True)
        routes /= np.maximum(routes.std(axis=1, keepdims=True), 1e-9)
        agree = (routes[1] * routes[2]).mean(axis=0) >= AGREE
        routes[1, :, ~agree] = 0
        return routes, agree

    def disagreements(self, words: WordList, features: NDArray[Any]) -> list[str]:
        maps, texts = self.texts.maps, [word.texts for word in words.words]
        if maps is None or len(features) < LEAST_PHOTOS:
            return []
        x = features[:: -(-len(features) // MOST_PHOTOS)]
        kinds_of, nearest_of = self.texts.kinds_of(texts), self.texts.nearest(texts)
        facts = zip(words.words, kinds_of, nearest_of, self.routes(texts, x, maps)[1], strict=True)
        return [
            f"{word.name!r} may mean two things: the classifier's {nearest!r} and what captions "
            "call so are in different photos, and its first scores follow the captions; describe "
            f"it, as in '{word.name}: a text', or answer about photos"
            for word, kinds, nearest, same in facts
            if kinds and not same
        ]

    @cached_property
    def texts(self) -> WeighedTexts:
        return WeighedTexts(self.encoder, self.classes, self.class_vectors, self.weight)

    @cached_property
    def _concepts(self) -> list[dict[str, NDArray[np.float32]]]:
        concepts = tomllib.loads(Path(__file__).with_name(CONCEPTS_FILE).read_text("utf-8"))
        known = [filter(self.encoder.knows, concepts[kind].split()) for kind in ("ideas", "things")]
        describe = self.encoder.describe
        return [{name: describe(usual_texts(name)) for name in names} for names in known]

    def doubt(self, name: str, texts: Sequence[str]) -> str | None:
        doubt, (ideas, things) = self.texts.doubt(name, texts), self._concepts
        if doubt is not None or not ideas:
            return doubt
        vector = self.encoder.describe(texts)
        nearest, cosine = self.texts.nearest_class(vector)
        likeness, idea = max((float(own @ vector), idea) for idea, own in ideas.items())
        if likeness <= max([cosine, *(float(own @ vector) for own in things.values())]):
            return None
        return (
            f"{name!r} is nearer to the idea of {idea} than to anything that photos show, and "
            f"its first scores lean on {nearest!r}: describe what is to be seen, as in "
            f"'{name}: a text', or answer about photos"
        )

    def nearest_classes(self, words: WordList) -> list[str]:
        return self.texts.nearest([word.texts for word in words.words])
