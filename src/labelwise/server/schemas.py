"""What the API says, as types: they make the answers, and the description at /openapi.json."""

from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field

from labelwise.decide import Statement
from labelwise.metrics.shift import LabelShare

State = Literal["present", "absent", "unknown", "withdrawn"]
Probability = Annotated[float, Field(ge=0, le=1)]
PHOTO_ID, CURSOR = "^[0-9a-f]{64}$", "^[0-9]{1,7}$"
PhotoId = Annotated[str, Field(pattern=PHOTO_ID)]
PhotoAddress = Annotated[str, Path(pattern=PHOTO_ID, description="SHA-256 of its content.")]


class Strict(BaseModel):
    """What is sent here: nothing that is not known."""

    model_config = ConfigDict(extra="forbid")


class ListedPhoto(BaseModel):
    """A photo of a list."""

    id: PhotoId
    name: str


class SearchHit(ListedPhoto):
    """A photo, how probably it answers a query, and the probabilities of the query's labels."""

    probability: Probability
    reasons: dict[str, float]
    taken: str | None
    width: int | None
    height: int | None
    copies: int


class LikenessView(BaseModel):
    """Whether the library is like the held-out photos, which counts and promises suppose."""

    outcome: Literal["alike", "shares differ", "pictures differ", "unknown"]
    sentence: str


class SearchAnswer(BaseModel):
    """The best photos, and what is expected of all photos.

    ``expected`` photos match, between ``low`` and ``high`` with 95 % confidence; ``untested`` says
    why there is no interval. Nothing is expected of words that nobody answered about.
    ``statement`` is of the list above the cut that ``wrong_at_most`` set;
    ``near_copies`` says how many photos of that list look like an earlier one of it.
    """

    query: str
    hits: list[SearchHit]
    photos: int
    expected: float | None
    low: float | None
    high: float | None
    confidence: float | None = None
    untested: str | None = None
    above: int | None
    statement: Statement | None = None
    near_copies: str | None = None
    likeness: LikenessView | None = None
    cursor: str | None


class PhotoLabel(BaseModel):
    """One label of a photo, and what a person said of it."""

    label: str
    probability: Probability
    decided: bool
    corrected: Literal["present", "absent", "unknown"] | None


class PhotoView(ListedPhoto):
    """A photo of the library with all its labels, the most probable first."""

    taken: str | None
    width: int | None
    height: int | None
    copies: int
    none: bool
    labels: list[PhotoLabel]
    before: dict[str, State] | None = None


class PhotoFactsView(BaseModel):
    """Where a photo lies, and what its own header says of the camera and the place."""

    paths: list[str]
    camera: str | None
    latitude: float | None
    longitude: float | None


class CorrectionsIn(Strict):
    """What a person says of labels; ``withdrawn`` takes back what was said."""

    labels: Annotated[dict[str, State], Field(min_length=1, max_length=5000)]
    source: Literal["correction", "audit"] = "correction"
    who: Annotated[str, Field(max_length=100)] = "page"


class SimilarView(ListedPhoto):
    """A photo that looks like another one."""

    likeness: float


class TextAnswer(BaseModel):
    """The photos most like a text, and what speaks against scoring that text, if anything."""

    text: str
    query: str | None
    at_least: Probability | None
    doubt: str | None
    hits: list[SimilarView]


class QuestionView(ListedPhoto):
    """Does a photo carry a label?"""

    label: str
    probability: Probability
    given: bool
    source: Literal["correction", "audit"]


class NewPhoto(ListedPhoto):
    """A photo, and when it was taken."""

    taken: str | None


class LabelPhotos(BaseModel):
    """How many photos of the library are given a label."""

    label: str
    photos: int


class LibraryView(BaseModel):
    """The labels of a library, scaled up from ``counted`` random photos, and its newest photos."""

    photos: int
    counted: int
    labels: list[LabelPhotos]
    newest: list[NewPhoto]


class CheckIn(Strict):
    """Which list a person checks: our own, for so many ``answers``, or the best ``top`` photos."""

    q: Annotated[str, Field(max_length=2000)]
    wrong_at_most: Annotated[float, Field(gt=0, lt=1)] = 0.1
    top: Annotated[int | None, Field(ge=1, le=10_000_000)] = None
    answers: Annotated[int, Field(ge=1, le=10_000)] = 30
    who: Annotated[str, Field(min_length=1, max_length=100)] = "page"


class CheckAnswerIn(Strict):
    """Whether the photo that is asked about matches the query of a list."""

    checked: CheckIn
    photo: PhotoId
    answer: Literal["yes", "no", "unsure"]


class CheckQuestion(BaseModel):
    """Does this photo match the query? ``repeated``: it was asked about before."""

    photo: ListedPhoto
    repeated: bool


class CheckView(BaseModel):
    """What is known of a list, and the next question.

    It takes about ``more`` answers, None where more would not do; a list of ``shorter`` photos may
    take fewer. ``statement`` is the guarantee of the list of ``photos``.
    """

    query: str
    wrong_at_most: float
    listed: int
    left: int
    checked: int
    more: int | None
    shorter: int | None
    statement: Statement | None
    sentence: str
    question: CheckQuestion | None
    following: PhotoId | None
    photos: list[ListedPhoto] = []


class ReceiptView(BaseModel):
    """A promise that was made of a list, and what people's answers since then say of it.

    ``photos``, ``weights``, ``link`` and ``held_out`` are hashes.
    """

    number: int
    query: str
    kind: Literal["expected", "sure", "checked", "tested"]
    text: str
    method: str
    listed: int
    who: str
    at: str
    withdrawn: bool
    photos: str
    weights: str
    link: str
    held_out: str
    verdict: Literal["kept", "broken", "cannot tell"]
    told: str


class ReceiptsView(BaseModel):
    """Every promise of a list that was made, the latest first, and how all of them stand."""

    receipts: list[ReceiptView]
    together: str


class Review(BaseModel):
    """Questions worth a person's minute, the best first."""

    by: str
    questions: list[QuestionView]


class ProblemDetails(BaseModel):
    """An error (RFC 9457); ``error`` repeats ``detail``."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    error: str


class Health(BaseModel):
    """Whether the server is there."""

    status: Literal["live", "ready"]


class SessionIn(Strict):
    """The token, exchanged for a cookie."""

    token: Annotated[str, Field(max_length=512)]


class ModelView(BaseModel):
    """Which model answers, how it is calibrated and how it decides."""

    name: str
    method: str
    backbone: str
    labels: int
    weights: str
    calibration: str
    caution: str | None
    rule: str
    version: str
    photos: int | None = None
    held_out: str | None = None
    max_body: int


class ReloadedView(BaseModel):
    """The model that answers now; ``changed``: it is another one than before."""

    changed: bool
    model: ModelView


class LabelAnswer(BaseModel):
    """One label of a picture."""

    label: str
    probability: Probability
    threshold: float | None
    decided: bool


class PictureAnswer(BaseModel):
    """What is said of one picture, the most probable label first; or why nothing is."""

    name: str
    labels: list[LabelAnswer] = []
    decided: list[str] = []
    none: bool | None = None
    error: str | None = None


class Predicted(BaseModel):
    """The answers for the pictures of a request, in their order."""

    model: str
    calibration: str
    caution: str | None
    rule: str
    results: list[PictureAnswer]


@dataclass(frozen=True)
class BinView:
    """Held-out photos whose probability lay in (low, high]."""

    low: float
    high: float
    photos: int
    carried: int
    share_low: float
    share_high: float
    mean: float | None
    sentence: str


@dataclass(frozen=True)
class LabelView:
    """A label: its threshold, and what its probabilities were worth on held-out photos."""

    label: str
    threshold: float | None
    photos: int
    carried: int
    ece: float | None
    bins: list[BinView]


class PromiseView(BaseModel):
    """What was promised when the model was made, and whether reviewed photos bear it out."""

    text: str
    what: str
    level: float
    confidence: float | None
    photos: int
    made: str
    verdict: Literal["kept", "broken", "cannot tell"]
    checked: str


class AlarmView(BaseModel):
    """The calibration alarm of one label."""

    model_config = ConfigDict(from_attributes=True)
    label: str
    audited: int
    present: int
    expected: float
    evidence: float
    threshold: float
    raised: bool


@dataclass(frozen=True)
class ShareView(LabelShare):
    """The share of a label when the model was made, and now, on the pictures of a source."""

    source: Literal["recent pictures", "library"] = "library"


class TrustView(BaseModel):
    """What speaks for and against trusting the model today.

    ``fits``: do its probabilities agree with ``answers``? Yes takes ``answers_needed`` of them.
    """

    fits: Literal["yes", "no", "too few answers"]
    answers: int
    answers_needed: int
    alarms: list[AlarmView]
    shares: list[ShareView]
    promises: list[PromiseView]
    notes: list[str]
