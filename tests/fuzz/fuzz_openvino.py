"""OPENVINO: folders whose graph or weights a stranger changed and sealed anew, loaded and run.

OpenVINO reads the graph in this process: a crash ends the run, which names the input. An answer
must be one number for each label, held to the link that the folder names; that link is computed a
second time from the logits by its formula.
"""

import json
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from fuzz_inputs import Files, damage
from fuzz_readers import drawn

from labelwise.decide import Threshold
from labelwise.links import Sigmoid
from labelwise.models.graph_file import UNSEALED, Facts
from labelwise.models.graph_model import (
    FACTS,
    GRAPH,
    WEIGHTS,
    OpenVinoModel,
    digest,
    openvino_runtime,
)
from labelwise.pictures import Transform
from labelwise.types import LabelSpace

SIZE = 8
STRANGE = ("-1", "0", "7", "999999999", "9" * 20, "", "f32", "i64", "u1", "string", "nan", "1,2,3")


@cache
def good_graph() -> Files:
    """Return a small graph: a mean over the picture, a matrix, the sigmoid, thresholds."""
    ops = openvino_runtime().opset13
    pixels = named(ops.parameter([-1, 3, SIZE, SIZE], np.uint8, name="pixels"), "pixels")
    mean = ops.reduce_mean(ops.convert(pixels, "f32"), np.array([2, 3]))
    weights = np.random.default_rng(0).normal(0, 0.02, (3, 3)).astype(np.float32)
    logits = named(ops.matmul(mean, ops.constant(weights), False, False), "logits")
    probability = named(ops.sigmoid(logits), "probability")
    half, one = (ops.constant(np.float32(value)) for value in (0.5, 1.0))
    label = named(ops.greater_equal(probability, half), "label")
    none = named(ops.reduce_prod(ops.subtract(one, probability), np.array([1])), "none")
    results = [ops.result(node) for node in (logits, probability, label, none)]
    with TemporaryDirectory() as folder:
        model = openvino_runtime().Model(results, [pixels])
        openvino_runtime().save_model(model, f"{folder}/{GRAPH}", compress_to_fp16=False)
        return {name: (Path(folder) / name).read_bytes() for name in (GRAPH, WEIGHTS)}


def named(node: Any, name: str) -> Any:
    node.output(0).set_names({name})
    return node


def folder_files(rng: Random) -> Files:
    files = dict(good_graph())
    kind = rng.randrange(5)
    if kind < 3:
        files[GRAPH] = strange_attribute(rng, files[GRAPH])
    elif kind == 3:
        files[GRAPH] = damage(rng, files[GRAPH])
    else:
        files[WEIGHTS] = damage(rng, files[WEIGHTS])
    space = LabelSpace(("x", "y", "z"))
    stated: dict[str, Any] = Facts(
        space, Sigmoid(), Threshold(0.5), Transform(SIZE), "bce", "1" * 64
    ).metadata()
    stated["files"] = {name: digest(content) for name, content in files.items()}
    text = json.dumps(stated)
    return {**files, FACTS: text.replace(UNSEALED, digest(text.encode()), 1).encode()}


def strange_attribute(rng: Random, graph: bytes) -> bytes:
    text = graph.decode()
    found = rng.choice(list(re.finditer(r'="([^"]*)"', text)))
    return (text[: found.start(1)] + rng.choice(STRANGE) + text[found.end(1) :]).encode()


def load_and_run(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    model = OpenVinoModel.load(folder)
    pixels = np.random.default_rng(1).integers(0, 256, (2, 3, SIZE, SIZE), np.uint8)
    logits = model.logits(torch.from_numpy(pixels)).numpy()
    return logits, model.answers(pixels).probability


def same_answers(read: tuple[np.ndarray, np.ndarray], folder: Path) -> bool:
    logits, probability = read
    assert logits.shape == probability.shape == (2, 3), "not one number for each label"
    expected = 1 / (1 + np.exp(-logits.astype(np.float64)))
    assert np.median(np.abs(probability - expected)) < 1e-3, "another link than the one it names"
    return True


OPENVINO = (
    (drawn("openvino graph", folder_files, load_and_run, same_answers),)
    if find_spec("openvino")
    else ()
)
