"""The Open Inference Protocol v2 (KServe, Triton, MLServer) for the same models.

One input: ``image`` of type BYTES (encoded pictures in base64), or of type UINT8 and shape
(N, H, W, 3). Outputs: ``probability`` FP64, ``label`` BOOL and ``logits`` FP32, each (N, K); the
names of the K labels are a parameter of the answer and of the model's metadata. Tensors may also
come and go as bytes after the JSON.
"""

import asyncio
from collections.abc import Sequence
from itertools import chain
from math import prod
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, Field
from pydantic_core import to_json

from labelwise import __version__
from labelwise.server.api import ERRORS, ModelName, all_tagged, media_type, whole_body
from labelwise.server.batching import Tagged
from labelwise.server.bodies import (
    Upload,
    copied,
    from_base64,
    json_list,
    json_object,
    read_json_as,
)
from labelwise.server.security import RefusedError
from labelwise.server.service import ServedModel, Service

# The extension ``binary_tensor_data``: tensors as bytes after the JSON.
#
#     Inference-Header-Content-Length: n          the first n bytes of the body are JSON
#     "parameters": {"binary_data_size": m}       the data of this tensor are the next m bytes
#
# A BYTES tensor holds the length of each element in four bytes, then the element; other tensors are
# their numbers in the order of rows, all little-endian.

BINARY_DATA = "binary_data_size"
JSON_LENGTH = "inference-header-content-length"


class BinaryBody:
    """A body in two parts: its JSON, and the bytes that its tensors take from the rest."""

    def __init__(self, body: bytes, header: str | None) -> None:
        if header is None:
            self.json, self._rest = body, memoryview(b"")
            return
        if not header.isdecimal() or len(header) > 12 or int(header) > len(body):
            raise RefusedError(400, f"{JSON_LENGTH} must be the length of the JSON in the body")
        self.json, self._rest = copied(body, 0, int(header)), memoryview(body)[int(header) :]

    def take(self, size: Any) -> memoryview:
        if type(size) is not int or not 0 <= size <= len(self._rest):
            raise RefusedError(422, f"{BINARY_DATA} must fit into the bytes after the JSON")
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken

    def require_empty(self) -> None:
        if len(self._rest):
            raise RefusedError(422, f"{len(self._rest):,} bytes after the JSON are of no tensor")


def bytes_elements(data: memoryview, most: int) -> list[bytes]:
    """Return the elements of a BYTES tensor, at most ``most``."""
    texts: list[bytes] = []
    while len(data):
        size = int.from_bytes(data[:4], "little")
        if len(data) < 4 + size or len(data) < 4:
            raise RefusedError(422, "an element of a BYTES tensor is longer than its data")
        if len(texts) == most:
            raise RefusedError(422, f"a request may hold 1 to {most} pictures, got more")
        texts.append(copied(data, 4, 4 + size))
        data = data[4 + size :]
    return texts


OUTPUTS = {"probability": "FP64", "label": "BOOL", "logits": "FP32"}
COLUMNS = {"probability": ("probs", "<f8"), "label": ("chosen", "?"), "logits": ("logits", "<f4")}
_SCHEMA = {"schema": {"$ref": "#/components/schemas/InferIn"}}
BODY = {"requestBody": {"required": True, "content": {"application/json": _SCHEMA}}}
MAX_SIDE = 8192
EXTENSIONS = ["binary_tensor_data", "model_repository"]
Facts = dict[str, Any]  # of answers: the protocol says which
AT_ONCE = 1 << 16  # numbers that are looked at while no other thread can run
MOST_NUMBERS = 1_000_000  # of an answer: some 20 MB of JSON


class InputTensor(BaseModel):
    """A tensor of a request."""

    name: Literal["image"]
    datatype: Literal["BYTES", "UINT8"]
    shape: Annotated[
        list[Annotated[int, Field(strict=True, ge=0, le=1 << 20)]], Field(max_length=4)
    ]
    data: list[Any] | None = None
    parameters: dict[str, Any] = {}


class WantedOutput(BaseModel):
    """An output that is asked for."""

    name: Literal["probability", "label", "logits"]
    parameters: dict[str, Any] = {}


class InferIn(BaseModel):
    """A request for inference."""

    id: Annotated[str | None, Field(max_length=200)] = None
    inputs: Annotated[list[InputTensor], Field(min_length=1, max_length=1)]
    outputs: Annotated[list[WantedOutput] | None, Field(max_length=len(OUTPUTS))] = None
    parameters: dict[str, Any] = {}

    def wanted(self) -> dict[str, bool]:
        binary = self.parameters.get("binary_data_output") is True
        binary_of: dict[str, bool] = {}
        for output in self.outputs or ():
            if output.name in binary_of:
                raise RefusedError(422, "each output may be asked for once")
            binary_of[output.name] = output.parameters.get("binary_data", binary) is True
        return binary_of or dict.fromkeys(OUTPUTS, binary)


def request_schemas() -> dict[str, Any]:
    """Return the schemas of requests that are read here and not by the framework, by name."""
    whole = InferIn.model_json_schema(ref_template="#/components/schemas/{model}")
    return {**whole.pop("$defs"), "InferIn": whole}


def make_inference_protocol(service: Service) -> APIRouter:
    """Return the routes of a service."""
    api = APIRouter(prefix="/v2", tags=["open inference protocol"], responses=ERRORS)

    async def named(model: ModelName) -> ServedModel:
        return service.model(model)

    async def versioned(model: ModelName, version: ModelName) -> ServedModel:
        served = service.model(model)
        if version != served.version:
            raise RefusedError(404, f"there is no such version; the one here is {served.version!r}")
        return served

    @api.get("/health/live")
    async def live() -> Facts:
        return {"live": True, "ready": True}

    @api.get("/health/ready")
    async def ready() -> Facts:
        service.require_ready()
        return await live()

    @api.get("")
    async def server() -> Facts:
        return {"name": "labelwise", "version": __version__, "extensions": EXTENSIONS}

    @api.post("/repository/index", summary="The models that answer")
    async def index() -> list[Facts]:
        ready, models = {"state": "READY", "reason": ""}, service.models.values()
        return [{"name": one.name, "version": one.version} | ready for one in models]

    @api.post("/repository/models/{model}/load", summary="Load what the model's folder holds now")
    async def load(request: Request, model: ModelName) -> Response:
        _require_tensors(request, None)
        await asyncio.shield(service.reload(model))
        return Response()

    for chosen in (named, versioned):
        Chosen = Annotated[ServedModel, Depends(chosen)]  # noqa: N806
        path, of = "/models/{model}", ""
        if chosen is versioned:
            path, of = f"{path}/versions/{{version}}", "_of_version"

        @api.get(path, name=f"metadata{of}")
        async def metadata(served: Chosen) -> Facts:
            shape = [-1, len(served.names)]
            outputs = [{"name": n, "datatype": kind, "shape": shape} for n, kind in OUTPUTS.items()]
            inputs = [{"name": "image", "datatype": "BYTES", "shape": [-1]}]
            facts = {"name": served.name, "versions": [served.version], "platform": "labelwise"}
            told = {"labels": list(served.names)}
            return facts | {"inputs": inputs, "outputs": outputs, "parameters": told}

        @api.get(f"{path}/ready", name=f"model_ready{of}")
        async def model_ready(served: Chosen) -> Facts:
            return {"name": served.name, "ready": service.is_ready}

        @api.post(f"{path}/infer", name=f"infer{of}", response_model=Facts, openapi_extra=BODY)
        async def infer(request: Request, served: Chosen) -> Response:
            header = request.headers.get(JSON_LENGTH)
            _require_tensors(request, header)
            body = await whole_body(request, service)
            most = service.settings.max_files

            def read() -> tuple[InferIn, list[Upload]]:
                parts = BinaryBody(body, header)
                asked = read_json_as(InferIn, parts.json)
                uploads = _uploads(asked.inputs[0], parts, most)
                parts.require_empty()
                return asked, uploads

            asked, uploads = await service.aside(read)
            wanted = asked.wanted()
            if len(uploads) * len(served.names) * len(wanted) > MOST_NUMBERS:
                words = f"an answer may hold {MOST_NUMBERS:,} numbers"
                raise RefusedError(422, f"{words}: ask for fewer outputs, or send fewer pictures")
            tagged = await all_tagged(request, service, served, uploads)
            facts: Facts = {"model_name": served.name, "model_version": served.version}
            facts |= {} if asked.id is None else {"id": asked.id}
            facts["parameters"] = {"labels": list(served.names)}
            return await service.aside(lambda: _written(facts, wanted, tagged))

    return api


def _require_tensors(request: Request, header: str | None) -> None:
    """Refuse a body of another type; clients of the protocol may leave the type out."""
    kind = media_type(request)
    if kind in ("", "application/json") or (kind == "application/octet-stream" and header):
        return
    raise RefusedError(415, f"send application/json, or bytes after JSON with {JSON_LENGTH}")


def _written(facts: Facts, wanted: dict[str, bool], tagged: Sequence[Tagged]) -> Response:
    """Return the answer, made row by row so that no other thread waits for long."""
    outputs, rest = [], []
    for name, as_bytes in wanted.items():
        column, kind = COLUMNS[name]
        rows = [np.asarray(getattr(picture, column)) for picture in tagged]
        told: Facts = {"name": name, "datatype": OUTPUTS[name], "shape": [len(rows), len(rows[0])]}
        data = {}
        if as_bytes:
            rest.append(np.stack(rows).astype(kind).tobytes())
            told["parameters"] = {BINARY_DATA: len(rest[-1])}
        else:
            data["data"] = json_list(to_json(row.tolist())[1:-1] for row in rows)
        outputs.append(json_object(told, data))
    content = json_object(facts, {"outputs": json_list(outputs)})
    if not rest:
        return Response(content, media_type="application/json")
    headers = {JSON_LENGTH: str(len(content))}
    return Response(b"".join([content, *rest]), 200, headers, "application/octet-stream")


def _uploads(tensor: InputTensor, body: BinaryBody, most: int) -> list[Upload]:
    as_bytes = BINARY_DATA in tensor.parameters
    if as_bytes == (tensor.data is not None):
        raise RefusedError(422, f"a tensor has either data or the parameter {BINARY_DATA}")
    data = body.take(tensor.parameters[BINARY_DATA]) if as_bytes else memoryview(b"")
    if tensor.datatype == "BYTES":
        contents = bytes_elements(data, most) if as_bytes else tensor.data or []
        if tensor.shape != [len(contents)]:
            raise RefusedError(422, f"shape must be [{len(contents)}], got {tensor.shape}")
    elif as_bytes:
        shape = _picture_shape(tensor)
        if len(data) != prod(shape):
            raise RefusedError(422, f"UINT8 data of shape {shape} must be {prod(shape):,} bytes")
        contents = list(np.frombuffer(data, np.uint8).reshape(shape))
    else:
        contents = _pixels(tensor)
    if not 1 <= len(contents) <= most:
        raise RefusedError(422, f"a request may hold 1 to {most} pictures, got {len(contents)}")
    encoded = tensor.datatype == "BYTES" and not as_bytes
    return [
        Upload(f"picture {row}", from_base64(content) if encoded else content)
        for row, content in enumerate(contents)
    ]


def _picture_shape(tensor: InputTensor) -> list[int]:
    shape = tensor.shape
    if len(shape) != 4 or shape[3] != 3 or not all(1 <= side <= MAX_SIDE for side in shape[:3]):
        raise RefusedError(422, f"UINT8 pictures must have shape (N, H, W, 3), got {shape}")
    return shape


def _pixels(tensor: InputTensor) -> Any:
    shape, values = _picture_shape(tensor), tensor.data or []
    try:
        while values and isinstance(values[0], list):
            values = list(chain.from_iterable(values))
    except TypeError:
        raise RefusedError(422, "data must hold numbers, or lists of numbers throughout") from None
    slices = [values[at : at + AT_ONCE] for at in range(0, len(values), AT_ONCE)]
    if len(values) != prod(shape) or not all(
        set(map(type, some)) == {int} and min(some) >= 0 and max(some) <= 255 for some in slices
    ):
        raise RefusedError(422, f"UINT8 data must hold {prod(shape):,} whole numbers from 0 to 255")
    return np.concatenate([np.array(some, np.uint8) for some in slices]).reshape(shape)
