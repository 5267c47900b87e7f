"""The page: a few files of HTML, style and script, kept in memory and served as they are.

The style sheet is the report's with the page's own after it. Nothing is put together from what
users or models bring: scripts set text, never markup.
"""

import hashlib
from importlib.resources import files

from fastapi import FastAPI, Request, Response

from labelwise.server.security import problem

TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def add_page(app: FastAPI, name: str = "index.html") -> None:
    """Add a page and all files of pages to an application."""
    folder = files("labelwise.server") / "static"
    kept = {
        file.name: (file.read_bytes(), TYPES[f".{file.name.rpartition('.')[2]}"])
        for file in folder.iterdir()
        if f".{file.name.rpartition('.')[2]}" in TYPES
    }
    shared = (files("labelwise.markup") / "style.css").read_bytes()
    kept["style.css"] = (shared, "text/css")
    page, docs = ((folder / one).read_bytes() for one in (name, "docs.html"))

    @app.get("/", include_in_schema=False)
    async def index(request: Request) -> Response:
        return _answer(request, page, "text/html")

    @app.get("/docs", include_in_schema=False)
    async def described(request: Request) -> Response:
        return _answer(request, docs, "text/html")

    @app.get("/static/{name}", include_in_schema=False)
    async def static(request: Request, name: str) -> Response:
        if name not in kept:
            return problem(404, "there is no such file")
        return _answer(request, *kept[name])


def _answer(request: Request, content: bytes, kind: str) -> Response:
    mark = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    headers = {"etag": mark, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == mark:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=f"{kind}; charset=utf-8", headers=headers)
