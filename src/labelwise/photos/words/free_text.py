"""FreeText: what a run that began with words keeps to score any text, and photos ranked by it.

    words.json           the folder of the text-image model, and the hash of what makes its texts
    words.safetensors    of classes and words: vectors and weights of the classes that texts weigh

A text is a direction in the space of the network's features, and photos are ranked by the cosine
with it. That is a likeness and not a probability, because nobody has answered about this text.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from labelwise.errors import CheckpointError, DataError, SettingsError
from labelwise.models.run_folder import RunFolder
from labelwise.photos import Index
from labelwise.photos.lists import CheckSession, name_of_text
from labelwise.photos.query import WORDS_FILE, Hit, photos_along
from labelwise.photos.words.classes import SentenceEncoder, WeighedTexts
from labelwise.photos.words.text_image import (
    TextDirections,
    TextImageKind,
    TextImageModel,
    usual_texts,
)
from labelwise.photos.words.tower_files import TwoTowers
from labelwise.retrieval import Query
from labelwise.system.files import replacing
from labelwise.system.tensors import load_tensors, save_tensors
from labelwise.system.text import one_line_of

CLASSES_FILE = "words.safetensors"
LONGEST = 1000  # characters


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
        classes, vectors = texts.names, torch.from_numpy(texts.name_vectors)
        captions = texts.maps is not None
        with replacing(run / CLASSES_FILE) as temporary:
            save_tensors(temporary, {"vectors": vectors, "weight": texts.weight})
    made = {"kind": model.kind, "model": str(model.folder.resolve()), "encoder": model.digest}
    facts = {**made, "classes": classes, "captions": captions}
    with replacing(run / WORDS_FILE) as temporary:
        text = json.dumps(facts, indent=2, ensure_ascii=False) + "\n"
        temporary.write_text(text, encoding="utf-8")


@dataclass(frozen=True, eq=False)
class FreeText:
    """The text half of the model that a run began with."""

    texts: TextDirections

    @staticmethod
    def is_kept(run: Path) -> bool:
        return (run / WORDS_FILE).is_file()

    @classmethod
    def of(cls, index: Index, encoder: Path | None = None) -> "FreeText":
        run = Path(index.facts.model)
        if not cls.is_kept(run):
            raise DataError(
                f"free text needs a model that began with words, and {run} of {index.folder} did "
                "not, or is not there; run `labelwise train PHOTOS --words WORDS`"
            )
        if RunFolder(run).spec.weights_sha256 != index.spec.weights_sha256:
            again = "index again with --rebuild"
            raise DataError(f"{run} was made again after {index.folder}; {again}")
        return cls.load(run, encoder)

    @classmethod
    def load(cls, run: Path, encoder: Path | None = None) -> "FreeText":
        path = run / WORDS_FILE
        try:
            facts = _Facts.model_validate_json(path.read_bytes())
            if facts.kind == "classes":
                tensors = load_tensors(run / CLASSES_FILE)
                vectors, weight = tensors["vectors"].numpy(), tensors["weight"]
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
        made = TwoTowers(folder) if facts.kind == "towers" else SentenceEncoder(folder)
        if made.digest != facts.encoder:
            other = f"{folder} holds another {what} than {run} was made with"
            raise SettingsError(f"{other}; name its --encoder")
        if isinstance(made, TwoTowers):
            return cls(made)
        return cls(WeighedTexts(made, facts.classes, vectors, weight))

    def doubt(self, text: str) -> str | None:
        return self.texts.doubt(text, (text,))

    def direction(self, text: str) -> NDArray[np.float64]:
        """Return the direction (D,) of a text among the features."""
        if not text.strip() or len(text) > LONGEST:
            raise DataError(
                f"a text must have 1 to {LONGEST:,} characters, got {len(text):,}; describe what "
                "the photos show, as in: a red bicycle"
            )
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
        """Return the photos most like a text, among those of a query if one is given.

        Those have at least the probability ``at_least``. The probability of a hit is its likeness.
        """
        return photos_along(index, self.direction(text), count, query=query, at_least=at_least)

    def check(self, index: Index, text: str, count: int, **options: Any) -> CheckSession:
        """Begin or resume the check of the photos most like a text, which may earn a promise."""
        hits = self.photos(index, text, count)
        return CheckSession.of_ranked(index, name_of_text(text), hits, **options)
