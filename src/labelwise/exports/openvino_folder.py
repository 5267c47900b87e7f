"""``export --format openvino``: the ONNX file's graph in a folder that OpenVINO runs.

    model.xml, model.bin   the graph of the ONNX file
    labelwise.json         the metadata of the ONNX file, and the hashes of the other two

The folder is made from the ONNX graph, read back, and compared with the model on real pictures as
the file is. OpenVINO computes in float32 throughout, so that some pixels are a level off.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from labelwise.errors import LabelwiseError
from labelwise.exports.graph import require_new_folder, require_pictures
from labelwise.exports.links import default_thresholds
from labelwise.exports.network import export_network
from labelwise.exports.onnx_file import assemble, facts_of
from labelwise.exports.parity import Parity, assert_parity
from labelwise.models import ModelSpec, Predictor
from labelwise.models.graph_file import UNSEALED, Facts, Input
from labelwise.models.graph_model import (
    FACTS,
    GRAPH,
    WEIGHTS,
    OpenVinoModel,
    digest,
    openvino_runtime,
    tensor_of,
)
from labelwise.pictures import ImageSource
from labelwise.system.files import replacing_folder
from labelwise.system.progress import Watch
from labelwise.system.text import one_line_of

CLOSE, SELDOM = 0.01, 0.01  # of probabilities, and the share of entries that may differ by more


def export_openvino(
    predictor: Predictor,
    spec: ModelSpec,
    folder: Path,
    images: ImageSource,
    rows: Sequence[int],
    *,
    input: Input = "image",
    watch: Watch | None = None,
) -> tuple[int, Parity]:
    """Write a new folder once it agrees with the model; return its size and how it compares."""
    openvino = openvino_runtime()
    folder = Path(folder)
    require_new_folder(folder)
    require_pictures(rows)
    facts = facts_of(predictor, spec, input=input, open_thresholds=True)
    graph = assemble(export_network(predictor.model, predictor.transform.size), facts)
    try:
        converted = openvino.Core().read_model(graph.SerializeToString())
    except Exception as error:  # OpenVINO's own classes have no common base but this
        raise LabelwiseError(
            f"OpenVINO cannot read this model ({one_line_of(error)[:300]}); use --format onnx"
        ) from None
    if "thresholds" in (one.name for one in graph.graph.input):
        _open_thresholds(openvino, converted, len(facts.space))
    for name, value in _model_info(facts).items():
        converted.set_rt_info(value, ["model_info", name])
    with replacing_folder(folder) as temporary:
        openvino.save_model(converted, temporary / GRAPH, compress_to_fp16=False)
        (temporary / FACTS).write_text(_sealed(facts, temporary), encoding="utf-8")
        written = OpenVinoModel.load(temporary)
        parity = assert_parity(written, predictor, images, rows, watch=watch)
        _assert_link_in_float32(written)
        size = sum(file.stat().st_size for file in temporary.iterdir())
    return size, parity


def _assert_link_in_float32(model: "OpenVinoModel") -> None:
    """Raise if the link is another one in float32 for logits that no compared photo may have had.

    Single entries may fall on the other side of a step.
    """
    if model.link is None:
        return
    logits = np.random.default_rng(0).normal(0, 6, (256, len(model.space))).astype(np.float32)
    expected = model.link(torch.from_numpy(logits).double()).numpy()
    apart = np.abs(model.decided(logits).probability - expected)
    if not (apart > CLOSE).mean() <= SELDOM:
        raise LabelwiseError(
            "nothing was written: OpenVINO computes in float32, in which the link "
            f"{model.link.kind!r} gives probabilities up to {apart.max():.2g} off for large "
            "logits; use --format onnx, or another calibrator"
        )


def _open_thresholds(openvino: Any, model: Any, labels: int) -> None:
    """Make the constant thresholds of a model an input of any length: the first K of [it, own].

    OpenVINO has no optional inputs: one of fixed shape that is not given is zeros, which would
    decide for every label; one of open shape is empty, which leaves the model's own.
    """
    ops = openvino.opset13
    own = tensor_of(model, "thresholds")
    users = own.get_target_inputs()
    own.set_names(set())
    given = ops.parameter([-1], np.float64, name="thresholds")
    given.output(0).set_names({"thresholds"})
    chosen = ops.slice(ops.concat([given, own], 0), [0], [labels], [1], [0])
    for user in users:
        user.replace_source_output(chosen.output(0))
    model.add_parameters([given])
    model.validate_nodes_and_infer_types()


def _model_info(facts: Facts) -> dict[str, str]:
    """Return what OpenVINO's own tools look for, which know one threshold at most."""
    info = {"labels": json.dumps(facts.space.names, ensure_ascii=False), "multilabel": "True"}
    thresholds = default_thresholds(facts.rule, len(facts.space))
    if thresholds is not None and len(set(thresholds.tolist())) == 1:
        info["confidence_threshold"] = f"{thresholds[0]:g}"
    return info


def _sealed(facts: Facts, folder: Path) -> str:
    hashes = {name: digest((folder / name).read_bytes()) for name in (GRAPH, WEIGHTS)}
    text = json.dumps({**facts.metadata(), "files": hashes}, indent=2, ensure_ascii=False) + "\n"
    return text.replace(UNSEALED, digest(text.encode()))
