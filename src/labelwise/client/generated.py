"""Types and requests of the server. Made by ``make client``; changes here are lost."""

from collections.abc import Sequence
from typing import Literal, NotRequired, TypedDict, cast

from labelwise.client.connection import Connection, Picture, part


class AlarmView(TypedDict):
    """The calibration alarm of one label."""

    label: str
    audited: int
    present: int
    expected: float
    evidence: float
    threshold: float
    raised: bool


class BinView(TypedDict):
    """Held-out photos whose probability lay in (low, high]."""

    low: float
    high: float
    photos: int
    carried: int
    share_low: float
    share_high: float
    sentence: str


class CheckIn(TypedDict):
    """Which list a person checks: our own, or the best ``top`` photos of a query."""

    q: str
    wrong_at_most: NotRequired[float]
    top: NotRequired[int | None]
    alone: NotRequired[bool]
    who: NotRequired[str]


class ListedPhoto(TypedDict):
    """A photo of a list."""

    id: str
    name: str


class JobView(TypedDict):
    """How far a job is. ``failed`` of the answered pictures could not be opened.

    ``kept``: it outlives the server; else it ends with it. ``held_up`` says why it cannot go on.
    """

    id: str
    model: str
    made: str
    state: Literal["open", "working", "done", "cancelled"]
    received: int
    answered: int
    failed: int
    kept: bool
    held_up: NotRequired[str | None]


class LabelAnswer(TypedDict):
    """One label of a picture."""

    label: str
    probability: float
    threshold: float | None
    decided: bool


class LikenessView(TypedDict):
    """Whether the library is like the held-out photos, which counts and promises suppose."""

    outcome: Literal["alike", "shares differ", "pictures differ", "unknown"]
    sentence: str


class ModelView(TypedDict):
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
    photos: NotRequired[int | None]
    held_out: NotRequired[str | None]
    max_body: int


class PhotoFactsView(TypedDict):
    """Where a photo lies, and what its own header says of the camera and the place."""

    paths: list[str]
    camera: str | None
    latitude: float | None
    longitude: float | None


class PhotoLabel(TypedDict):
    """One label of a photo, and what a person said of it."""

    label: str
    probability: float
    decided: bool
    corrected: Literal["present", "absent", "unknown"] | None


class PromiseView(TypedDict):
    """What was promised when the model was made, and whether reviewed photos bear it out."""

    text: str
    what: str
    level: float
    confidence: float | None
    photos: int
    made: str
    verdict: Literal["kept", "broken", "cannot tell"]
    checked: str


class QuestionView(TypedDict):
    """Does a photo carry a label?"""

    id: str
    name: str
    label: str
    probability: float
    given: bool
    source: Literal["correction", "audit"]


class ReceiptView(TypedDict):
    """A promise that was made of a list, and what people's answers since then say of it.

    ``photos``, ``weights``, ``link`` and ``held_out`` are hashes: of the listed photos, the model,
    and the photos that it was made on.
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


class SearchHit(TypedDict):
    """A photo that answers a query.

    ``probability`` is calibrated for the query; ``reasons`` are those of its labels by themselves.
    """

    id: str
    name: str
    probability: float
    reasons: dict[str, float]
    taken: str | None
    width: int | None
    height: int | None
    copies: int


class WaysOutView(TypedDict):
    """What would work where no list can be promised: a larger share, or checking some photos.

    ``expected``: an expected promise works for the same share. About ``checks`` of the best
    ``listed`` photos would be asked about.
    """

    larger: float | None
    expected: bool
    checks: int | None
    listed: int | None


class ShadowLabel(TypedDict):
    """A label of two models: how often each decided it, and how far probabilities are apart."""

    label: str
    both: int
    only_served: int
    only_shadow: int
    mean_difference: float | None
    largest_difference: float | None


class ShareView(TypedDict):
    """The share of a label when the model was made, and now."""

    label: str
    source: Literal["recent pictures", "library"]
    before: float
    now: float
    low: float
    high: float
    photos: int
    moved: bool


class SimilarView(TypedDict):
    """A photo that looks like another one."""

    id: str
    name: str
    likeness: float


class LabelView(TypedDict):
    """A label: its threshold, and what its probabilities were worth on held-out photos."""

    label: str
    threshold: float | None
    photos: int
    carried: int
    ece: float | None
    bins: list[BinView]


class CheckQuestion(TypedDict):
    """Does this photo match the query? ``repeated``: it was asked about before."""

    photo: ListedPhoto
    repeated: bool


class PictureAnswer(TypedDict):
    """What is said of one picture, the most probable label first; or why nothing is."""

    name: str
    labels: NotRequired[list[LabelAnswer]]
    decided: NotRequired[list[str]]
    none: NotRequired[bool | None]
    error: NotRequired[str | None]


class ReloadedView(TypedDict):
    """The model that answers now; ``changed``: it is another one than before."""

    changed: bool
    model: ModelView


class PhotoView(TypedDict):
    """A photo of the library with all its labels, the most probable first."""

    id: str
    name: str
    taken: str | None
    width: int | None
    height: int | None
    copies: int
    none: bool
    labels: list[PhotoLabel]
    before: NotRequired[dict[str, Literal["present", "absent", "unknown", "withdrawn"]] | None]


class Review(TypedDict):
    """Questions worth a person's minute, the best first."""

    by: str
    questions: list[QuestionView]


class ReceiptsView(TypedDict):
    """Every promise of a list that was made, the latest first, and how all of them stand."""

    receipts: list[ReceiptView]
    together: str


class SearchAnswer(TypedDict):
    """The best photos, and what is expected of all photos.

    ``expected`` photos match, between ``low`` and ``high`` with 95 % confidence; without held-out
    photos that match there is no such interval, and ``untested`` says so.
    ``promise`` is a sentence, ``promise_about`` what it speaks of, and ``promise_condition`` under
    which condition it holds. ``bounded`` is of the photos above ``at_least``, for whatever cut.
    ``near_copies`` says how many photos of a promised list look like an earlier one of it.
    """

    query: str
    hits: list[SearchHit]
    photos: int
    expected: float
    low: float | None
    high: float | None
    untested: NotRequired[str | None]
    above: int | None
    promise: str | None
    promise_kind: NotRequired[Literal["expected", "sure"] | None]
    promise_about: NotRequired[str | None]
    promise_condition: NotRequired[str | None]
    receipt: NotRequired[int | None]
    refused: NotRequired[str | None]
    ways: NotRequired[WaysOutView | None]
    bounded: NotRequired[str | None]
    near_copies: NotRequired[str | None]
    likeness: NotRequired[LikenessView | None]
    cursor: str | None


class ShadowView(TypedDict):
    """How the answers of the shadow model differ from those that were given.

    ``served`` and ``shadow`` are versions; ``skipped`` pictures found the shadow busy, and
    ``failed`` ones it has no answer for.
    """

    served: str
    shadow: str
    share: float
    pictures: int
    agreed: int
    skipped: int
    failed: int
    sentence: str
    labels: list[ShadowLabel]
    only_of_served: list[str]
    only_of_shadow: list[str]


class TrustView(TypedDict):
    """What speaks for and against trusting the model today."""

    alarms: list[AlarmView]
    shares: list[ShareView]
    promises: list[PromiseView]
    notes: list[str]


class TextAnswer(TypedDict):
    """The photos most like a text, and what speaks against scoring that text, if anything."""

    text: str
    query: str | None
    at_least: float | None
    doubt: str | None
    hits: list[SimilarView]


class CheckView(TypedDict):
    """What is known of a list, and the next question.

    ``more`` is about how many more answers it takes, None where more would not do; ``shorter`` the
    length of a list that may take fewer. ``photos`` are the first of a promised list.
    """

    query: str
    wrong_at_most: float
    listed: int
    left: int
    checked: int
    more: int | None
    shorter: int | None
    promise: str | None
    sentence: str
    question: CheckQuestion | None
    following: str | None
    photos: NotRequired[list[ListedPhoto]]


class Predicted(TypedDict):
    """The answers for the pictures of a request, in their order."""

    model: str
    calibration: str
    caution: str | None
    rule: str
    results: list[PictureAnswer]


class Client:
    """A server that answers, one method per request of its API.

    ``Client("http://127.0.0.1:8000", token=...)``; errors are ServerError.
    """

    def __init__(
        self, address: str, token: str | None = None, *, timeout: float = 120.0, retries: int = 3
    ) -> None:
        self._server = Connection(address, token, timeout=timeout, retries=retries)

    def add_pictures(self, job: str, pictures: Sequence[Picture]) -> JobView:
        """Send pictures of a job, in as many requests as it takes."""
        path = f"/api/v1/jobs/{part(job)}/pictures"
        return cast(JobView, self._server.json("POST", path, pictures=pictures))

    def answer_check(
        self, checked: CheckIn, photo: str, answer: Literal["yes", "no", "unsure"]
    ) -> CheckView:
        """Say whether the photo asked about matches the query."""
        path = "/api/v1/check/answer"
        return cast(
            CheckView,
            self._server.json(
                "POST", path, body={"checked": checked, "photo": photo, "answer": answer}
            ),
        )

    def begin_check(
        self,
        q: str,
        *,
        wrong_at_most: float | None = None,
        top: int | None = None,
        alone: bool | None = None,
        who: str | None = None,
    ) -> CheckView:
        """Begin to check a list, or resume it."""
        path = "/api/v1/check/list"
        return cast(
            CheckView,
            self._server.json(
                "POST",
                path,
                body={
                    "q": q,
                    "wrong_at_most": wrong_at_most,
                    "top": top,
                    "alone": alone,
                    "who": who,
                },
            ),
        )

    def begin_job(self, *, model: str | None = None) -> JobView:
        """Begin a job for many pictures."""
        path = "/api/v1/jobs"
        return cast(JobView, self._server.json("POST", path, body={"model": model}))

    def cancel_job(self, job: str) -> JobView:
        """Give up the pictures that wait, and keep the results."""
        path = f"/api/v1/jobs/{part(job)}/cancel"
        return cast(JobView, self._server.json("POST", path, body={}))

    def chart(self, label: str, *, model: str | None = None) -> bytes:
        """The reliability diagram of a label."""
        path = "/api/v1/labels/reliability.svg"
        if model is not None:
            path = f"/api/v1/models/{part(model)}/labels/reliability.svg"
        return self._server.ask("GET", path, query={"label": label})

    def close_job(self, job: str) -> JobView:
        """Say that no more pictures come."""
        path = f"/api/v1/jobs/{part(job)}/close"
        return cast(JobView, self._server.json("POST", path, body={}))

    def complete(self, *, q: str | None = None) -> list[str]:
        """How an unfinished query may go on."""
        path = "/api/v1/complete"
        return cast(list[str], self._server.json("GET", path, query={"q": q}))

    def correct(
        self,
        photo: str,
        labels: dict[str, Literal["present", "absent", "unknown", "withdrawn"]],
        *,
        source: Literal["correction", "audit"] | None = None,
        who: str | None = None,
    ) -> PhotoView:
        """Say which labels a photo carries."""
        path = f"/api/v1/photos/{part(photo)}/labels"
        return cast(
            PhotoView,
            self._server.json("PUT", path, body={"labels": labels, "source": source, "who": who}),
        )

    def delete_job(self, job: str) -> None:
        """Give a job up, and remove its results."""
        path = f"/api/v1/jobs/{part(job)}"
        self._server.ask("DELETE", path)

    def every_job(self) -> list[JobView]:
        """All jobs, the latest first."""
        path = "/api/v1/jobs"
        return cast(list[JobView], self._server.json("GET", path))

    def facts(self, photo: str) -> PhotoFactsView:
        """Where a photo lies, and what its header says."""
        path = f"/api/v1/photos/{part(photo)}/facts"
        return cast(PhotoFactsView, self._server.json("GET", path))

    def first_model(self) -> ModelView:
        """Which model answers where none is named."""
        path = "/api/v1/model"
        return cast(ModelView, self._server.json("GET", path))

    def job(self, job: str) -> JobView:
        """How far a job is."""
        path = f"/api/v1/jobs/{part(job)}"
        return cast(JobView, self._server.json("GET", path))

    def job_results(self, job: str, *, format: Literal["jsonl", "csv"] | None = None) -> bytes:
        """The answers so far, in the order of the pictures."""
        path = f"/api/v1/jobs/{part(job)}/results"
        return self._server.ask("GET", path, query={"format": format})

    def labels(self, *, model: str | None = None) -> list[LabelView]:
        """All labels with their reliability."""
        path = "/api/v1/labels"
        if model is not None:
            path = f"/api/v1/models/{part(model)}/labels"
        return cast(list[LabelView], self._server.json("GET", path))

    def model(self, model: str) -> ModelView:
        """One of the models."""
        path = f"/api/v1/models/{part(model)}"
        return cast(ModelView, self._server.json("GET", path))

    def models(self) -> list[ModelView]:
        """The models that answer, the first one by default."""
        path = "/api/v1/models"
        return cast(list[ModelView], self._server.json("GET", path))

    def original(self, photo: str) -> bytes:
        """The photo's own file, to be saved."""
        path = f"/api/v1/photos/{part(photo)}/original"
        return self._server.ask("GET", path)

    def photo(self, photo: str) -> PhotoView:
        """A photo and all its labels."""
        path = f"/api/v1/photos/{part(photo)}"
        return cast(PhotoView, self._server.json("GET", path))

    def predict(self, pictures: Sequence[Picture], *, model: str | None = None) -> Predicted:
        """Labels of pictures."""
        path = "/api/v1/predict"
        if model is not None:
            path = f"/api/v1/models/{part(model)}/predict"
        return cast(Predicted, self._server.json("POST", path, pictures=pictures))

    def promises(self, *, model: str | None = None) -> list[PromiseView]:
        """What was promised, and whether it is kept."""
        path = "/api/v1/promises"
        if model is not None:
            path = f"/api/v1/models/{part(model)}/promises"
        return cast(list[PromiseView], self._server.json("GET", path))

    def receipts(self) -> ReceiptsView:
        """Every promise of a list that was made, and whether it is kept."""
        path = "/api/v1/receipts"
        return cast(ReceiptsView, self._server.json("GET", path))

    def reload(self, model: str) -> ReloadedView:
        """Load what the folder of a model holds now."""
        path = f"/api/v1/models/{part(model)}/reload"
        return cast(ReloadedView, self._server.json("POST", path, body={}))

    def reload_shadow(self) -> ShadowView:
        """Load what the folder of the shadow model holds now."""
        path = "/api/v1/shadow/reload"
        return cast(ShadowView, self._server.json("POST", path, body={}))

    def review(
        self,
        *,
        by: Literal["uncertain", "missing", "wrong", "value", "audit"] | None = None,
        count: int | None = None,
        label: list[str] | None = None,
    ) -> Review:
        """Questions worth a person's minute."""
        path = "/api/v1/review"
        return cast(
            Review, self._server.json("GET", path, query={"by": by, "count": count, "label": label})
        )

    def search(
        self,
        q: str,
        *,
        top: int | None = None,
        at_least: float | None = None,
        wrong_at_most: float | None = None,
        promise: Literal["expected", "sure"] | None = None,
        sort: Literal["score", "date"] | None = None,
        folder: str | None = None,
        since: str | None = None,
        until: str | None = None,
        camera: str | None = None,
        rating: int | None = None,
        keyword: list[str] | None = None,
        distinct: bool | None = None,
        who: str | None = None,
        cursor: str | None = None,
    ) -> SearchAnswer:
        """Photos that answer a query."""
        path = "/api/v1/search"
        return cast(
            SearchAnswer,
            self._server.json(
                "GET",
                path,
                query={
                    "q": q,
                    "top": top,
                    "at_least": at_least,
                    "wrong_at_most": wrong_at_most,
                    "promise": promise,
                    "sort": sort,
                    "folder": folder,
                    "since": since,
                    "until": until,
                    "camera": camera,
                    "rating": rating,
                    "keyword": keyword,
                    "distinct": distinct,
                    "who": who,
                    "cursor": cursor,
                },
            ),
        )

    def shadow(self) -> ShadowView:
        """How the answers of the shadow model differ."""
        path = "/api/v1/shadow"
        return cast(ShadowView, self._server.json("GET", path))

    def similar(self, photo: str, *, count: int | None = None) -> list[SimilarView]:
        """Photos that look like it."""
        path = f"/api/v1/photos/{part(photo)}/similar"
        return cast(list[SimilarView], self._server.json("GET", path, query={"count": count}))

    def text_search(
        self,
        text: str,
        *,
        q: str | None = None,
        top: int | None = None,
        at_least: float | None = None,
    ) -> TextAnswer:
        """Photos that look like a text."""
        path = "/api/v1/text-search"
        return cast(
            TextAnswer,
            self._server.json(
                "GET", path, query={"text": text, "q": q, "top": top, "at_least": at_least}
            ),
        )

    def thumbnail(self, photo: str, *, side: int | None = None) -> bytes:
        """A small picture, drawn anew."""
        path = f"/api/v1/photos/{part(photo)}/thumbnail"
        return self._server.ask("GET", path, query={"side": side})

    def trust(self, *, model: str | None = None) -> TrustView:
        """Calibration alarms, shares of labels, promises."""
        path = "/api/v1/trust"
        if model is not None:
            path = f"/api/v1/models/{part(model)}/trust"
        return cast(TrustView, self._server.json("GET", path))

    def undo_check(
        self,
        q: str,
        *,
        wrong_at_most: float | None = None,
        top: int | None = None,
        alone: bool | None = None,
        who: str | None = None,
    ) -> CheckView:
        """Take the last answer about a query back."""
        path = "/api/v1/check/undo"
        return cast(
            CheckView,
            self._server.json(
                "POST",
                path,
                body={
                    "q": q,
                    "wrong_at_most": wrong_at_most,
                    "top": top,
                    "alone": alone,
                    "who": who,
                },
            ),
        )
