"""``labelwise export``: a model as one file or folder that other programs read."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from labelwise.base.files import replacing
from labelwise.base.progress import make_watch
from labelwise.cli.arguments import Data, Format, ImageSize, NeededOut, Weights, option
from labelwise.cli.command import app, refuse, refuse_overwriting, verb
from labelwise.cli.text import caution, next_steps, quoted, say, tell
from labelwise.errors import CheckpointError, SettingsError

if TYPE_CHECKING:
    from labelwise.evaluation import Evaluation
    from labelwise.learn.predictor import Predictor
    from labelwise.models.run_folder import RunFolder

ALL = (
    *("input_kind", "pictures", "int8", "int8_anyway", "open_thresholds"),
    *("with_runtime", "license", "push", "weights", "image_size"),
)
TAKES = {  # options of each format
    "onnx": {*ALL} - {"license", "push", "weights", "image_size"},
    "hf": {"license", "push"},
    "torch-export": {"pictures"},
    "eye": {"weights", "image_size"},
}
LEFT = {  # formats of earlier versions, and what replaces them
    "web": "onnxruntime-web runs the .onnx file in a page; labelwise serve has a page of its own",
    "openvino": "OpenVINO reads the .onnx file: openvino.Core().read_model('model.onnx')",
    "executorch": "lower the .pt2 file of --format torch-export with ExecuTorch's own tools",
}
RUNTIME = "labelwise_runtime.py"
FIGURES = {"bins": 10, "k": 4, "query_length": 0}


@verb(
    app,
    "export runs/photos -o model.onnx --with-runtime",
    "export resnet50 --format eye -o my-eye.onnx",
    more="int8_anyway",
    fetch={"run": "results"},
)
def export(
    run: Annotated[
        Path,
        typer.Argument(help="The folder of a run, or of a model; with --format eye a network."),
    ],
    *,
    out: NeededOut,
    kind: Format = None,
    data: Data = None,
    pictures: Annotated[
        int | None, option("--pictures", min=1, help="Pictures to compare on (64).")
    ] = None,
    input_kind: Annotated[
        Literal["image", "pixels"] | None,
        option("--input", help="One picture of any size (default), or batches of scaled pixels."),
    ] = None,
    int8: Annotated[
        bool, option("--int8", help="Eight-bit weights, recalibrated on --data.")
    ] = False,
    with_runtime: Annotated[
        bool, option("--with-runtime", help="Write labelwise_runtime.py beside the file.")
    ] = False,
    license: Annotated[
        str | None, option("--license", help="Of hf: the license that the card names.")
    ] = None,
    push: Annotated[
        str | None, option("--push", help="Of hf: also put it on the hub, as OWNER/NAME.")
    ] = None,
    int8_anyway: Annotated[
        bool, option("--int8-anyway", help="Write the eight-bit file even if it is worse.")
    ] = False,
    open_thresholds: Annotated[
        bool, option("--open-thresholds", help="Take thresholds as an optional input.")
    ] = False,
    weights: Weights = None,
    image_size: ImageSize = None,
) -> None:
    """Write a model as a file or hub folder, checked first.

    Formats: onnx (default, a file), hf (a folder for a model hub), torch-export (.pt2) and eye: a
    network without a head, such as one of timm, as a file for `labelwise train --backbone`.

    The file takes a uint8 picture, scales and normalises it, and gives logits, probabilities by
    the model's own link, decided labels and the probability that there is none. It is compared
    with the model on real pictures first (--data; the run's validation if left out); if they
    differ, nothing is written. A folder for a model hub holds weights that timm and transformers
    load, where that gives the model's own probabilities, and a card with the measured figures.
    """
    kind, place = kind or "onnx", Path(out)
    if kind in LEFT:
        raise SettingsError(f"--format {kind} is no longer written: {LEFT[kind]}")
    if kind not in TAKES:
        raise SettingsError(f"--format must be one of {', '.join(TAKES)}, got {kind!r}")
    refuse(f"it is not an option of --format {kind}", *sorted(set(ALL) - TAKES[kind]))
    if kind in ("onnx", "eye") and place.suffix.lower() != ".onnx":
        raise SettingsError(f"the file must end in .onnx, by which it is known, got {place.name!r}")
    if int8_anyway and not int8:
        raise SettingsError("--int8-anyway is for --int8; leave it out, or give both")
    if kind == "eye":
        refuse("an eye is compared with its network on random pictures", "data")
        _eye(str(run), place, weights, image_size)
        return
    from labelwise.models.run_folder import RunFolder
    from labelwise.pictures import labelwise_runtime

    folder = RunFolder(run)
    spec = folder.spec
    if with_runtime:
        _check_runtime(folder, place.with_name(RUNTIME), input_kind)
    caution(spec.caution)
    if kind == "hf":
        _hub(folder, place, data, license, push)
        return
    form: dict[str, Any] = {
        "input": input_kind or ("image" if spec.transform.bands is None else "pixels"),
        "open_thresholds": open_thresholds,
    }
    watch = make_watch()
    if kind == "onnx" and folder.is_solved and not int8:
        from labelwise.models.solved import SolvedModel

        with replacing(place) as temporary:
            size = temporary.write_bytes(SolvedModel.load(folder.path).content(**form))
        say(f"wrote {out} ({size / 1e6:.1f} MB): the network, link and rule of the run")
    elif int8:
        from labelwise.exports.int8 import quantised_content
        from labelwise.exports.onnx_file import facts_of
        from labelwise.learn.predictor import Predictor
        from labelwise.tables import load

        refuse("--int8 takes all of --data", "pictures")
        if data is None:
            raise SettingsError("--int8 fits the link again: give labelled photos with --data")
        predictor = Predictor.load(folder.path)
        facts, table = facts_of(predictor, spec, **form), load(data)
        try:
            quantised = quantised_content(predictor, facts, table, anyway=int8_anyway, watch=watch)
        finally:
            watch.finish()
        with replacing(place) as temporary:
            temporary.write_bytes(quantised.content)
        say(f"wrote {out}\n{quantised}")
        if spec.promises:
            say("guarantees were tested on the float32 model and are not in this file")
    else:
        from labelwise.exports.onnx_file import export_onnx, pictures_of
        from labelwise.exports.torch_programs import export_program
        from labelwise.learn.predictor import Predictor

        write: Callable[..., Any] = export_program
        if kind == "onnx":
            write = partial(export_onnx, **form)
        compared = pictures_of(folder, data, pictures)
        try:
            size, parity = write(Predictor.load(folder.path), spec, place, *compared, watch=watch)
        finally:
            watch.finish()
        say(f"wrote {out} ({size / 1e6:.1f} MB)\n{parity}")
        if kind == "onnx" and spec.link is None:
            ranks = f"{spec.method or 'this model'} ranks labels and has no probabilities"
            mend = "calibrate the run first for probabilities and labels"
            say(f"{ranks}: the file gives logits and ranking; {mend}")
    if with_runtime:
        path = place.with_name(RUNTIME)
        with replacing(path) as temporary:
            temporary.write_bytes(Path(labelwise_runtime.__file__).read_bytes())
        say(f"wrote {path}: from labelwise_runtime import Tagger; Tagger({place.name!r})(photo)")
    if kind == "onnx":
        named = quoted(out)
        next_steps(f"predict {named} PHOTOS", f"evaluate {named} --data LABELLED.csv")
    else:
        next_steps(f"export {quoted(run)} -o model.onnx")


def _eye(network: str, out: Path, weights: str | None, image_size: int | None) -> None:
    from labelwise.eyes.eye import PRETRAINED
    from labelwise.learn.graphs import write_eye

    refuse_overwriting(out.with_suffix(".json"))
    eye = write_eye(network, out, weights=weights or PRETRAINED, image_size=image_size)
    outputs = ", ".join(f"{name} ({width:,})" for name, width in eye.outputs.items())
    size = out.stat().st_size / 1e6
    say(f"wrote {out} ({size:.1f} MB) and {out.with_suffix('.json')}: {outputs}")
    next_steps(f"train PHOTOS.csv --backbone {quoted(out)}")


def _check_runtime(folder: "RunFolder", path: Path, input_kind: str | None) -> None:
    if path.is_file() and b"class Tagger" not in path.read_bytes():
        refuse_overwriting(path)
    if input_kind == "pixels" or folder.spec.transform.bands is not None:
        raise SettingsError(
            "--with-runtime reads photos; leave it out for --input pixels and for models of bands"
        )
    if folder.spec.link is None:
        raise SettingsError(
            "--with-runtime answers with probabilities, and this model ranks labels only; "
            "calibrate the run first"
        )


def _hub(
    folder: "RunFolder", out: Path, data: str | None, license: str | None, push: str | None
) -> None:
    from labelwise.exports.hub import export_hub, expressible
    from labelwise.learn.predictor import Predictor
    from labelwise.models.run_folder import check_repository, push_to_hub
    from labelwise.report.model_card import write_model_card

    if push is not None:
        check_repository(push)
    predictor, cost = expressible(Predictor.load(folder.path), folder)
    evaluation, measured_on = _measured(folder, data, predictor if cost else None)
    card = partial(
        write_model_card, evaluation=evaluation, title=out.name, data=measured_on, license=license
    )
    model = export_hub(predictor, out, card)
    say(f"wrote {out}: README.md is the card; read its limits before you push it")
    tell(cost)
    if model.loads_in_timm:
        made = f'timm.create_model("local-dir:{out}", pretrained=True)'
        say(f"{made} gives the same logits, within {model.difference:.1e}")
    else:
        say(f"timm cannot load it: {model.why_not_timm}; labelwise reads all of it")
    if model.loads_in_transformers:
        say(f'transformers.pipeline("image-classification", "{out}") gives its probabilities')
    elif model.loads_in_timm:
        say(f"transformers does not load it: {model.why_not_transformers}")
    if push is not None:
        say(f"pushed to {push_to_hub(out, push)}; labelwise reads it as hf://{push}")
        next_steps(f"predict hf://{push} PHOTOS")
    else:
        named = quoted(folder.path, "--format", "hf", "-o", out)
        next_steps(f"export {named} --push OWNER/NAME --overwrite")


def _measured(
    folder: "RunFolder", data: str | None, fitted: "Predictor | None"
) -> "tuple[Evaluation, str]":
    from labelwise.report.runs import measured_data, measured_run
    from labelwise.tables.load import load_for_labels

    if data is not None:
        table = load_for_labels(data, folder.spec.labels, check_files=True)
        evaluation, _ = measured_data(folder.path, table, None, FIGURES, fitted=fitted)
        return evaluation, Path(data).name
    if "test" not in folder.splits:
        lacks = f"{folder.path} has no test predictions; give labelled photos with --data"
        raise SettingsError(f"a model card shows measured figures, and {lacks}")
    try:
        name = Path(str(folder.settings["data"])).name
    except (CheckpointError, LookupError):  # a model that was copied out of its run
        name = "the test split"
    return measured_run(folder.path, "test", None, FIGURES, fitted=fitted)[0], name
