"""The paths under /api/v1 that need an index: search, photos, review, checks of lists."""

import asyncio
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Request, Response

from labelwise.photos.filters import PhotoFilter
from labelwise.photos.review import Reason
from labelwise.server.checking import ListChecks, receipts_view
from labelwise.server.library import SIDES, Library
from labelwise.server.library_models import (
    CheckAnswerIn,
    CheckIn,
    CheckView,
    CorrectionsIn,
    PhotoFactsView,
    PhotoView,
    ReceiptsView,
    Review,
    SearchAnswer,
    SimilarView,
    TextAnswer,
)
from labelwise.server.requests import require_json
from labelwise.server.security import RefusedError
from labelwise.server.service import Service

PhotoId = Annotated[
    str, Path(pattern="^[0-9a-f]{64}$", description="The SHA-256 of the photo's content.")
]


def add_no_library(api: APIRouter) -> None:
    """Answer the same paths where no index is served, with how to serve one."""
    missing = ("/search", "/text-search", "/complete", "/review", "/receipts")
    for path in (*missing, "/check/{rest:path}", "/photos/{rest:path}"):

        @api.api_route(path, methods=["GET", "POST", "PUT"], include_in_schema=False)
        async def no_index() -> None:
            raise RefusedError(
                404, "no index is served; start the server with one: labelwise serve RUN INDEX"
            )


def add_library(api: APIRouter, service: Service, library: Library) -> None:
    """Add what can be asked of the photos of an index."""

    @api.get("/search", summary="Photos that answer a query")
    async def search(
        q: Annotated[str, Query(max_length=2000, description="As in dog, -beach")],
        top: Annotated[int, Query(ge=1, le=500)] = 50,
        at_least: Annotated[float, Query(ge=0, le=1)] = 0.0,
        wrong_at_most: Annotated[float | None, Query(gt=0, lt=1)] = None,
        promise: Annotated[
            Literal["expected", "sure"],
            Query(description="Of lists on average, or of this list with 95 % confidence."),
        ] = "expected",
        sort: Literal["score", "date"] = "score",
        folder: Annotated[
            str | None, Query(max_length=1000, description="Below a root, as in 2023/june")
        ] = None,
        since: Annotated[str | None, Query(max_length=10, description="As in 2023-06-30")] = None,
        until: Annotated[str | None, Query(max_length=10, description="As in 2023")] = None,
        camera: Annotated[str | None, Query(max_length=100, description="Part of its name")] = None,
        rating: Annotated[int | None, Query(ge=1, le=5, description="At least")] = None,
        keyword: Annotated[
            list[str] | None, Query(max_length=20, description="Of the file or its side-car")
        ] = None,
        distinct: Annotated[bool, Query(description="Take near copies as one photo.")] = False,
        who: Annotated[
            str, Query(min_length=1, max_length=100, description="Whom a receipt names.")
        ] = "page",
        cursor: Annotated[
            str | None, Query(pattern="^[0-9]{1,7}$", description="Of the page before.")
        ] = None,
    ) -> SearchAnswer:
        start = int(cursor or 0)
        words = tuple(keyword or ())
        photos = PhotoFilter(folder, since, until, camera, rating, words, distinct=distinct)
        return await library.run(
            lambda: library.search(
                q, top, start, at_least, wrong_at_most, promise, sort, photos, who
            )
        )

    @api.get("/text-search", summary="Photos that look like a text")
    async def text_search(
        text: Annotated[str, Query(min_length=1, max_length=1000)],
        q: Annotated[str, Query(max_length=2000, description="Only photos of this query.")] = "",
        top: Annotated[int, Query(ge=1, le=500)] = 50,
        at_least: Annotated[
            float, Query(ge=0, le=1, description="The least probability of the query.")
        ] = 0.5,
    ) -> TextAnswer:
        return await library.run(lambda: library.text_search(text, q, top, at_least))

    @api.get("/complete", summary="How an unfinished query may go on")
    async def complete(q: Annotated[str, Query(max_length=2000)] = "") -> list[str]:
        return await library.run(lambda: library.completions(q))

    @api.get("/photos/{photo}", summary="A photo and all its labels")
    async def photo(photo: PhotoId) -> PhotoView:
        return await library.run(lambda: library.photo(photo))

    @api.get(
        "/photos/{photo}/thumbnail",
        summary="A small picture, drawn anew",
        response_class=Response,
    )
    async def thumbnail(
        photo: PhotoId,
        side: Annotated[int, Query(description="160, 320, 640 or 1280")] = 320,
    ) -> Response:
        if side not in SIDES:
            raise RefusedError(422, f"side must be one of {', '.join(map(str, SIDES))}, got {side}")
        drawn = await library.thumbnail(photo, side)
        return Response(
            drawn,
            media_type="image/jpeg",
            headers={"cache-control": "private, max-age=86400, immutable"},
        )

    @api.get("/photos/{photo}/facts", summary="Where a photo lies, and what its header says")
    async def facts(photo: PhotoId) -> PhotoFactsView:
        return await library.facts(photo)

    @api.get(
        "/photos/{photo}/original",
        summary="The photo's own file, to be saved",
        response_class=Response,
    )
    async def original(photo: PhotoId) -> Response:
        content, name = await library.original(photo)
        return Response(
            content,
            media_type="application/octet-stream",  # never shown by the browser as a page
            headers={
                "content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
                "cache-control": "private, no-store",
            },
        )

    @api.get("/photos/{photo}/similar", summary="Photos that look like it")
    async def similar(
        photo: PhotoId, count: Annotated[int, Query(ge=1, le=100)] = 12
    ) -> list[SimilarView]:
        return await library.run(lambda: library.similar(photo, count))

    @api.put("/photos/{photo}/labels", summary="Say which labels a photo carries")
    async def correct(request: Request, photo: PhotoId, given: CorrectionsIn) -> PhotoView:
        require_json(request)
        view = await asyncio.shield(library.run(lambda: library.correct(photo, given)))
        for state in given.labels.values():
            service.monitor.corrections.labels(state, given.source).inc()
        return view

    @api.get("/review", summary="Questions worth a person's minute")
    async def review(
        by: Annotated[
            Literal["uncertain", "missing", "wrong", "value", "audit"],
            Query(description="audit: photos drawn at random, for the calibration alarm."),
        ] = "value",
        count: Annotated[int, Query(ge=1, le=200)] = 20,
        label: Annotated[list[str] | None, Query(max_length=100)] = None,
    ) -> Review:
        if by == "audit":
            if label:
                raise RefusedError(422, "an audit asks about every label; leave out label")
            asked = await library.run(lambda: library.audit(count))
        else:
            reason: Reason = by
            asked = await library.run(lambda: library.review(reason, count, label))
        return Review(by=by, questions=asked)


def add_checks(api: APIRouter, library: Library) -> None:
    """Add how a person checks a list, and the receipts of lists."""
    checks = ListChecks(library)

    @api.post("/check/list", summary="Begin to check a list, or resume it")
    async def begin_check(request: Request, asked: CheckIn) -> CheckView:
        require_json(request)
        return await asyncio.shield(library.run(lambda: checks.begin(asked)))

    @api.post("/check/answer", summary="Say whether the photo asked about matches the query")
    async def answer_check(request: Request, given: CheckAnswerIn) -> CheckView:
        require_json(request)
        return await asyncio.shield(library.run(lambda: checks.answer(given)))

    @api.post("/check/undo", summary="Take the last answer about a query back")
    async def undo_check(request: Request, asked: CheckIn) -> CheckView:
        require_json(request)
        return await asyncio.shield(library.run(lambda: checks.undo(asked)))

    @api.get("/receipts", summary="Every promise of a list that was made, and whether it is kept")
    async def receipts() -> ReceiptsView:
        return await library.run(lambda: receipts_view(library))
