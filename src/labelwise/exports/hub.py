"""``export --format hf``: a folder to push to a hub, with nothing in it that is not plain data.

    model.json         labels, transform, link, rule, promises: all that labelwise reads
    model.safetensors  the weights, under timm's names where timm has such a model
    config.json        what timm and transformers read, in that case
    README.md          the model card, with reliability.svg

timm loads the new folder, and its logits are compared. transformers takes a sigmoid or a softmax of
these logits, so the link is folded into the classifier. A model whose probabilities are another
function of its logits, or a mean over several views, has a ``model_type`` that it does not load.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
import torch
from torch import Tensor

from labelwise.base.files import replacing, replacing_folder
from labelwise.base.text import one_line_of
from labelwise.calibration import platt
from labelwise.calibration.entries import OnLogOdds
from labelwise.errors import LabelwiseError, SettingsError
from labelwise.exports.onnx_file import folded
from labelwise.exports.requirements import require_exportable, require_new_folder
from labelwise.learn.graphs import quiet
from labelwise.learn.heads import LinearHead
from labelwise.learn.predictor import Predictor
from labelwise.links import Link
from labelwise.metrics import log_loss_from_logs, reliability
from labelwise.models import WEIGHTS_FILE, RunFolder
from labelwise.predictions import Predictions
from labelwise.scores.fit import fit_rule

CONFIG_FILE = "config.json"
BINS = 15  # of the calibration error
CLOSE = 1e-5  # of logits, relative above 1
# Of timm's constructors: what the architecture does by itself, then ways to ask for a plain mean.
MODEL_ARGUMENTS: tuple[dict[str, object], ...] = (
    {},
    {"global_pool": "avg"},
    {"global_pool": "avg", "fc_norm": False},  # vision transformers
)


@dataclass(frozen=True)
class HubModel:
    """A model before its link was folded, and why timm or transformers cannot load its folder.

    ``difference`` is the largest between timm's logits and the written model's, relative above 1.
    """

    predictor: Predictor
    why_not_timm: str = ""
    difference: float = 0.0
    why_not_transformers: str = ""

    @property
    def loads_in_timm(self) -> bool:
        """Whether ``timm.create_model("local-dir:FOLDER", pretrained=True)`` is this model."""
        return not self.why_not_timm

    @property
    def loads_in_transformers(self) -> bool:
        """Whether ``transformers.pipeline("image-classification", FOLDER)`` is this model."""
        return self.loads_in_timm and not self.why_not_transformers


def expressible(predictor: Predictor, run: RunFolder) -> tuple[Predictor, str]:
    """Return a predictor whose link transformers can express, and what that costs, in words.

    A calibrator's curve is replaced by Platt's line, fitted on the same validation rows, and the
    rule is fitted again. The words are empty where nothing changes.
    """
    link, network, labels = predictor.link, predictor.model, len(predictor.space)
    one_view = isinstance(network.head, LinearHead) and not network.mirrored and network.crops == 1
    if not isinstance(link, OnLogOdds) or link.slope_and_offset(labels) is not None:
        return predictor, ""
    if not one_view or "val" not in run.splits:
        return predictor, ""
    val = run.predictions("val")
    judged = run.predictions("test") if "test" in run.splits else val
    curved = link.link is not None and link.link.slope_and_offset(labels) is None
    below = None if curved else link.link  # None: the line is one of the raw logits
    try:
        with catch_warnings():
            simplefilter("ignore")
            line = platt(val.logits, val.labels, below, val.observed)
            rule, _ = fit_rule(str(run.settings.get("rule", "auto")), val, line)
    except (LabelwiseError, ValueError):  # too little to fit on: it stays as it is, and says why
        return predictor, ""
    if line.slope_and_offset(labels) is None:
        return predictor, ""
    (loss, error), (old_loss, old_error) = _figures(judged, line), _figures(judged, link)
    words = (
        f"transformers cannot express the calibrator {link.kind!r}: this folder has Platt scaling "
        f"instead, and its rule, fitted on the {len(val):,} rows of val. On {judged.split} the log "
        f"loss is {loss:.4f} instead of {old_loss:.4f}, the calibration error {error:.2%} instead "
        f"of {old_error:.2%}; the run keeps its own"
    )
    lost = "; guarantees of the run do not hold for this folder" if predictor.promises else ""
    return replace(predictor, link=line, rule=rule, promises=()), words + lost


def _figures(rows: Predictions, link: Link) -> tuple[float, float]:
    log_p, log_q = link.log_probs(rows.logits.astype(np.float64))
    loss = log_loss_from_logs(log_p, log_q, rows.labels, rows.observed).value
    error = reliability(np.exp(log_p), rows.labels, rows.observed, bins=BINS).ece()
    return float(loss), float(error)


def export_hub(
    predictor: Predictor, folder: Path, write_card: Callable[[Path, HubModel], None]
) -> HubModel:
    """Write a model to a new folder, with the card that ``write_card`` puts there."""
    folder = Path(folder)
    require_new_folder(folder)
    require_exportable(predictor, rgb_for="a folder for a hub")
    with replacing_folder(folder) as temporary:
        model = _write_model(predictor, temporary)
        write_card(temporary, model)
    return model


def _write_model(predictor: Predictor, folder: Path) -> HubModel:
    written, marks, why_not_transformers = predictor, {"model_type": "labelwise"}, ""
    try:
        if predictor.model.mirrored or predictor.model.crops > 1:
            raise SettingsError("its probabilities are those of several views of a picture")
        written, problem_type = folded(predictor)
        marks = {"problem_type": problem_type}
    except SettingsError as error:
        why_not_transformers = str(error)
    try:
        written.save(folder, weight_names="timm")
    except SettingsError as error:
        predictor.save(folder)
        return HubModel(predictor, str(error))
    reason = ""
    for arguments in MODEL_ARGUMENTS:
        config = _config(written, arguments) | marks
        with replacing(folder / CONFIG_FILE) as temporary:
            temporary.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", "utf-8")
        try:
            difference = _difference(written, folder)
        except Exception as error:  # constructors of timm raise errors of every kind
            reason = reason or f"timm cannot load it: {one_line_of(error)[:200]}"
            continue
        if difference <= CLOSE:
            return HubModel(predictor, "", difference, why_not_transformers)
        reason = f"timm's {predictor.model.backbone.name!r} does more than pool between features "
        reason += f"and classifier: its logits are {difference:.2g} apart"
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        (folder / name).unlink()
    predictor.save(folder)
    return HubModel(predictor, reason)


def _config(predictor: Predictor, arguments: dict[str, object]) -> dict[str, object]:
    """Return what timm's own ``save_config_for_hf`` would write, from our transform and labels."""
    backbone, transform = predictor.model.backbone, predictor.transform
    network: Any = backbone.get_submodule("network")
    original: dict[str, Any] = network.pretrained_cfg
    labels = len(predictor.space)
    return {
        "architecture": backbone.name.partition(".")[0],
        "num_classes": labels,
        "num_features": backbone.channels,
        **({"global_pool": arguments["global_pool"]} if "global_pool" in arguments else {}),
        "label_names": list(predictor.space.names),
        **({"model_args": arguments} if arguments else {}),
        "pretrained_cfg": {
            "input_size": [3, transform.size, transform.size],
            "fixed_input_size": bool(original.get("fixed_input_size", False)),
            "interpolation": transform.interpolation,
            "crop_pct": 1.0 if transform.crop is None else transform.crop,
            "crop_mode": "squash" if transform.crop is None else "center",
            "mean": list(transform.mean),
            "std": list(transform.std),
            "num_classes": labels,
            "first_conv": original.get("first_conv"),
            "classifier": backbone.classifier,
        },
    }


def _difference(predictor: Predictor, folder: Path) -> float:
    import timm

    model, size = predictor.model.eval(), predictor.transform.size
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), quiet():
        answers: Tensor = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()(images)
        expected: Tensor = model.head(model.backbone(images)).logits
    if answers.shape != expected.shape:
        return float("inf")
    apart = (answers - expected).abs() / expected.abs().clamp(min=1)
    return float(apart.max().nan_to_num(float("inf")))
