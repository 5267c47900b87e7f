"""load_model: whatever scores, from wherever it lies.

    a run or model folder   model.json, model.safetensors             torch runs it
    an exported file        NAME.onnx                                 onnxruntime runs it
    an exported folder      model.xml, model.bin, labelwise.json      OpenVINO runs it

Each on a disk or in a bucket; a model folder also on a hub, as ``hf://OWNER/NAME``. What comes back
is a :class:`DeployedModel`, for ``labelwise.score``.
"""

from pathlib import Path

from labelwise.errors import CheckpointError, SettingsError
from labelwise.models.predictor import Predictor
from labelwise.models.run_folder import MODEL_FILES, OPENVINO_FILES, fetched_run
from labelwise.models.scoring import DeployedModel
from labelwise.models.spec import MODEL_FILE, ModelSpec


def load_model(place: str | Path, device: str = "cpu") -> DeployedModel:
    """Return the model of a run, a model folder or an export, on a disk, in a bucket or on a hub.

    ``labelwise.score(load_model("runs/photos"), labelwise.data.load("new.csv").images)`` scores
    with any of them. Exported models run on the CPU.
    """
    path = fetched_run(place, "model")
    refuse_program(path)
    if not is_exported(path):
        if not path.is_dir():
            what = "is a file of another kind" if path.exists() else "is not there"
            raise CheckpointError(
                f"{place} {what}; a model is the folder of a run, an .onnx file or an OpenVINO "
                "folder"
            )
        return Predictor.load(path, device)
    if device != "cpu":
        raise SettingsError(f"an exported model runs on the cpu, got --device {device}")
    from labelwise.models.onnx_sessions import require_onnx

    require_onnx()
    if path.is_dir():
        from labelwise.models.openvino_model import OpenVinoModel

        return OpenVinoModel.load(path)
    from labelwise.models.graph_model import OnnxModel

    return OnnxModel.load(path)


def spec_of(place: Path) -> ModelSpec:
    """Return what a model is, without its weights: by its folder, or by an exported file.

    A file of eight bits has logits of its own: the hash of its weights is that of the file.
    """
    if not is_exported(place):
        return ModelSpec.load(place / MODEL_FILE)
    if place.is_dir():
        raise SettingsError(
            f"{place} is for OpenVINO, which predicts with it; an index, or a server, takes the "
            "folder of a run or an .onnx file"
        )
    from labelwise.models.onnx_sessions import require_onnx

    require_onnx()
    from labelwise.models.exported_spec import exported_spec

    return exported_spec(place)


def caution_of(place: Path) -> str | None:
    """Return what must stand beside the answers of a model, None if nothing must."""
    if place.suffix.lower() == ".onnx":
        from labelwise.models.onnx_sessions import require_onnx

        require_onnx()
        from labelwise.models.exported_spec import exported_caution

        return exported_caution(place)
    file = place / MODEL_FILE
    return ModelSpec.load(file).caution if file.is_file() else None


def is_exported(place: Path) -> bool:
    """Return whether a place holds a model that another runtime than torch runs."""
    return place.suffix.lower() == ".onnx" or (place / OPENVINO_FILES[0]).is_file()


def model_files(place: Path) -> tuple[Path, ...]:
    """Return the files that make up a model: what another machine needs of it."""
    if not place.is_dir():
        return (place,)
    return tuple(place / name for name in (OPENVINO_FILES if is_exported(place) else MODEL_FILES))


def refuse_program(place: Path) -> None:
    """Raise if a file is one that torch can only load by unpickling it."""
    if place.suffix.lower() == ".pt2":
        raise SettingsError(
            f"{place} is not run: torch loads .pt2 files by unpickling, which runs what a stranger "
            "put there; give the folder of the model, or export it as .onnx"
        )
