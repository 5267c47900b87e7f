"""``labelwise export``: a model as one file or folder that other programs read."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from labelwise.cli.options import A_RUN

if TYPE_CHECKING:
    from labelwise.evaluation import Evaluation
    from labelwise.exports.parity import Parity
    from labelwise.models.run_folder import RunFolder
    from labelwise.system.progress import Watch


RESIZE = "--exact-resize or --fast-resize"
Format = Literal["onnx", "web", "hf", "torch-export", "executorch", "openvino"]
OPTIONS: dict[str, tuple[str, ...]] = {
    "onnx": (
        "--input",
        RESIZE,
        "--pictures",
        "--int8",
        "--int8-anyway",
        "--open-thresholds",
        "--with-runtime",
    ),
    "web": (RESIZE, "--pictures", "--runtime"),
    "hf": ("--license", "--push"),
    "torch-export": ("--pictures",),
    "executorch": ("--pictures",),
    "openvino": ("--input", "--pictures"),
}
FIGURES = {"bins": 10, "k": 4, "query_length": 0}


def export(
    run: Annotated[Path, typer.Argument(help="The folder of a run, or of a model."), A_RUN],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file or folder to write.")],
    format: Annotated[
        Format,
        typer.Option(
            help="An .onnx file, a folder with a page, a folder for a model hub, a .pt2 program, "
            "a .pte program for ExecuTorch, a folder for OpenVINO."
        ),
    ] = "onnx",
    input: Annotated[
        Literal["image", "pixels"] | None,
        typer.Option(
            help="One picture of any size (default), or batches of scaled pixels (of a model of "
            "bands always: their values, float32)."
        ),
    ] = None,
    exact_resize: Annotated[
        bool | None,
        typer.Option(
            "--exact-resize/--fast-resize",
            help="Scale as Pillow does, to the bit (default); or faster, with some pixels a level "
            "off.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Pictures to compare on (default: the run's validation); of hf: labelled "
            "photos for the figures of its card (default: the run's test predictions)."
        ),
    ] = None,
    pictures: Annotated[
        int | None, typer.Option(min=1, help="How many pictures to compare on (default: 64).")
    ] = None,
    int8: Annotated[
        bool,
        typer.Option("--int8", help="Eight-bit weights, recalibrated on the labels of --data."),
    ] = False,
    int8_anyway: Annotated[
        bool,
        typer.Option(
            "--int8-anyway",
            help="Write the eight-bit file though it is shown to be worse; it "
            "says so in its metadata.",
        ),
    ] = False,
    open_thresholds: Annotated[
        bool,
        typer.Option(
            "--open-thresholds",
            help="Take thresholds as an optional input. onnxruntime then warns when it loads the "
            "file.",
        ),
    ] = False,
    with_runtime: Annotated[
        bool,
        typer.Option(
            "--with-runtime",
            help="Write labelwise_runtime.py beside the file: photos to labels with Pillow, numpy "
            "and onnxruntime alone.",
        ),
    ] = False,
    runtime: Annotated[
        Path | None, typer.Option(help="Of web: the npm package onnxruntime-web, as .tgz.")
    ] = None,
    license: Annotated[
        str | None, typer.Option(help="Of hf: the license its card names, such as apache-2.0.")
    ] = None,
    push: Annotated[
        str | None,
        typer.Option(help="Of hf: also put it on the hub, as OWNER/NAME; a new one is private."),
    ] = None,
) -> None:
    """Write a model as a file, page or hub folder, checked first.

    The file takes a uint8 picture, scales and normalises it, and gives logits, probabilities by
    the model's own link, decided labels and the probability that there is none. It is compared
    with the model on real pictures first; if they differ, nothing is written. A folder for a
    model hub (hf) holds weights that timm and transformers load, where that gives the model's
    own probabilities, and a card with the measured figures.
    """
    from labelwise.cli.text import caution
    from labelwise.errors import SettingsError
    from labelwise.models.run_folder import RunFolder

    given = {
        "--input": input,
        RESIZE: exact_resize,
        "--pictures": pictures,
        "--int8": int8 or None,
        "--int8-anyway": int8_anyway or None,
        "--open-thresholds": open_thresholds or None,
        "--with-runtime": with_runtime or None,
        "--runtime": runtime,
        "--license": license,
        "--push": push,
    }
    for name, value in given.items():
        if value is not None and name not in OPTIONS[format]:
            raise SettingsError(f"{name} does not apply to --format {format}; leave it out")
    if format == "onnx" and out.suffix.lower() != ".onnx":
        raise SettingsError(f"the file must end in .onnx, by which it is known, got {out.name!r}")
    if int8_anyway and not int8:
        raise SettingsError("--int8-anyway is for --int8; leave it out, or give both")
    if with_runtime and input == "pixels":
        raise SettingsError("--with-runtime reads photos; leave --input pixels out")
    exact = exact_resize is not False
    folder = RunFolder(run)
    if with_runtime and folder.spec.link is None:
        raise SettingsError(
            "--with-runtime answers with probabilities, and this model ranks labels only; "
            "calibrate the run first"
        )
    caution(folder.spec.caution)
    form_of_input = input or ("image" if folder.spec.transform.bands is None else "pixels")
    if with_runtime and folder.spec.transform.bands is not None:
        raise SettingsError("--with-runtime reads photos, and this model takes bands; leave it out")
    if format == "hf":
        _hub(folder, out, data, license, push)
        return
    from labelwise.models.onnx_sessions import require_onnx

    require_onnx()
    if format == "openvino":
        from labelwise.models.openvino_model import openvino_runtime

        openvino_runtime()  # what is missing is said before the work
    if format == "executorch":
        from labelwise.exports.executorch_program import require_executorch

        require_executorch()
    if int8:
        if pictures is not None:
            raise SettingsError("--pictures does not apply to --int8, which takes all of --data")
        form = {"input": form_of_input, "exact_resize": exact}
        _int8(folder, out, data, form | {"open_thresholds": open_thresholds}, int8_anyway)
        if with_runtime:
            _write_runtime(out)
        return
    from labelwise.cli.text import say
    from labelwise.exports.onnx_file import export_onnx, pictures_of
    from labelwise.exports.web import export_web

    spec, predictor = folder.spec, folder.model()
    images, rows = pictures_of(folder, data, pictures)
    if format == "web":
        with _progress() as watch:
            parity = export_web(
                predictor, spec, out, images, rows, runtime=runtime, exact_resize=exact, watch=watch
            )
        say(f"wrote {out}; serve it with any web server: python -m http.server -d {out}")
        say(str(parity))
        return
    if format in ("torch-export", "executorch", "openvino"):
        from labelwise.exports.executorch_program import export_executorch
        from labelwise.exports.openvino_folder import export_openvino
        from labelwise.exports.torch_program import export_program

        writers: dict[str, Callable[..., tuple[int, Parity]]] = {
            "torch-export": export_program,
            "executorch": export_executorch,
            "openvino": partial(export_openvino, input=form_of_input),
        }
        with _progress() as watch:
            size, parity = writers[format](predictor, spec, out, images, rows, watch=watch)
        say(f"wrote {out} ({size / 1e6:.1f} MB)")
        say(str(parity))
        return
    with _progress() as watch:
        written = export_onnx(
            predictor,
            spec,
            out,
            images,
            rows,
            input=form_of_input,
            exact_resize=exact,
            open_thresholds=open_thresholds,
            watch=watch,
        )
    say(f"wrote {written.path} ({written.size / 1e6:.1f} MB)")
    say(str(written.parity))
    if with_runtime:
        _write_runtime(out)
    if written.ranks_only:
        say(
            f"{predictor.method or 'this model'} ranks labels and has no probabilities: the file "
            "gives logits and ranking; calibrate the run first for probabilities and labels"
        )


@contextmanager
def _progress() -> "Iterator[Watch]":
    """Show how far a block is; a bar that an error stops is taken away."""
    from labelwise.system.progress import make_watch

    watch = make_watch()
    try:
        yield watch
    finally:
        watch.finish()


def _write_runtime(out: Path) -> None:
    """Write the module that reads photos for an exported file, beside it."""
    from labelwise.cli.text import say
    from labelwise.pictures import labelwise_runtime
    from labelwise.system.files import replacing

    path = out.with_name("labelwise_runtime.py")
    with replacing(path) as temporary:
        temporary.write_bytes(Path(labelwise_runtime.__file__).read_bytes())
    say(f"wrote {path}: from labelwise_runtime import Tagger; Tagger({out.name!r})(photo)")


def _int8(
    folder: "RunFolder", out: Path, data: str | None, form: dict[str, Any], anyway: bool
) -> None:
    from labelwise.cli.text import say
    from labelwise.data import load
    from labelwise.errors import SettingsError
    from labelwise.exports.int8 import quantised_content
    from labelwise.exports.onnx_file import facts_of
    from labelwise.system.files import replacing

    if data is None:
        raise SettingsError("--int8 fits the link anew: give labelled photos with --data")
    spec, predictor = folder.spec, folder.model()
    facts = facts_of(predictor, spec, **form)
    with _progress() as watch:
        quantised = quantised_content(predictor, facts, load(data), anyway=anyway, watch=watch)
    with replacing(out) as temporary:
        temporary.write_bytes(quantised.content)
    say(f"wrote {out}")
    say(str(quantised))
    if spec.promises:
        say("promises were tested on the float32 model and are not in this file")


def _hub(
    folder: "RunFolder", out: Path, data: str | None, license: str | None, push: str | None
) -> None:
    from labelwise.cli.text import say
    from labelwise.exports.hub import export_hub
    from labelwise.models.hub import check_repository, push_to_hub
    from labelwise.report.model_card import write_model_card

    if push is not None:
        check_repository(push)
    predictor = folder.model()
    evaluation, measured_on = _measured(folder, data)
    card = partial(
        write_model_card, evaluation=evaluation, title=out.name, data=measured_on, license=license
    )
    model = export_hub(predictor, out, card)
    say(f"wrote {out}: README.md is the card; read its limits before you push it")
    if model.loads_in_timm:
        say(
            f'timm.create_model("local-dir:{out}", pretrained=True) gives the same logits, '
            f"within {model.difference:.1e}"
        )
    else:
        say(f"timm cannot load it: {model.why_not_timm}; labelwise reads all of it")
    if model.loads_in_transformers:
        say(f'transformers.pipeline("image-classification", "{out}") gives its probabilities')
    elif model.loads_in_timm:
        say(f"transformers refuses to load it: {model.why_not_transformers}")
    if push is not None:
        say(f"pushed to {push_to_hub(out, push)}; labelwise reads it as hf://{push}")


def _measured(folder: "RunFolder", data: str | None) -> tuple["Evaluation", str]:
    """Return the figures of a card, by the model's link and rule of now, and their photos' name."""
    from labelwise.cli.measuring import LabelledData, measured_data, measured_run
    from labelwise.errors import CheckpointError, SettingsError

    if data is not None:
        evaluation, _ = measured_data(folder.path, LabelledData(data), None, FIGURES)
        return evaluation, Path(data).name
    if "test" not in folder.splits:
        raise SettingsError(
            f"a model card shows measured figures, and {folder.path} has no test predictions; "
            "give labelled photos with --data"
        )
    try:
        name = Path(str(folder.settings["data"])).name
    except (CheckpointError, LookupError):  # a model that was copied out of its run
        name = "the test split"
    return measured_run(folder.path, "test", None, FIGURES)[0], name
