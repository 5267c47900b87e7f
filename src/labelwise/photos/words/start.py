"""Start: a run from photos and words, before and after people have answered.

    embeddings/                        features of photos, by content
    words.txt                          the words
    words.json, words.safetensors      what scores any text (``free_text.py``)
    text-head.safetensors              scores of the words that no answer has moved
    answers.jsonl                      what people said of photos
    answers.csv                        the same as a label table, those set aside as its split test
    predictions/train, test.parquet    answered photos that fitted the model, and those set aside
    model.json, model.safetensors      network, linear head, link and rule: a model like any other

Without answers the head is the text head, and its link a guess: p = sigma(.8 x - 3.6), where x is
the score less the mean of all scores, divided by their deviation; that is the best curve for all
labels of COCO together. SigLIP's scores are taken for the log-odds that they were trained to be.
``model.json`` then says that no one has answered, and whatever shows a
probability says so too. With answers the head is :func:`.answered.answered_head`,
and words that nobody answered about are ranked but never chosen: their probabilities follow from
answers about other words, and may be far off.
"""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from labelwise.answers.agreement import write_table
from labelwise.data import LabelTable
from labelwise.decide import NEVER, Rule, Threshold, WithParents
from labelwise.errors import DataError, SettingsError
from labelwise.links import Consistent, Link, Sigmoid
from labelwise.models import HeadSpec, Model, Predictor
from labelwise.models.run_folder import RunFolder
from labelwise.models.spec import MODEL_FILE
from labelwise.networks.heads import LinearHead
from labelwise.photos.words.answered import AnsweredHead, answered_head
from labelwise.photos.words.answers import KeptAnswers
from labelwise.photos.words.free_text import save_free_text
from labelwise.photos.words.photos import PhotoFeatures, features_of
from labelwise.photos.words.text_image import TextHead, TextImageModel
from labelwise.photos.words.word_list import WordList
from labelwise.pictures import ImageSource
from labelwise.pictures.inputs import Failure
from labelwise.predictions import Predictions
from labelwise.scores.labels import aligned_labels
from labelwise.system.files import replacing
from labelwise.system.progress import Silent, Watch
from labelwise.system.text import counted

EMBEDDINGS, ANSWERS_FILE, WORDS_FILE = "embeddings", "answers.jsonl", "words.txt"
TABLE_FILE, TEXT_HEAD_FILE = "answers.csv", "text-head.safetensors"
SET_ASIDE = 0.2  # of the answered photos, unless told otherwise
DOUBTS_SHOWN = 20  # sentences
WORDS_SHOWN = 5  # of those that have left the list
LEAST_ANSWERS = 10  # photos, before answers move anything


@dataclass(frozen=True, eq=False)
class Started:
    """What a start came to: photos read and unread, answers, and what is to be said.

    ``nearest_classes`` are those of the classifier that the words lean on most, if there is one.
    """

    folder: Path
    predictor: Predictor
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
    """Make the run of photos and words in ``out``, or make it again with more of either.

    Answers are added to those of earlier times. ``set_aside`` is the share of answered photos
    that fit nothing.
    """
    if not 0 <= set_aside < 1:
        raise SettingsError(f"set_aside must be a share from 0 up to 1, got {set_aside:g}")
    run, watch = RunFolder(out), watch or Silent()
    _require_own(run)
    with run.lock():
        cache, notes = run.path / EMBEDDINGS, _doubts(model, words)
        photos = features_of(
            images, model.backbone, cache, batch_size=batch_size, device=device, watch=watch
        )
        if not photos.digests:
            reasons = "; ".join(failure.reason for failure in photos.failures[:1])
            raise DataError(f"of {counted(len(images), 'photo')} none could be read: {reasons}")
        kept = KeptAnswers.load(run.path / ANSWERS_FILE)
        failures, paths = photos.failures, _paths(images, photos)
        if answers is not None:
            notes += aligned_labels(answers, words.names)[1]
            photos_of = features_of(
                answers.images, model.backbone, cache, batch_size=batch_size, device=device
            )
            failures += photos_of.failures
            paths = {**_paths(answers.images, photos_of), **paths}
            photos = PhotoFeatures(
                photos.digests, photos_of.known, failures, photos.computed + photos_of.computed
            )
            new = KeptAnswers.of(answers, photos_of.digests, set_aside)
            kept = kept.extended(run.path / ANSWERS_FILE, new)
        return _Start(run, words, model, photos, kept, paths).finish(notes)


def targets_of(
    words: WordList, answers: KeptAnswers, photos: Container[bytes], *, aside: bool
) -> tuple[list[bytes], Tensor, Tensor]:
    """Return digests, labels (n, K) and which are known, of the answered ones among photos."""
    digests, labels, observed = answers.targets(words.names, aside=aside)
    if words.taxonomy is not None:
        labels, known = words.taxonomy.within(words.space).complete(labels, observed)
        observed = torch.ones_like(observed) if known is None else known
    there = torch.tensor([digest in photos for digest in digests], dtype=torch.bool)
    found = [digest for digest in digests if digest in photos]
    return found, labels[there], observed[there]


def can_teach(digests: Sequence[bytes], labels: Tensor, observed: Tensor) -> bool:
    """Return whether answers are enough to move anything: some photos, a yes and a no."""
    said = labels[observed]
    return len(digests) >= LEAST_ANSWERS and bool((said > 0.5).any() and (said < 0.5).any())


def _rule(names: Sequence[str], unanswered: Container[str]) -> Threshold:
    """Return the rule of a run: once there are answers, no word without any is chosen."""
    values = [NEVER if name in unanswered else 0.5 for name in names]
    return Threshold(tuple(values) if NEVER in values else 0.5)


def _doubts(model: TextImageModel, words: WordList) -> list[str]:
    """Return what is to be said of words, cut short: a thousand words have many pairs."""
    doubts = model.doubts(words)
    if len(doubts) <= DOUBTS_SHOWN:
        return doubts
    more = f"and {len(doubts) - DOUBTS_SHOWN:,} more doubts about words: start with fewer of them"
    return [*doubts[:DOUBTS_SHOWN], more]


def _paths(images: ImageSource, photos: PhotoFeatures) -> dict[bytes, str]:
    """Return where photos lie that are files of their own, by content."""
    rows = sorted(photos.digests, reverse=True)  # of copies, the first
    found = zip(rows, images.locations(rows), strict=True)
    return {
        photos.digests[row]: str(Path(place.path).absolute())
        for row, place in found
        if place is not None and place.size is None
    }


def _require_own(run: RunFolder) -> None:
    """Raise if a folder holds a run that did not begin with words."""
    if (run.path / MODEL_FILE).is_file() and run.spec.answers is None:
        raise SettingsError(
            f"{run.path} holds a run that was trained, not one that began with words; name another "
            "folder with -o"
        )


@dataclass(frozen=True, eq=False)
class _Start:
    run: RunFolder
    words: WordList
    model: TextImageModel
    photos: PhotoFeatures
    answers: KeptAnswers
    paths: Mapping[bytes, str]

    def finish(self, notes: list[str]) -> Started:
        notes += self._unused()
        every = self.photos.every()
        text = self.model.head([word.texts for word in self.words.words], every.mean(dim=0))
        known = self.photos.known
        fitting = targets_of(self.words, self.answers, known, aside=False)
        aside = targets_of(self.words, self.answers, known, aside=True)
        count, answered = len(fitting[0]), None
        link: Link
        if not can_teach(*fitting):
            head, link = text, self.model.guessed(text.scores(every))
            if count:
                notes.append(
                    f"{counted(count, 'answered photo')} kept; they count from {LEAST_ANSWERS} on, "
                    "without those set aside, and when there is a yes and a no among the answers"
                )
            count = 0
        else:
            digests, labels, observed = fitting
            answered = answered_head(text, self.photos.of(digests), labels, observed, pool=every)
            head, link = answered.head, answered.calibration.link
        unanswered = self._unanswered(fitting[2]) if count else ()
        made = self._predictor(head, link, _rule(self.words.names, unanswered))
        predictor = replace(made, answers=count, unanswered=unanswered)
        text.save(self.run.path / TEXT_HEAD_FILE)
        self._save(predictor, {"train": fitting, "test": aside} if count else {})
        return Started(
            self.run.path,
            predictor,
            len(self.photos.digests),
            self.photos.computed,
            self.photos.failures,
            count,
            len(aside[0]),
            answered,
            tuple(self.model.nearest_classes(self.words)),
            tuple(notes),
        )

    def _unused(self) -> list[str]:
        """Return what is to be said of answers about words that are not in the list."""
        said = Counter(name for one in self.answers.photos.values() for name in one.labels)
        others = [name for name in said if name not in self.words.names]
        if not others:
            return []
        shown = ", ".join(map(repr, others[:WORDS_SHOWN])) + ", ..." * (len(others) > WORDS_SHOWN)
        count = counted(sum(said[name] for name in others), "answer")
        return [
            f"what was said about {shown} ({count}) is kept, and counts when the list has "
            f"{'it' if len(others) == 1 else 'them'} again; to describe a word otherwise, keep its "
            f"name, as in '{others[0]}: another text'"
        ]

    def _unanswered(self, observed: Tensor) -> tuple[str, ...]:
        """Return the words of the columns in which nothing is known."""
        known = observed.any(dim=0).tolist()
        return tuple(name for name, own in zip(self.words.names, known, strict=True) if not own)

    def _name(self, digest: bytes) -> str:
        """Return where a photo lies, or else what it was called when it was answered."""
        return self.paths.get(digest, self.answers.photos[digest].id)

    def _predictor(self, head: TextHead, link: Link, rule: Rule) -> Predictor:
        space, taxonomy = self.words.space, self.words.taxonomy
        if taxonomy is not None:
            parent = taxonomy.within(space).parent
            link, rule = Consistent(link, parent), WithParents(rule, parent)
        linear = LinearHead(self.model.backbone.channels, len(space))
        with torch.no_grad():
            linear.classifier.weight.copy_(head.weight.T)
            linear.classifier.bias.copy_(head.bias)
        network = Model(self.model.backbone, linear).eval()
        return Predictor(network, HeadSpec("linear"), space, link, rule, "words", (), taxonomy)

    def _save(
        self,
        predictor: Predictor,
        splits: dict[str, tuple[list[bytes], Tensor, Tensor]],
    ) -> None:
        """Write the files of the run; the model comes last."""
        folder = self.run.path
        for name in ("train", "test"):
            digests, labels, observed = splits.get(name, ([], None, None))
            path = self.run.predictions_path(name)
            if not digests or labels is None:
                path.unlink(missing_ok=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            layer = predictor.model.head.state_dict()
            features = self.photos.of(digests)
            logits = features @ layer["classifier.weight"].T + layer["classifier.bias"]
            ids = [self._name(digest) for digest in digests]
            Predictions(
                ids, logits, labels.float(), observed, self.words.names, name, Sigmoid()
            ).save(path)
        if len(self.answers):
            photos = {digest: self._name(digest) for digest in self.answers.photos}
            said = {name for one in self.answers.photos.values() for name in one.labels}
            with replacing(folder / TABLE_FILE) as temporary:
                write_table(
                    temporary,
                    [name for name in self.words.names if name in said],
                    {photos[digest]: one.labels for digest, one in self.answers.photos.items()},
                    {photos[digest] for digest, one in self.answers.photos.items() if one.aside},
                )
        with replacing(folder / WORDS_FILE) as temporary:
            temporary.write_text(self.words.text(), encoding="utf-8")
        save_free_text(self.model, folder)
        predictor.save(folder)
