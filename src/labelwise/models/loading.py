"""load_model: whatever scores, from wherever it lies.

    a run or model folder   model.json, model.safetensors             torch runs it
    an exported file        NAME.onnx                                 onnxruntime runs it

Each on a disk or in a bucket; a model folder also on a hub, as ``hf://OWNER/NAME``. What comes back
is a :class:`DeployedModel`, for ``labelwise.score``.
"""

import hashlib
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from labelwise import __version__
from labelwise.calibration.auto import link_to_spec
from labelwise.decide.rules import rule_to_spec
from labelwise.errors import CheckpointError, SettingsError
from labelwise.models.graph_file import content_of, features_of, read_model
from labelwise.models.run_folder import RunFolder, fetched_run
from labelwise.models.spec import MODEL_FILE, NOT_CALIBRATED, BackboneSpec, HeadSpec, ModelSpec

if TYPE_CHECKING:
    from labelwise.models.scoring import DeployedModel

TRAINED_READER = "labelwise.learn.predictor"  # of a room above, which needs torch


def load_model(place: str | Path, device: str = "cpu") -> "DeployedModel":
    """Return a model to score with: of a run, a model folder or an export, wherever it is kept."""
    path = fetched_run(place, "model")
    refuse_program(path)
    if not is_exported(path):
        if not path.is_dir():
            what = "is a file of another kind" if path.exists() else "is not there"
            forms = "a model is the folder of a run or an .onnx file"
            raise CheckpointError(f"{place} {what}; {forms}")
        if RunFolder(path).is_solved and device == "cpu":
            from labelwise.models.solved import opened

            return opened(path)
        return _trained(path, device)
    if device != "cpu":
        raise SettingsError(f"an exported model runs on the cpu, got --device {device}")
    from labelwise.models.graph_model import OnnxModel

    return OnnxModel.load(path)


def _trained(folder: Path, device: str) -> "DeployedModel":
    """Return a network that torch computes, by the reader that the room ``learn`` has for it."""
    reader = import_module(TRAINED_READER)
    model: DeployedModel = reader.Predictor.load(folder, device)
    return model


def spec_of(place: Path) -> ModelSpec:
    """Return what a model is, without its weights: by its folder, or by an exported file.

    A file is known by its own hash: an index of the float32 model must not go on with an int8 one.
    """
    if not is_exported(place):
        return ModelSpec.load(place / MODEL_FILE)
    content = content_of(place)
    proto, facts = read_model(content, str(place))
    features = features_of(proto)
    if features is None:
        raise SettingsError(
            f"{place} has no features whose weighted sums are its logits, by which similar photos "
            "are found; give the folder of the run"
        )
    if facts.caution not in (None, NOT_CALIBRATED):
        raise SettingsError(f"{place} is {facts.caution}; give the folder of its run")
    return ModelSpec(
        versions={"labelwise": __version__},  # torch is not imported for its own
        method=facts.method,
        labels=facts.space.names,
        backbone=BackboneSpec(f"{facts.precision} ONNX", features.width),
        transform=facts.transform,
        head=HeadSpec("exported"),
        link=None if facts.link is None else link_to_spec(facts.link),
        rule=rule_to_spec(facts.rule),
        promises=tuple(dict(promise) for promise in facts.promises),
        taxonomy=None if facts.taxonomy is None else dict(facts.taxonomy.parents),
        answers=None if facts.caution is None else 0,
        weights_sha256=hashlib.sha256(content).hexdigest(),
    )


def caution_of(place: Path) -> str | None:
    """Return what must stand beside the answers of a model, None if nothing must."""
    if place.suffix.lower() == ".onnx":
        return read_model(content_of(place), str(place))[1].caution
    file = place / MODEL_FILE
    return ModelSpec.load(file).caution if file.is_file() else None


def is_exported(place: Path) -> bool:
    """Return whether a place holds a model that another runtime than torch runs."""
    return place.suffix.lower() == ".onnx"


def needs_torch(place: Path) -> bool:
    """Return whether the model in a place is a network that torch trained."""
    return not is_exported(place) and not RunFolder(place).is_solved


def model_files(place: Path) -> tuple[Path, ...]:
    """Return the files that make up a model: what another machine needs of it."""
    if not place.is_dir():
        return (place,)
    return tuple(place / name for name in reversed(RunFolder(place).model_files))


def refuse_program(place: Path) -> None:
    """Raise if a file is one that torch can only load by unpickling it."""
    if place.suffix.lower() == ".pt2":
        raise SettingsError(
            f"{place} is not run: torch loads .pt2 files by unpickling, which runs what a stranger "
            "put there; give the folder of the model, or export it as .onnx"
        )
