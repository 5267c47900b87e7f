"""What the API says, as types: they make the answers, and the description at /openapi.json.

What it says of an index is in :mod:`labelwise.server.library_models`.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Probability = Annotated[float, Field(ge=0, le=1)]


class ProblemDetails(BaseModel):
    """An error (RFC 9457); ``error`` is ``detail``, where the inference protocol looks for it."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    error: str


class Health(BaseModel):
    """Whether the server is there."""

    status: Literal["live", "ready"]


class SessionIn(BaseModel):
    """The token, exchanged for a cookie."""

    model_config = ConfigDict(extra="forbid")
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


class ShadowLabel(BaseModel):
    """A label of two models: how often each decided it, and how far probabilities are apart."""

    label: str
    both: int
    only_served: int
    only_shadow: int
    mean_difference: float | None
    largest_difference: float | None


class ShadowView(BaseModel):
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


class JobIn(BaseModel):
    """A job to begin; the first model answers unless another one is named."""

    model_config = ConfigDict(extra="forbid")
    model: Annotated[str | None, Field(max_length=300)] = None


class JobView(BaseModel):
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
    held_up: str | None = None


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


class BinView(BaseModel):
    """Held-out photos whose probability lay in (low, high]."""

    low: float
    high: float
    photos: int
    carried: int
    share_low: float
    share_high: float
    sentence: str


class LabelView(BaseModel):
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

    label: str
    audited: int
    present: int
    expected: float
    evidence: float
    threshold: float
    raised: bool


class ShareView(BaseModel):
    """The share of a label when the model was made, and now."""

    label: str
    source: Literal["recent pictures", "library"]
    before: float
    now: float
    low: float
    high: float
    photos: int
    moved: bool


class TrustView(BaseModel):
    """What speaks for and against trusting the model today."""

    alarms: list[AlarmView]
    shares: list[ShareView]
    promises: list[PromiseView]
    notes: list[str]
