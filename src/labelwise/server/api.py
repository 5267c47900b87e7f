"""The paths under /api/v1: models, and pictures in, answers out."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic_core import to_json

from labelwise.errors import DataError
from labelwise.server.batching import Tagged
from labelwise.server.json_bodies import json_list
from labelwise.server.library_routes import add_checks, add_library, add_no_library
from labelwise.server.models import (
    LabelView,
    ModelView,
    Predicted,
    ProblemDetails,
    PromiseView,
    ReloadedView,
    SessionIn,
    ShadowView,
    TrustView,
)
from labelwise.server.reliability import trust_chart
from labelwise.server.requests import PICTURES, PLACE, answered_or_left, read_pictures, require_json
from labelwise.server.security import COOKIE, RefusedError, cookie_value, same_token
from labelwise.server.served_model import ServedModel
from labelwise.server.service import NO_SHADOW, Lane, Service
from labelwise.server.settings import ServeSettings

ModelName = Annotated[str, Path(max_length=300, description="One of /api/v1/models.")]
ERRORS: dict[int | str, dict[str, Any]] = {
    code: {
        "description": words,
        "content": {"application/problem+json": {"schema": ProblemDetails.model_json_schema()}},
    }
    for code, words in {
        400: "The request cannot be understood.",
        401: "A token is needed.",
        403: "The request comes from another site's page.",
        404: "There is no such thing.",
        408: "The request came too slowly.",
        409: "It does not fit what the server has now.",
        413: "The request is too large.",
        415: "The content is of another type than is taken here.",
        422: "The content cannot be used.",
        429: "The server is busy; Retry-After says when to come again.",
        503: "The server cannot answer now, which is not the fault of the request.",
    }.items()
}


def make_api(service: Service) -> APIRouter:
    """Return the routes of a service."""
    api = APIRouter(prefix="/api/v1", responses=ERRORS)
    add_session(api, service.settings)
    _add_models(api, service)
    if service.library is not None:
        add_library(api, service, service.library)
        add_checks(api, service.library)
    else:
        add_no_library(api)
    return api


def add_session(api: APIRouter, settings: ServeSettings) -> None:
    """Add the path that exchanges the token of a server for a cookie."""

    @api.post("/session", status_code=204, summary="Exchange the token for a cookie")
    async def session(request: Request, response: Response, given: SessionIn) -> None:
        require_json(request)
        if settings.token is None or not same_token(given.token, settings.token):
            raise RefusedError(401, "this is not the token of the server")
        response.set_cookie(
            COOKIE,
            cookie_value(settings.token),
            httponly=True,
            samesite="strict",
            secure=request.scope["scheme"] == "https",
            max_age=30 * 86400,
        )


def _add_models(api: APIRouter, service: Service) -> None:
    async def first() -> Lane:
        return service.lane()

    async def named(model: ModelName) -> Lane:
        return service.lane(model)

    @api.get("/models", summary="The models that answer, the first one by default")
    async def models() -> list[ModelView]:
        return [service.model_view(lane.model) for lane in service.lanes.values()]

    @api.get("/models/{model}", summary="One of the models")
    async def model(model: ModelName) -> ModelView:
        return service.model_view(service.lane(model).model)

    @api.post("/models/{model}/reload", summary="Load what the folder of a model holds now")
    async def reload(request: Request, model: ModelName) -> ReloadedView:
        require_json(request)
        changed = await asyncio.shield(service.reload(model))
        return ReloadedView(changed=changed, model=service.model_view(service.lane(model).model))

    @api.get("/model", summary="Which model answers where none is named")
    async def first_model() -> ModelView:
        return service.model_view(service.lane().model)

    @api.get(
        "/shadow",
        summary="How the answers of the shadow model differ",
        response_model=ShadowView,
    )
    async def shadow() -> Response:
        found = service.shadow
        if found is None:
            raise RefusedError(404, NO_SHADOW)
        content = await service.aside(lambda: found.view().model_dump_json())
        return Response(content, media_type="application/json")

    @api.post(
        "/shadow/reload",
        summary="Load what the folder of the shadow model holds now",
        response_model=ShadowView,
    )
    async def reload_shadow(request: Request) -> Response:
        require_json(request)
        await asyncio.shield(service.reload_shadow())
        return await shadow()

    _add_answers(api, service, first)
    several = APIRouter(prefix="/models/{model}")
    _add_answers(several, service, named)
    api.include_router(several)


def _add_answers(
    api: APIRouter, service: Service, chosen: Callable[..., Coroutine[Any, Any, Lane]]
) -> None:
    """Add what can be asked of a model: of the first one, or of the one in the path."""
    Chosen = Annotated[Lane, Depends(chosen)]  # noqa: N806

    @api.post(
        "/predict",
        openapi_extra=PICTURES,
        summary="Labels of pictures",
        response_model=Predicted | list[list[dict[str, float | str]]],
    )
    async def predict(
        request: Request,
        lane: Chosen,
        format: Annotated[
            Literal["labelwise", "hf"], Query(description="hf: label and score of each picture.")
        ] = "labelwise",
    ) -> Response:
        uploads = await read_pictures(request, service)
        tagged = await answered_or_left(
            request, service.tag(lane, uploads, request.scope.get(PLACE))
        )
        if len(tagged) == 1 and tagged[0].error is not None:
            raise RefusedError(422, tagged[0].error)
        write = _written_scores if format == "hf" else _written
        content = await service.aside(lambda: write(lane.model, tagged))
        return Response(content, media_type="application/json")

    @api.get("/labels", summary="All labels with their reliability", response_model=list[LabelView])
    async def labels(lane: Chosen) -> Response:
        content = await service.aside(
            lambda: json_list(
                lane.model.label_view(name).model_dump_json().encode() for name in lane.model.names
            )
        )
        return Response(content, media_type="application/json")

    @api.get(
        "/labels/reliability.svg",
        summary="The reliability diagram of a label",
        response_class=Response,
    )
    async def chart(lane: Chosen, label: Annotated[str, Query(max_length=1000)]) -> Response:
        lane.model.spec.space.column(label)
        trust = (await service.aside(lambda: lane.model.trust)).get(label)
        if trust is None:
            raise RefusedError(404, "no predictions of held-out photos are kept with this model")
        return Response(_svg(trust_chart(trust)), media_type="image/svg+xml")

    @api.get("/promises", summary="What was promised, and whether it is kept")
    async def promises(lane: Chosen) -> list[PromiseView]:
        return await service.promise_views(lane.model)

    @api.get("/trust", summary="Calibration alarms, shares of labels, promises")
    async def trust(lane: Chosen) -> TrustView:
        return await service.trust_view(lane.model)


def _written(model: ServedModel, tagged: Sequence[Tagged]) -> bytes:
    """Return the answer as JSON, made picture by picture so that no other thread waits for long."""
    each = (model.picture_answer(one).model_dump_json().encode() for one in tagged)
    return model.answer_head + b",".join(each) + b"]}"


def _written_scores(model: ServedModel, tagged: Sequence[Tagged]) -> bytes:
    return json_list(to_json(_scores(model, one)) for one in tagged)


def _scores(model: ServedModel, tagged: Tagged) -> list[dict[str, float | str]]:
    if tagged.error is not None:
        raise DataError(tagged.error)
    return [
        {"label": one.label, "score": one.probability}
        for one in model.picture_answer(tagged).labels
    ]


def _svg(chart: str) -> str:
    return chart.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
