"""An ML backend for Label Studio: predictions of its tasks, as its labelling config asks for them.

    GET  /label-studio/health
    POST /label-studio/setup     {"schema": config}                   -> {"model_version": ...}
    POST /label-studio/predict   {"tasks": [...], "label_config": ...} -> {"results": [...]}
    POST /label-studio/webhook   is answered, and trains nothing

No address of a task is opened: its photo is read from below one folder, Label Studio's document
root or media folder. A score is the chance that all labels of a photo are decided right.
"""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from labelwise.base.storage import is_below
from labelwise.base.text import shortened
from labelwise.contrib.annotation_tools import (
    ImageFolder,
    LabellingConfig,
    chance_of_set,
    prediction,
    read_config,
)
from labelwise.errors import DataError, ImageError
from labelwise.pictures.sources import read_image_file
from labelwise.server.api import ERRORS, all_tagged, require_json, tagged_or_left, whole_body
from labelwise.server.batching import Tagged
from labelwise.server.bodies import M, Upload, from_base64, read_json_as
from labelwise.server.security import LABEL_STUDIO, PHOTOPRISM, RefusedError
from labelwise.server.service import Service

# PhotoPrism's Vision API:
#
#     POST /photoprism/labels   {"id": ..., "images": ["data:image/jpeg;base64,..."]}
#
# Of several cut-outs of one photo a label has its largest probability, as in PhotoPrism itself.

LEAST = 0.001  # PhotoPrism takes a confidence of 0 for one that is not known


class VisionRequest(BaseModel):
    """What PhotoPrism sends, as far as it matters here."""

    id: Annotated[str | None, Field(max_length=200)] = None
    images: Annotated[list[str], Field(min_length=1)]


def make_bridges(service: Service) -> APIRouter:
    """Return the routes of the programs that a service answers."""
    api, studio = APIRouter(), service.settings.label_studio
    if service.settings.photoprism:
        api.include_router(_photoprism(service))
    if studio is not None:
        api.include_router(_label_studio(service, studio))
    return api


def _photoprism(service: Service) -> APIRouter:
    api, told = APIRouter(tags=["photoprism"]), "Labels in the form that PhotoPrism reads"
    content = {"application/json": {"schema": VisionRequest.model_json_schema()}}
    body = {"requestBody": {"required": True, "content": content}}

    @api.post(PHOTOPRISM, response_model=dict[str, object], summary=told, openapi_extra=body)
    async def labels(request: Request) -> Response:
        identity: str | None = None
        served = service.model()
        model = {"type": "labels", "name": served.name, "version": served.version}
        try:
            asked = await _read(request, service, VisionRequest)
            identity = asked.id
            count, most = len(asked.images), service.settings.max_files
            if count > most:
                raise RefusedError(422, f"a request may hold 1 to {most} pictures, got {count}")
            uploads = await service.aside(
                lambda: [Upload(f"picture {n}", from_base64(i)) for n, i in enumerate(asked.images)]
            )
            tagged = await all_tagged(request, service, served, uploads)
            told = {"code": 200, "model": model, "result": _labels(served.names, tagged)}
            status, headers = 200, {}
        except RefusedError as refused:  # PhotoPrism reads code and error, and no problem details
            told = {"code": refused.status, "error": refused.detail}
            status, headers = refused.status, refused.headers
        return JSONResponse(told if identity is None else {"id": identity} | told, status, headers)

    return api


def _labels(names: Sequence[str], tagged: Sequence[Tagged]) -> dict[str, object]:
    probs = np.max([picture.probs for picture in tagged if picture.probs is not None], axis=0)
    given = np.any([picture.chosen for picture in tagged if picture.chosen is not None], axis=0)
    order = sorted(np.flatnonzero(given).tolist(), key=lambda column: -probs[column])
    chances = {names[column]: min(1.0, max(LEAST, float(probs[column]))) for column in order}
    labels = [
        {"name": name, "source": "image", "confidence": chance, "topicality": chance}
        for name, chance in chances.items()
    ]
    # PhotoPrism takes an answer that holds nothing for a failure.
    return {"labels": labels} | ({} if labels else {"caption": {"text": ""}})


MOST_TASKS = 1000
LONGEST_CONFIG = 1 << 20
NOT_TRAINED = "not trained: export the annotations, and train with them by `labelwise train`"

Config = Annotated[str, Field(max_length=LONGEST_CONFIG)]


class StudioTask(BaseModel):
    """A task: what it is called, and its fields."""

    id: int | str | None = None
    data: dict[str, object]


class StudioTasks(BaseModel):
    """A request for predictions."""

    tasks: Annotated[list[StudioTask], Field(max_length=MOST_TASKS)]
    label_config: Config


class StudioProject(BaseModel):
    """A project that is being connected."""

    labelling: Annotated[Config, Field(alias="schema")]


def _label_studio(service: Service, folder: Path) -> APIRouter:
    api = APIRouter(prefix=LABEL_STUDIO, tags=["label studio"], responses=ERRORS)
    images = ImageFolder(folder)

    @api.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "UP", "model_class": "labelwise"}

    @api.post("/setup")
    async def setup(request: Request) -> dict[str, str]:
        given = await _read(request, service, StudioProject)
        model = service.model()
        # Says what does not fit before any task does.
        await service.aside(lambda: read_config(given.labelling, model.names))
        return {"model_version": model.version}

    @api.post("/predict")
    async def predict(request: Request) -> dict[str, object]:
        given = await _read(request, service, StudioTasks)
        served = service.model()
        names, version = served.names, served.version
        config = await service.aside(lambda: read_config(given.label_config, names))
        results = []
        for start in range(0, len(given.tasks), service.settings.max_files):
            tasks = given.tasks[start : start + service.settings.max_files]
            photos = [await service.aside(partial(_photo, task, config, images)) for task in tasks]
            uploads = [photo for photo in photos if isinstance(photo, Upload)]
            tagged = iter(await tagged_or_left(request, service, served, uploads))
            answers = [photo if isinstance(photo, str) else next(tagged) for photo in photos]
            results += [
                _result(task, answer, names, config, version)
                for task, answer in zip(tasks, answers, strict=True)
            ]
        return {"results": results, "model_version": version}

    @api.post("/webhook", status_code=201)
    async def webhook(request: Request) -> dict[str, str]:
        require_json(request)
        return {"status": "ok", "result": NOT_TRAINED}

    return api


async def _read(request: Request, service: Service, kind: type[M]) -> M:
    require_json(request)
    body = await whole_body(request, service)
    return await service.aside(lambda: read_json_as(kind, body))


def _photo(task: StudioTask, config: LabellingConfig, images: ImageFolder) -> Upload | str:
    address, home = task.data.get(config.field), os.path.realpath(images.root)
    if isinstance(address, str) and address:
        try:
            path = os.path.realpath(os.path.join(home, images.path_of(address)))
            if is_below(path, home) and os.path.isfile(path):
                name = os.path.basename(path)
                return Upload(name, read_image_file(Path(path), name))
        except ImageError as error:
            return str(error)
        except (ValueError, DataError):  # a path that no file can have; an upload that is not there
            pass
    return (
        f"field {config.field!r} names no file below the folder given with --label-studio: "
        f"{shortened(repr(address), 200)}; addresses of other kinds are not opened"
    )


def _result(
    task: StudioTask,
    tagged: Tagged | str,
    names: Sequence[str],
    config: LabellingConfig,
    version: str,
) -> dict[str, object]:
    if isinstance(tagged, str):
        return prediction([], 0.0, version, config) | {"error": f"task {task.id}: {tagged}"}
    if tagged.probs is None or tagged.chosen is None:
        return _result(task, tagged.error or "the photo cannot be read", names, config, version)
    columns = [column for column, name in enumerate(names) if name in set(config.labels)]
    probs, chosen = tagged.probs[columns].astype(np.float64), tagged.chosen[columns]
    given = [names[column] for column, is_chosen in zip(columns, chosen, strict=True) if is_chosen]
    return prediction(given, chance_of_set(probs, chosen), version, config)
