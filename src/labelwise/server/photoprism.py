"""PhotoPrism's Vision API: the labels of a photo in the form that PhotoPrism reads.

    POST /photoprism/labels   {"id": ..., "images": ["data:image/jpeg;base64,..."]}

Of several cut-outs of one photo a label has its largest probability, as PhotoPrism merges those of
its own model. PhotoPrism takes an answer that holds nothing for a failure; so one without labels
has an empty caption, which stands for none.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field, ValidationError

from labelwise.server.batching import Tagged
from labelwise.server.json_bodies import from_base64, read_json
from labelwise.server.requests import PLACE, answered_or_left, require_json, whole_body
from labelwise.server.security import PHOTOPRISM, RefusedError
from labelwise.server.service import Service
from labelwise.server.uploads import Upload

LEAST = 0.001  # PhotoPrism takes a confidence of 0 for one that is not known


class VisionLabel(BaseModel):
    """A label, with its probability as PhotoPrism's confidence."""

    name: str
    source: Literal["image"] = "image"
    confidence: float
    topicality: float


class VisionCaption(BaseModel):
    """A caption without text: PhotoPrism would take a result that holds nothing for an error."""

    text: Literal[""] = ""


class VisionResult(BaseModel):
    """The labels of the photo."""

    labels: list[VisionLabel]
    caption: VisionCaption | None = None


class VisionModel(BaseModel):
    """Which model answered."""

    type: Literal["labels"] = "labels"
    name: str
    version: str


class VisionAnswer(BaseModel):
    """An answer of the Vision API; ``error`` says why there is none."""

    id: str | None = None
    code: int = 200
    error: str | None = None
    model: VisionModel | None = None
    result: VisionResult | None = None


class VisionRequest(BaseModel):
    """What PhotoPrism sends, as far as it matters here."""

    id: Annotated[str | None, Field(max_length=200)] = None
    images: Annotated[list[str], Field(min_length=1)]


def make_photoprism(service: Service) -> APIRouter:
    """Return the routes of a service."""
    api = APIRouter(tags=["photoprism"])

    @api.post(
        PHOTOPRISM,
        response_model=VisionAnswer,
        summary="Labels in the form that PhotoPrism reads",
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": VisionRequest.model_json_schema()}},
            }
        },
    )
    async def labels(request: Request) -> Response:
        identity, lane = None, service.lane()
        model = VisionModel(name=lane.model.name, version=lane.model.version)
        try:
            require_json(request)
            body = await whole_body(request, service)
            asked = await service.aside(lambda: _read(body, service.settings.max_files))
            identity = asked.id
            uploads = await service.aside(lambda: _uploads(asked))
            tagged = await answered_or_left(
                request, service.tag(lane, uploads, request.scope.get(PLACE))
            )
            result = _result(lane.model.names, tagged)
        except RefusedError as refused:  # PhotoPrism reads code and error, and no problem details
            told = VisionAnswer(id=identity, code=refused.status, error=refused.detail)
            return _json(told, refused.status, refused.headers)
        return _json(VisionAnswer(id=asked.id, model=model, result=result))

    return api


def _read(body: bytes, most: int) -> VisionRequest:
    try:
        asked = VisionRequest.model_validate(read_json(body))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise RefusedError(422, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if len(asked.images) > most:
        raise RefusedError(422, f"a request may hold 1 to {most} pictures, got {len(asked.images)}")
    return asked


def _uploads(asked: VisionRequest) -> list[Upload]:
    return [Upload(f"picture {at}", from_base64(one)) for at, one in enumerate(asked.images)]


def _result(names: Sequence[str], tagged: Sequence[Tagged]) -> VisionResult:
    errors = [one.error for one in tagged if one.error is not None]
    if errors:
        raise RefusedError(422, errors[0])
    probs = np.max([one.probs for one in tagged if one.probs is not None], axis=0)
    given = np.any([one.chosen for one in tagged if one.chosen is not None], axis=0)
    order = sorted(np.flatnonzero(given).tolist(), key=lambda column: -probs[column])
    chances = {column: min(1.0, max(LEAST, float(probs[column]))) for column in order}
    labels = [
        VisionLabel(name=names[column], confidence=chance, topicality=chance)
        for column, chance in chances.items()
    ]
    return VisionResult(labels=labels, caption=None if labels else VisionCaption())


def _json(answer: VisionAnswer, status: int = 200, headers: Any = None) -> Response:
    return JSONResponse(answer.model_dump(exclude_none=True), status, headers)
