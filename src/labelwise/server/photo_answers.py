"""Answers about photos for a language model: the words to pass on, and their condition."""

from typing import Annotated

from pydantic import BaseModel, Field

InWords = Annotated[
    str, Field(description="What was found, with interval and promise. Pass it on as it is.")
]
HoldsIf = Annotated[str, Field(description="The condition of in_words. Pass it on with it.")]


class LabelFacts(BaseModel):
    """A label, and how many held-out photos carry it: the more, the better it is known."""

    label: str
    held_out_photos_with_it: int | None


class LibraryFacts(BaseModel):
    """What the library and its model are."""

    in_words: InWords
    holds_if: HoldsIf
    labels: list[LabelFacts]
    promises: list[str]


class FoundPhoto(BaseModel):
    """A photo of a list; the probability is that it answers the query."""

    path: str
    id: str
    probability: float
    labels: dict[str, float]
    taken: str | None


class PhotoList(BaseModel):
    """The answer to a search."""

    in_words: InWords
    holds_if: HoldsIf
    photos: list[FoundPhoto]


class PhotoCount(BaseModel):
    """How many photos match, with the interval; null where no known answer stands behind it."""

    in_words: InWords
    holds_if: HoldsIf
    expected: float
    low: float | None
    high: float | None
    confidence: float | None


class LabelOfPhoto(BaseModel):
    """A label of a photo: its probability, whether it is given, and what speaks for that."""

    label: str
    probability: float
    given: bool
    because: str


class ExplainedPhoto(BaseModel):
    """The labels of one photo."""

    in_words: InWords
    holds_if: HoldsIf
    path: str
    labels: list[LabelOfPhoto]


class LikePhoto(BaseModel):
    """A photo that looks like another; the cosine of two embeddings is not a probability."""

    path: str
    id: str
    cosine: float


class PhotosAlike(BaseModel):
    """Photos that look like one, the most alike first."""

    in_words: InWords
    holds_if: HoldsIf
    copies: list[str]
    photos: list[LikePhoto]


class DrawnPhotos(BaseModel):
    """Photos drawn at random, for a person to answer."""

    in_words: InWords
    holds_if: HoldsIf
    question: str
    photos: list[str]
