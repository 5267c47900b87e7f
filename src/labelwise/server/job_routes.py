"""The paths under /api/v1/jobs: begin a job, send its pictures, see how far it is, read results."""

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from labelwise.server.api import ERRORS
from labelwise.server.jobs import Jobs
from labelwise.server.models import JobIn, JobView
from labelwise.server.requests import PICTURES, read_pictures, require_json
from labelwise.server.security import JOBS
from labelwise.server.service import Service

JobId = Annotated[str, Path(pattern="^[0-9a-f]{32}$", description="The id of the job.")]
KINDS = {"jsonl": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}


def make_jobs(service: Service, jobs: Jobs) -> APIRouter:
    """Return the routes of the jobs of a service."""
    api = APIRouter(prefix=JOBS, tags=["jobs"], responses=ERRORS)

    @api.post("", status_code=201, summary="Begin a job for many pictures")
    async def begin_job(request: Request, asked: JobIn) -> JobView:
        require_json(request)
        client = request.client.host if request.client else ""
        return await asyncio.shield(jobs.begin(service.lane(asked.model), client))

    @api.get("", summary="All jobs, the latest first")
    async def every_job() -> list[JobView]:
        return jobs.views()

    @api.get("/{job}", summary="How far a job is")
    async def job(job: JobId) -> JobView:
        return jobs.view(job)

    @api.post(
        "/{job}/pictures",
        status_code=202,
        openapi_extra=PICTURES,
        summary="Send pictures of a job, in as many requests as it takes",
    )
    async def add_pictures(request: Request, job: JobId) -> JobView:
        jobs.view(job)  # before the body is looked at
        uploads = await read_pictures(request, service)
        return await asyncio.shield(jobs.add(job, uploads))

    @api.post("/{job}/close", summary="Say that no more pictures come")
    async def close_job(request: Request, job: JobId) -> JobView:
        require_json(request)
        return await asyncio.shield(jobs.set_state(job, "closed"))

    @api.post("/{job}/cancel", summary="Give up the pictures that wait, and keep the results")
    async def cancel_job(request: Request, job: JobId) -> JobView:
        require_json(request)
        return await asyncio.shield(jobs.set_state(job, "cancelled"))

    @api.get(
        "/{job}/results",
        summary="The answers so far, in the order of the pictures",
        response_class=Response,
    )
    async def job_results(
        job: JobId,
        format: Annotated[
            Literal["jsonl", "csv"], Query(description="Both as labelwise predict writes them.")
        ] = "jsonl",
    ) -> Response:
        pieces = await jobs.results(job, format)
        return StreamingResponse(pieces, media_type=KINDS[format])

    @api.delete("/{job}", status_code=204, summary="Give a job up, and remove its results")
    async def delete_job(job: JobId) -> None:
        await asyncio.shield(jobs.delete(job))

    return api
