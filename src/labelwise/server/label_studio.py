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
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, ValidationError

from labelwise.data.label_studio import (
    ImageFolder,
    LabellingConfig,
    chance_of_set,
    prediction,
    read_config,
)
from labelwise.photos.looking import is_below
from labelwise.pictures.sources import read_image_file
from labelwise.server.api import ERRORS
from labelwise.server.batching import Tagged
from labelwise.server.json_bodies import read_json
from labelwise.server.requests import PLACE, answered_or_left, require_json, whole_body
from labelwise.server.security import LABEL_STUDIO, RefusedError
from labelwise.server.service import Service
from labelwise.server.uploads import Upload

MOST_TASKS = 1000
LONGEST_CONFIG = 1 << 20
NOT_TRAINED = "not trained: export the annotations, and train with them by `labelwise train`"

Config = Annotated[str, Field(max_length=LONGEST_CONFIG)]


class StudioTask(BaseModel):
    """A task: what it is called, and its fields."""

    id: int | str | None = None
    data: dict[str, Any]


class StudioTasks(BaseModel):
    """A request for predictions."""

    tasks: Annotated[list[StudioTask], Field(max_length=MOST_TASKS)]
    label_config: Config


class StudioProject(BaseModel):
    """A project that is being connected."""

    labelling: Annotated[Config, Field(alias="schema")]


class StudioVersion(BaseModel):
    """Which model answers."""

    model_version: str


class StudioHealth(BaseModel):
    """Whether the backend is there."""

    status: str = "UP"
    model_class: str = "labelwise"


class StudioPredictions(BaseModel):
    """A prediction for each task, in their order."""

    results: list[dict[str, Any]]
    model_version: str


class StudioHeard(BaseModel):
    """The answer to a webhook."""

    status: str = "ok"
    result: str = NOT_TRAINED


def make_label_studio(service: Service, folder: Path) -> APIRouter:
    """Return the routes of a service that reads the photos of tasks below a folder."""
    api = APIRouter(prefix=LABEL_STUDIO, tags=["label studio"], responses=ERRORS)
    images = ImageFolder(folder)

    @api.get("/health")
    async def health() -> StudioHealth:
        return StudioHealth()

    @api.post("/setup", response_model=StudioVersion)
    async def setup(request: Request) -> StudioVersion:
        given = await _read(request, service, StudioProject)
        model = service.lane().model
        # Says what does not fit before any task does.
        await service.aside(lambda: read_config(given.labelling, model.names))
        return StudioVersion(model_version=model.version)

    @api.post("/predict", response_model=StudioPredictions)
    async def predict(request: Request) -> StudioPredictions:
        given = await _read(request, service, StudioTasks)
        lane = service.lane()
        names, version = lane.model.names, lane.model.version
        config = await service.aside(lambda: read_config(given.label_config, names))
        client = (request.scope.get("client") or ("", 0))[0]
        place, results = request.scope.get(PLACE), []
        for start in range(0, len(given.tasks), service.settings.max_files):
            part = given.tasks[start : start + service.settings.max_files]
            uploads = await service.aside(partial(_uploads, part, config, images))
            tagged = await answered_or_left(
                request, service.tag(lane, uploads, place or service.queue.reserve(client))
            )
            place = None
            results += [_prediction(one, names, config, version) for one in tagged]
        return StudioPredictions(results=results, model_version=version)

    @api.post("/webhook", status_code=201)
    async def webhook(request: Request) -> StudioHeard:
        require_json(request)
        return StudioHeard()

    return api


async def _read(request: Request, service: Service, kind: type[Any]) -> Any:
    require_json(request)
    body = await whole_body(request, service)
    return await service.aside(lambda: _read_as(kind, body))


def _read_as(kind: type[Any], body: bytes) -> Any:
    try:
        return kind.model_validate(read_json(body))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise RefusedError(422, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _uploads(
    tasks: Sequence[StudioTask], config: LabellingConfig, images: ImageFolder
) -> list[Upload]:
    """Return the photos of tasks, each from a file below the folder."""
    home, uploads = os.path.realpath(images.root), []
    for task in tasks:
        address = task.data.get(config.field)
        if not isinstance(address, str) or not address:
            raise RefusedError(
                422, f"task {task.id}: its field {config.field!r} must be an address"
            )
        path = os.path.realpath(os.path.join(home, images.path_of(address)))
        if not is_below(path, home) or not os.path.isfile(path):
            raise RefusedError(
                422,
                f"task {task.id}: {address[:200]} is not a file below the folder that was given "
                "with --label-studio; addresses of other kinds are not opened",
            )
        name = os.path.basename(path)
        uploads.append(Upload(name, read_image_file(Path(path), name)))
    return uploads


def _prediction(
    tagged: Tagged, names: Sequence[str], config: LabellingConfig, version: str
) -> dict[str, Any]:
    if tagged.probs is None or tagged.chosen is None:
        raise RefusedError(422, tagged.error or "the picture cannot be read")
    columns = [column for column, name in enumerate(names) if name in set(config.labels)]
    probs, chosen = tagged.probs[columns].astype(np.float64), tagged.chosen[columns]
    given = [names[column] for column, one in zip(columns, chosen, strict=True) if one]
    return prediction(given, chance_of_set(probs, chosen), version, config)
