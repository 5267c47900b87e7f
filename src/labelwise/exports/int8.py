"""Eight-bit networks: static quantisation per channel, a link fitted again, and what it costs.

Half of the labelled photos give the ranges of the activations and the new link, the other half the
figures before and after, with 95 % intervals over draws of those photos. Nothing is written if the
photos show that more than 0.5 points of mAP are lost or that the calibration error grows by more
than 0.002. Weights keep seven bits: without 8-bit dot products the sums of eight would overflow.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from warnings import catch_warnings, simplefilter

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import ModelProto

from labelwise.base.progress import Watch
from labelwise.calibration import ZeroShare, auto, within_groups
from labelwise.calibration.entries import OnLogOdds
from labelwise.errors import LabelwiseError
from labelwise.exports.onnx_file import export_network
from labelwise.exports.parity import compare_answers, measured_predictions
from labelwise.exports.requirements import require_exportable
from labelwise.learn.graphs import quiet
from labelwise.learn.predictor import Predictor
from labelwise.links import Consistent, Grouped, Link, require_link
from labelwise.metrics import average_precision, log_loss_from_logs, reliability
from labelwise.metrics.intervals import BootstrapInterval, bootstrap
from labelwise.models.graph_file import INPUT, Facts, read_model, sealed
from labelwise.models.graph_model import OnnxModel
from labelwise.models.graph_writer import assemble
from labelwise.pictures.labelwise_runtime import onnx_runtime
from labelwise.predictions import Predictions
from labelwise.tables import LabelTable

MAX_MAP_LOSS = 0.005
MAX_ECE_GAIN = 0.002
RANGES = 128  # photos that the ranges of the activations come from
BATCH = 16
DRAWS = 200
DRAWN = 4000  # photos at most that intervals are drawn from


@dataclass(frozen=True)
class Figures:
    """What a file is worth: bytes, mAP, calibration error, log loss."""

    size: int
    map: float
    ece: float
    log_loss: float

    def __str__(self) -> str:
        return (
            f"{self.size / 1e6:.2f} MB, mAP {self.map:.4f}, ECE {self.ece:.4f}, "
            f"log loss {self.log_loss:.4f}"
        )


@dataclass(frozen=True)
class Quantised:
    """An eight-bit file with the figures before and after, on ``photos`` held out."""

    content: bytes
    before: Figures
    after: Figures
    photos: int
    link: str
    lost: BootstrapInterval
    gained: BootstrapInterval
    judgement: str  # what the photos show of the limits

    def __str__(self) -> str:
        ratio = self.before.size / self.after.size
        return (
            f"on {self.photos:,} photos held out (ECE: 15 bins over all entries)\n"
            f"float32: {self.before}\n"
            f"int8:    {self.after}\n"
            f"{ratio:.2f} times smaller, link fitted again: {self.link}\n"
            f"{self.judgement}"
        )


def _judgement(lost: BootstrapInterval, gained: BootstrapInterval, photos: int) -> tuple[bool, str]:
    """Return whether the photos show that it loses too much, and what they show in words."""
    limits = f"at most {MAX_MAP_LOSS} of mAP lost and {MAX_ECE_GAIN} of ECE gained"
    too_much = lost.low > MAX_MAP_LOSS or gained.low > MAX_ECE_GAIN
    if too_much:
        verdict = f"beyond the limits ({limits})"
    elif lost.high <= MAX_MAP_LOSS and gained.high <= MAX_ECE_GAIN:
        verdict = f"within the limits ({limits})"
    else:
        verdict = f"too few photos to tell whether it is within the limits ({limits})"
    return too_much, (
        f"eight bits lose {lost.value:+.4f} of mAP ({lost.low:+.4f} to {lost.high:+.4f}) and add "
        f"{gained.value:+.4f} of ECE ({gained.low:+.4f} to {gained.high:+.4f}; 95 % over "
        f"{photos:,} photos): {verdict}"
    )


def quantised_content(
    predictor: Predictor,
    facts: Facts,
    table: LabelTable,
    *,
    anyway: bool = False,
    watch: Watch | None = None,
) -> Quantised:
    """Return an eight-bit file of a model with its link fitted again."""
    if predictor.link is None:
        raise LabelwiseError(
            "a model that only ranks labels has no calibration to keep; calibrate the run first"
        )
    require_exportable(predictor, rgb_for="--int8")
    if len(table) < 4:
        raise LabelwiseError(f"--int8 needs labelled photos, four at least, got {len(table)}")
    fitting = table.subset(np.arange(0, len(table), 2))
    held_out = table.subset(np.arange(1, len(table), 2))
    network = export_network(predictor.model, predictor.transform.size)
    before = _file(network, facts)
    compact = _quantise(network, before, fitting)
    rough = _file(compact, replace(facts, precision="int8", promises=()))
    link = _fitted_anew(predictor.link, measured_predictions(rough, fitting, "fit", watch=watch))
    after = _file(compact, replace(rough.facts, link=link))
    own = measured_predictions(after, held_out, "held out", watch=watch)
    logits = own.logits
    compare_answers(after.decided(logits), replace(predictor, link=link), logits, "the photos")
    reference = measured_predictions(before, held_out, "held out", watch=watch)
    old, new = _figures(before, reference), _figures(after, own)
    changes = _changes(before, after, reference, own)
    too_much, judgement = _judgement(*changes, len(held_out))
    if too_much and not anyway:
        raise LabelwiseError(
            f"nothing was written: {judgement}; to write it all the same, add --int8-anyway"
        )
    judged = _file(compact, replace(after.facts, judgement=judgement))
    return Quantised(sealed(judged.proto), old, new, len(held_out), link.kind, *changes, judgement)


def _changes(
    before: OnnxModel, after: OnnxModel, reference: Predictions, own: Predictions
) -> tuple[BootstrapInterval, BootstrapInterval]:
    """Return the mAP lost and the calibration error gained, over draws of the photos."""

    def observed(part: Predictions, rows: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        return None if part.observed is None else part.observed[rows]

    def map_of(part: Predictions, rows: NDArray[np.int64]) -> float:
        known = observed(part, rows)
        return float(average_precision(part.logits[rows], part.majority[rows], known).value)

    def ece_of(model: OnnxModel, part: Predictions, rows: NDArray[np.int64]) -> float:
        probs = require_link(model.link, model.name)(part.logits[rows].astype(np.float64))
        return float(reliability(probs, part.labels[rows], observed(part, rows), bins=15).ece())

    photos = len(own)
    return (
        _over_draws(lambda rows: map_of(reference, rows) - map_of(own, rows), photos),
        _over_draws(
            lambda rows: ece_of(after, own, rows) - ece_of(before, reference, rows), photos
        ),
    )


def _over_draws(figure: Callable[[NDArray[np.int64]], float], photos: int) -> BootstrapInterval:
    rows = np.arange(min(photos, DRAWN))

    def figures(times: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.array([figure(np.repeat(rows, drawn.astype(np.int64))) for drawn in times])

    with catch_warnings():
        simplefilter("ignore")  # a draw may miss a rare label
        return bootstrap(np.eye(len(rows)), figures, draws=DRAWS)


def _file(network: ModelProto, facts: Facts) -> OnnxModel:
    return OnnxModel(*read_model(sealed(assemble(network, facts)), "the new file"))


def _inputs(model: OnnxModel, table: LabelTable, count: int) -> Iterator[NDArray[np.float32]]:
    for at in range(0, min(count, len(table)), BATCH):
        rows = range(at, min(at + BATCH, count, len(table)))
        pictures = (table.images.read(row, model.transform.at_least()) for row in rows)
        pixels = np.stack([model.pixels(np.asarray(picture)) for picture in pictures])
        yield model.facts.transform.normalise(torch.from_numpy(pixels)).numpy()


def _quantise(network: ModelProto, model: OnnxModel, table: LabelTable) -> ModelProto:
    onnx_runtime()  # which reports nothing home
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    batches = ({INPUT: batch} for batch in _inputs(model, table, RANGES))

    class Photos(CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(batches, None)

    copy = ModelProto()  # the quantiser moves the weights of what it is given elsewhere
    copy.CopyFrom(network)
    with TemporaryDirectory() as folder, quiet():
        path = Path(folder) / "int8.onnx"
        quantize_static(
            copy,
            path,
            Photos(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            reduce_range=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
        small = onnx.load(path)
    del small.graph.value_info[:]
    return small


def _fitted_anew(link: Link, predictions: Predictions) -> Link:
    if isinstance(link, ZeroShare):
        return ZeroShare(_fitted_anew(link.link, predictions), link.ratio)
    if isinstance(link, Consistent):
        return Consistent(_fitted_anew(link.link, predictions), link.tree.parent)
    if isinstance(link, Grouped):
        own = predictions
        base = link.link.link if isinstance(link.link, OnLogOdds) else link.link
        anew = _fitted_anew(base or link.link, own)
        return within_groups(own.logits, own.labels, anew, link.columns, own.observed)
    base = link.link if isinstance(link, OnLogOdds) else link
    given = predictions.logits, predictions.labels, base, predictions.observed
    with catch_warnings():
        simplefilter("ignore")
        return auto(*given, folds=min(5, len(predictions))).link


def _figures(model: OnnxModel, predictions: Predictions) -> Figures:
    link = require_link(model.link, model.name)
    labels, observed = predictions.labels, predictions.observed
    log_p, log_q = link.log_probs(predictions.logits.astype(np.float64))
    return Figures(
        len(model.proto.SerializeToString()),
        float(average_precision(predictions.logits, predictions.majority, observed).value),
        float(reliability(np.exp(log_p), labels, observed, bins=15).ece()),
        float(log_loss_from_logs(log_p, log_q, labels, observed).value),
    )
