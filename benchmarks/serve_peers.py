"""The same model served by others: ``serve_peers.py fastapi|litserve FOLDER PORT``.

FastAPI as tutorials have it: one request, one forward pass, in its threads. LitServe with its own
batches, one worker, as its documentation has it: ``decode_request`` opens a picture, forward passes
are shared. Both answer ``POST /predict`` with a picture as the file of a form.
"""

import importlib.util
import sys

import numpy as np
import uvicorn
from fastapi import FastAPI, Request, UploadFile
from numpy.typing import NDArray

from labelwise.learn.predictor import Predictor
from labelwise.models.scoring import score
from labelwise.pictures import ArrayImages, BytesImages

MAX_BATCH, BATCH_TIMEOUT = 32, 0.005  # as ours


def serve_fastapi(folder: str, port: int) -> None:
    predictor = Predictor.load(folder)
    app = FastAPI()

    @app.get("/health")
    async def health() -> str:
        return "ok"

    @app.post("/predict")
    def predict(file: UploadFile) -> dict[str, float]:
        answer = predictor.predict([file.file.read()], workers=1)
        return dict(zip(predictor.space.names, answer.probs[0].tolist(), strict=True))

    uvicorn.run(app, port=port, log_level="warning", access_log=False)


if importlib.util.find_spec("litserve"):
    import litserve

    class Tagger(litserve.LitAPI):
        def __init__(self, folder: str, **options: float) -> None:
            super().__init__(**options)
            self.folder = folder

        def setup(self, device: str) -> None:
            self.predictor = Predictor.load(self.folder)

        def decode_request(self, request: Request) -> NDArray[np.uint8]:
            transform = self.predictor.transform
            picture = BytesImages([request["file"].file.read()], ["picture"])
            return np.asarray(transform.resize(picture.read(0, transform.at_least())))

        def batch(self, inputs: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
            return np.stack(inputs)

        def predict(self, pixels: NDArray[np.uint8]) -> list[list[float]]:
            (part,) = score(
                self.predictor, ArrayImages(pixels, resized=True), batch_size=len(pixels)
            )
            return part.probs.tolist()

        def unbatch(self, output: list[list[float]]) -> list[list[float]]:
            return output

        def encode_response(self, output: list[float]) -> dict[str, float]:
            return dict(zip(self.predictor.space.names, output, strict=True))


def serve_litserve(folder: str, port: int) -> None:
    api = Tagger(folder, max_batch_size=MAX_BATCH, batch_timeout=BATCH_TIMEOUT)
    server = litserve.LitServer(api, accelerator="cpu", devices=1)
    server.run(host="127.0.0.1", port=port, log_level="warning", generate_client_file=False)


if __name__ == "__main__":
    kind, folder, port = sys.argv[1:]
    {"fastapi": serve_fastapi, "litserve": serve_litserve}[kind](folder, int(port))
