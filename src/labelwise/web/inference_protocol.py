"""The Open Inference Protocol v2 (KServe, Triton, MLServer) for the same model.

One input: ``image`` of type BYTES (encoded pictures in base64), or of type UINT8 and shape
(N, H, W, 3). Outputs: ``probability`` FP64, ``label`` BOOL and ``logits`` FP32, each (N, K).
"""

import base64
import binascii
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, ConfigDict, Field

from labelwise import __version__
from labelwise.web.api import ERRORS, PLACE, answered_or_left, require_json
from labelwise.web.batching import Upload
from labelwise.web.security import RefusedError
from labelwise.web.service import Service

__all__ = ["make_inference_protocol"]

OUTPUTS = {"probability": "FP64", "label": "BOOL", "logits": "FP32"}
MAX_SIDE = 8192


class InputTensor(BaseModel):
    """A tensor of a request."""

    model_config = ConfigDict(extra="allow")
    name: Literal["image"]
    datatype: Literal["BYTES", "UINT8"]
    shape: Annotated[list[Annotated[int, Field(ge=0, le=1 << 20)]], Field(max_length=4)]
    data: list[Any]


class WantedOutput(BaseModel):
    """An output that is asked for."""

    model_config = ConfigDict(extra="allow")
    name: Literal["probability", "label", "logits"]


class InferIn(BaseModel):
    """A request for inference."""

    model_config = ConfigDict(extra="allow")
    id: Annotated[str | None, Field(max_length=200)] = None
    inputs: Annotated[list[InputTensor], Field(min_length=1, max_length=1)]
    outputs: list[WantedOutput] | None = None


class OutputTensor(BaseModel):
    """A tensor of an answer."""

    name: str
    datatype: str
    shape: list[int]
    data: list[float] | list[bool]


class TensorFacts(BaseModel):
    """What a tensor is called and how it looks; -1 is any size."""

    name: str
    datatype: str
    shape: list[int]


class InferOut(BaseModel):
    """The answer to a request for inference."""

    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[OutputTensor]


class ServerFacts(BaseModel):
    """What the server is."""

    name: str = "labelwise"
    version: str = __version__
    extensions: list[str] = []


class ModelFacts(BaseModel):
    """What the model takes and gives."""

    name: str
    versions: list[str]
    platform: str = "labelwise"
    inputs: list[TensorFacts]
    outputs: list[TensorFacts]


class ModelReady(BaseModel):
    """Whether the model answers."""

    name: str
    ready: bool


class ServerStatus(BaseModel):
    """Whether the server is live or ready."""

    live: bool = True
    ready: bool = True


def make_inference_protocol(service: Service) -> APIRouter:
    """Return the routes of a service."""
    api = APIRouter(prefix="/v2", tags=["open inference protocol"], responses=ERRORS)
    version = f"{service.weights}-{service.calibration}"
    ModelName = Annotated[str, Path(max_length=300)]  # noqa: N806

    def known(model: str) -> None:
        if model != service.name:
            raise RefusedError(
                404, f"there is no model of this name; the one here is {service.name!r}"
            )

    @api.get("/health/live")
    async def live() -> ServerStatus:
        return ServerStatus()

    @api.get("/health/ready")
    async def ready() -> ServerStatus:
        if not service.is_ready:
            raise RefusedError(503, "the server is starting or stopping, or must be restarted")
        return ServerStatus()

    @api.get("")
    async def server() -> ServerFacts:
        return ServerFacts()

    @api.get("/models/{model}")
    async def metadata(model: ModelName) -> ModelFacts:
        known(model)
        outputs = [
            TensorFacts(name=name, datatype=kind, shape=[-1, len(service.names)])
            for name, kind in OUTPUTS.items()
        ]
        taken = TensorFacts(name="image", datatype="BYTES", shape=[-1])
        return ModelFacts(name=service.name, versions=[version], inputs=[taken], outputs=outputs)

    @api.get("/models/{model}/ready")
    async def model_ready(model: ModelName) -> ModelReady:
        known(model)
        return ModelReady(name=service.name, ready=service.is_ready)

    @api.post("/models/{model}/infer")
    async def infer(request: Request, model: ModelName, asked: InferIn) -> InferOut:
        known(model)
        require_json(request)
        uploads = _uploads(asked.inputs[0], service.settings.max_files)
        tagged = await answered_or_left(request, service.tag(uploads, request.scope.get(PLACE)))
        errors = [one.error for one in tagged if one.error is not None]
        if errors:
            raise RefusedError(422, errors[0])
        columns: dict[str, list[Any]] = {
            "probability": [one.probs for one in tagged],
            "label": [one.chosen for one in tagged],
            "logits": [one.logits for one in tagged],
        }
        wanted = [one.name for one in asked.outputs] if asked.outputs else list(OUTPUTS)
        shape = [len(tagged), len(service.names)]
        return InferOut(
            model_name=service.name,
            model_version=version,
            id=asked.id,
            outputs=[
                OutputTensor(
                    name=name,
                    datatype=OUTPUTS[name],
                    shape=shape,
                    data=np.stack([np.asarray(row) for row in columns[name]]).ravel().tolist(),
                )
                for name in wanted
            ],
        )

    return api


def _uploads(tensor: InputTensor, most: int) -> list[Upload]:
    if tensor.datatype == "BYTES":
        if tensor.shape != [len(tensor.data)]:
            raise RefusedError(422, f"shape must be [{len(tensor.data)}], got {tensor.shape}")
        uploads = [Upload(f"picture {row}", _decoded(one)) for row, one in enumerate(tensor.data)]
    else:
        pixels = _pixels(tensor)
        uploads = [Upload(f"picture {row}", one) for row, one in enumerate(pixels)]
    if not 1 <= len(uploads) <= most:
        raise RefusedError(422, f"a request may hold 1 to {most} pictures, got {len(uploads)}")
    return uploads


def _decoded(text: Any) -> bytes:
    try:
        return base64.b64decode(str(text), validate=True)
    except (binascii.Error, ValueError):
        raise RefusedError(422, "data must hold pictures in base64") from None


def _pixels(tensor: InputTensor) -> Any:
    shape = tensor.shape
    if len(shape) != 4 or shape[3] != 3 or not all(1 <= side <= MAX_SIDE for side in shape[:3]):
        raise RefusedError(422, f"UINT8 pictures must have shape (N, H, W, 3), got {shape}")
    try:
        values = np.asarray(tensor.data, np.float64)
    except (TypeError, ValueError):
        raise RefusedError(422, "data must hold numbers") from None
    if values.size != np.prod(shape) or not ((values >= 0) & (values <= 255)).all():
        raise RefusedError(422, "data must hold one number from 0 to 255 for each entry of shape")
    return values.reshape(shape).astype(np.uint8)
