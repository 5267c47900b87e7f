"""The paths under /api/v1: models, and pictures in, answers out."""

import asyncio
import re
from collections.abc import Callable, Coroutine, Sequence
from functools import partial, wraps
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic_core import from_json, to_json

from labelwise.errors import DataError
from labelwise.server import schemas
from labelwise.server.batching import Tagged
from labelwise.server.bodies import Upload, from_base64, json_list, read_form, read_json
from labelwise.server.schemas import PhotoAddress
from labelwise.server.security import COOKIE, RefusedError, cookie_value, same_token
from labelwise.server.service import ServedModel, Service, trust_chart
from labelwise.server.settings import ServeSettings

if TYPE_CHECKING:  # a server without an index needs none of it
    from labelwise.server.library import Library


def require_json(request: Request) -> None:
    """Refuse a body of another type than JSON, which another site's form could send."""
    if media_type(request) != "application/json":
        raise RefusedError(415, "send the header Content-Type: application/json, even without body")


def media_type(request: Request) -> str:
    """Return the type of a request's body, in lower case and without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


SIDES = (160, 320, 640, 1280)  # of thumbnails
JSON = [Depends(require_json)]


def small_side(side: Annotated[int, Query(description="160, 320, 640 or 1280")] = 320) -> int:
    """Return the side of a thumbnail, or refuse it."""
    if side not in SIDES:
        raise RefusedError(422, f"side must be one of {', '.join(map(str, SIDES))}, got {side}")
    return side


Side = Annotated[int, Depends(small_side)]


def answering(api: APIRouter, run: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., None]:
    """Return what adds a route whose answer is work with the same parameters, done by ``run``.

    What is written is written also where the client leaves; ``after`` are called when it is done.
    """

    def ask(
        path: str,
        work: Callable[..., Any],
        summary: str,
        name: str = "",
        method: str = "GET",
        after: Sequence[Callable[[], None]] = (),
    ) -> None:
        @wraps(work)
        async def answered(**given: Any) -> Any:
            doing = run(partial(work, **given))
            result = await (doing if method == "GET" else asyncio.shield(doing))
            for step in after:
                step()
            return result

        api.add_api_route(
            path,
            answered,
            name=name or work.__name__,
            methods=[method],
            summary=summary,
            dependencies=None if method == "GET" else JSON,
        )

    return ask


def add_library(api: APIRouter, service: Service, library: "Library") -> None:
    """Add what can be asked of the photos of an index, most of it one method of the library."""
    from labelwise.server.library import ListChecks

    ask = answering(api, library.run)
    ask("/search", library.search, "Photos that answer a query")
    ask("/text-search", library.text_search, "Photos that look like a text")
    ask("/album-search", library.album_search, "Photos that look like those of an album")
    ask("/library", library.overview, "How often each label is given, and the newest photos")
    ask("/complete", library.complete, "How an unfinished query may go on")
    ask("/photos/{photo}", library.photo, "A photo and all its labels")
    ask("/photos/{photo}/similar", library.similar, "Photos that look like it")
    ask("/review", library.review, "Questions worth a person's minute")
    ask("/receipts", library.receipts, "Every promise of a list, and whether it is kept")
    checks = ListChecks(library)
    for step, work, summary in (
        ("list", checks.begin, "Begin to check a list, or resume it"),
        ("answer", checks.answer, "Whether the photo asked about matches"),
        ("undo", checks.undo, "Take the last answer about a query back"),
    ):
        ask(f"/check/{step}", work, summary, f"{work.__name__}_check", "POST")

    @api.put("/photos/{photo}/labels", dependencies=JSON, summary="Say which labels it carries")
    async def correct(photo: PhotoAddress, given: schemas.CorrectionsIn) -> schemas.PhotoView:
        view = await asyncio.shield(library.run(lambda: library.correct(photo, given)))
        for state in given.labels.values():
            service.monitor.corrections.labels(state, given.source).inc()
        return view

    words = "A small picture, drawn again"

    @api.get("/photos/{photo}/thumbnail", summary=words, response_class=Response)
    async def thumbnail(photo: PhotoAddress, side: Side = 320) -> Response:
        headers = {"cache-control": "private, max-age=86400, immutable"}
        return Response(await library.thumbnail(photo, side), 200, headers, "image/jpeg")

    words = "Where a photo lies, and what its header says"
    api.get("/photos/{photo}/facts", summary=words)(library.facts)
    words = "The photo's own file, to be saved"

    @api.get("/photos/{photo}/original", summary=words, response_class=Response)
    async def original(photo: PhotoAddress) -> Response:
        content, name = await library.original(photo)
        headers = {"cache-control": "private, no-store"}
        headers["content-disposition"] = f"attachment; filename*=UTF-8''{quote(name, safe='')}"
        # A browser never shows this type as a page.
        return Response(content, 200, headers, "application/octet-stream")


IMAGE_TYPE = re.compile(r"image/[a-z0-9.+-]+|application/octet-stream")

# What /openapi.json says of errors, and of bodies that hold pictures.
_DESCRIBED = from_json((files("labelwise.server") / "described.json").read_bytes())
PLACE = "labelwise.place"  # in the scope of a request: its place in the queue
OF_AN_INDEX = "/search /text-search /album-search /library /complete /review /receipts "
OF_AN_INDEX += "/check/{rest:path} /photos/{rest:path}"


async def read_pictures(request: Request, service: Service) -> list[Upload]:
    """Return the pictures of a request: files of a form, base64 in JSON, or the body itself."""
    most = service.settings.max_files
    kind = media_type(request)
    if kind == "multipart/form-data":
        uploads = await read_form(request, most)
    elif kind == "application/json":
        text = await whole_body(request, service)

        def listed() -> list[Upload]:
            given = read_json(text)
            sent = given.get("pictures") if isinstance(given, dict) and len(given) == 1 else None
            if not isinstance(sent, list) or not 1 <= len(sent) <= most:
                raise RefusedError(422, f'send {{"pictures": [...]}} with 1 to {most} in base64')
            return [Upload(f"picture {at}", from_base64(text)) for at, text in enumerate(sent)]

        uploads = await service.aside(listed)
    elif IMAGE_TYPE.fullmatch(kind):
        uploads = [Upload("picture", await whole_body(request, service))]
    else:
        raise RefusedError(415, "send pictures as a form, base64 in JSON, or one as an image/ body")
    if not uploads:
        raise RefusedError(422, "there is no file in this form; name its part 'file'")
    return uploads


async def whole_body(request: Request, service: Service) -> bytes:
    """Return the body, of which the request itself keeps nothing."""
    parts = [chunk async for chunk in request.stream()]
    return await service.aside(lambda: b"".join(parts))


async def tagged_or_left(
    request: Request, service: Service, model: ServedModel, uploads: Sequence[Upload]
) -> list[Tagged]:
    """Return a model's answers; if the client leaves before, the work is given up."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    work = service.tag(model, uploads, request.scope.get(PLACE))
    doing, leaving = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise RefusedError(408, "the client has gone")
        return doing.result()
    finally:
        doing.cancel()
        leaving.cancel()


async def all_tagged(
    request: Request, service: Service, model: ServedModel, uploads: Sequence[Upload]
) -> list[Tagged]:
    """Return a model's answers, where none of the pictures may be wrong."""
    tagged = await tagged_or_left(request, service, model, uploads)
    errors = [picture.error for picture in tagged if picture.error is not None]
    if errors:
        raise RefusedError(422, errors[0])
    return tagged


ModelName = Annotated[str, Path(max_length=300, description="One of /api/v1/models.")]
_PROBLEM = {"application/problem+json": {"schema": schemas.ProblemDetails.model_json_schema()}}
ERRORS: dict[int | str, dict[str, object]] = {
    int(code): {"description": words, "content": _PROBLEM}
    for code, words in _DESCRIBED["errors"].items()
}


def make_api(service: Service) -> APIRouter:
    """Return the routes of a service."""
    api = APIRouter(prefix="/api/v1", responses=ERRORS)
    add_session(api, service.settings)
    _add_models(api, service)
    if service.library is not None:
        add_library(api, service, service.library)
        return api

    async def no_index() -> None:
        raise RefusedError(404, "no index is served; start with one: labelwise serve RUN INDEX")

    for path in OF_AN_INDEX.split():
        api.api_route(path, methods=["GET", "POST", "PUT"], include_in_schema=False)(no_index)
    return api


def add_session(api: APIRouter, settings: ServeSettings) -> None:
    """Add the path that exchanges the token of a server for a cookie."""

    words = "Exchange the token for a cookie"

    @api.post("/session", status_code=204, dependencies=JSON, summary=words)
    async def session(request: Request, response: Response, given: schemas.SessionIn) -> None:
        if settings.token is None or not same_token(given.token, settings.token):
            raise RefusedError(401, "this is not the token of the server")
        cookie, is_https = cookie_value(settings.token), request.scope["scheme"] == "https"
        response.set_cookie(
            COOKIE,
            cookie,
            secure=is_https,
            httponly=True,
            samesite="strict",
            max_age=30 * 86400,
        )


def _add_models(api: APIRouter, service: Service) -> None:
    async def first() -> ServedModel:
        return service.model()

    async def named(model: ModelName) -> ServedModel:
        return service.model(model)

    @api.get("/models", summary="The models that answer, the first one by default")
    async def models() -> list[schemas.ModelView]:
        return [service.model_view(served) for served in service.models.values()]

    @api.get("/models/{model}", summary="One of the models")
    async def model(model: ModelName) -> schemas.ModelView:
        return service.model_view(service.model(model))

    words = "Load what the folder of a model holds now"

    @api.post("/models/{model}/reload", dependencies=JSON, summary=words)
    async def reload(model: ModelName) -> schemas.ReloadedView:
        changed = await asyncio.shield(service.reload(model))
        return schemas.ReloadedView(changed=changed, model=service.model_view(service.model(model)))

    @api.get("/model", summary="Which model answers where none is named")
    async def first_model() -> schemas.ModelView:
        return service.model_view(service.model())

    _add_answers(api, service, first)
    several = APIRouter(prefix="/models/{model}")
    _add_answers(several, service, named)
    api.include_router(several)


def _add_answers(
    api: APIRouter, service: Service, chosen: Callable[..., Coroutine[Any, Any, ServedModel]]
) -> None:
    Chosen = Annotated[ServedModel, Depends(chosen)]  # noqa: N806

    @api.post(
        "/predict",
        openapi_extra=_DESCRIBED["pictures"],
        summary="Labels of pictures",
        response_model=schemas.Predicted | list[list[dict[str, float | str]]],
    )
    async def predict(
        request: Request,
        served: Chosen,
        format: Annotated[
            Literal["labelwise", "hf"], Query(description="hf: label and score of each picture.")
        ] = "labelwise",
    ) -> Response:
        uploads = await read_pictures(request, service)
        tagged = await tagged_or_left(request, service, served, uploads)
        if len(tagged) == 1 and tagged[0].error is not None:
            raise RefusedError(422, tagged[0].error)

        def written() -> bytes:  # picture by picture, so that no other thread waits for long
            views = map(served.picture_answer, tagged)
            if format == "labelwise":
                each = b",".join(view.model_dump_json().encode() for view in views)
                return served.answer_head + each + b"]}"
            lists = []
            for view in views:
                if view.error is not None:
                    raise DataError(view.error)
                scores = [{"label": one.label, "score": one.probability} for one in view.labels]
                lists.append(to_json(scores))
            return json_list(lists)

        return Response(await service.aside(written), media_type="application/json")

    views = list[schemas.LabelView]

    @api.get("/labels", summary="All labels with their reliability", response_model=views)
    async def labels(served: Chosen) -> Response:
        content = await service.aside(lambda: json_list(map(to_json, served.trust.values())))
        return Response(content, media_type="application/json")

    words = "The reliability diagram of a label"

    @api.get("/labels/reliability.svg", summary=words, response_class=Response)
    async def chart(served: Chosen, label: Annotated[str, Query(max_length=1000)]) -> Response:
        served.spec.space.column(label)
        trust = (await service.aside(lambda: served.trust))[label]
        if not trust.bins:
            raise RefusedError(404, "no predictions of held-out photos are kept with this model")
        chart = trust_chart(trust).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
        return Response(chart, media_type="image/svg+xml")

    @api.get("/promises", summary="What was promised, and whether it is kept")
    async def promises(served: Chosen) -> list[schemas.PromiseView]:
        return await service.promise_views(served)

    @api.get("/trust", summary="Calibration alarms, shares of labels, promises")
    async def trust(served: Chosen) -> schemas.TrustView:
        return await service.trust_view(served)
