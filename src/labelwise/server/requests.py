"""What routes ask of a request: its pictures, its body, and whether its client still waits."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import Request

from labelwise.server.json_bodies import from_base64, read_json
from labelwise.server.security import RefusedError
from labelwise.server.service import Service
from labelwise.server.uploads import Upload, read_form

T = TypeVar("T")

IMAGE_TYPE = re.compile(r"image/[a-z0-9.+-]+|application/octet-stream")

PLACE = "labelwise.place"  # in the scope of a request: its place in the queue

PICTURES = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {
                        "file": {"type": "array", "items": {"type": "string", "format": "binary"}}
                    },
                }
            },
            "image/*": {"schema": {"type": "string", "format": "binary"}},
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["pictures"],
                    "additionalProperties": False,
                    "properties": {
                        "pictures": {
                            "type": "array",
                            "minItems": 1,
                            "items": {
                                "type": "string",
                                "description": "base64, or a data URL of an image in base64",
                            },
                        }
                    },
                }
            },
        },
    }
}


async def read_pictures(request: Request, service: Service) -> list[Upload]:
    """Return the pictures of a request: files of a form, base64 in JSON, or the body itself."""
    most = service.settings.max_files
    content_type = request.headers.get("content-type", "")
    kind = _kind(request)
    if kind == "multipart/form-data":
        form = await whole_body(request, service)
        uploads = await service.aside(lambda: read_form(form, content_type, most))
    elif kind == "application/json":
        text = await whole_body(request, service)
        uploads = await service.aside(lambda: _listed(text, most))
    elif IMAGE_TYPE.fullmatch(kind):
        uploads = [Upload("picture", await whole_body(request, service))]
    else:
        raise RefusedError(
            415,
            "send pictures as multipart/form-data, in base64 as application/json, or one as the "
            "body with its image/ type",
        )
    if not uploads:
        raise RefusedError(422, "there is no file in this form; name its part 'file'")
    return uploads


def _listed(body: bytes, most: int) -> list[Upload]:
    given = read_json(body)
    pictures = given.get("pictures") if isinstance(given, dict) and len(given) == 1 else None
    if not isinstance(pictures, list) or not 1 <= len(pictures) <= most:
        raise RefusedError(
            422, f'send {{"pictures": [...]}} with 1 to {most} pictures in base64 or as data URLs'
        )
    return [Upload(f"picture {at}", from_base64(one)) for at, one in enumerate(pictures)]


async def whole_body(request: Request, service: Service) -> bytes:
    """Return the body; the request itself keeps nothing of it."""
    parts = [part async for part in request.stream()]
    return await service.aside(lambda: b"".join(parts))


async def answered_or_left(request: Request, work: Awaitable[T]) -> T:
    """Return the answer; if the client leaves before, the work is given up."""
    doing = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(request.receive))
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise RefusedError(408, "the client has gone")
        return doing.result()
    finally:
        doing.cancel()
        leaving.cancel()


async def _gone(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def require_json(request: Request) -> None:
    """Refuse a body of another type than JSON, which another site's form could send."""
    if _kind(request) != "application/json":
        raise RefusedError(
            415, "send the header Content-Type: application/json, also where there is no body"
        )


def _kind(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()
