"""``labelwise export``: a model as one file that other programs run."""

from pathlib import Path
from typing import Annotated, Literal

import typer

__all__ = ["export"]

Format = Literal["onnx", "web"]


def export(
    run: Annotated[Path, typer.Argument(help="The folder of a run, or of a model.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file or folder to write.")],
    format: Annotated[Format, typer.Option(help="A file, or a folder with a page.")] = "onnx",
    input: Annotated[
        Literal["image", "pixels"],
        typer.Option(help="One picture of any size, or batches of scaled pixels."),
    ] = "image",
    exact_resize: Annotated[
        bool, typer.Option("--exact-resize", help="Scale as Pillow does, to the bit; slower.")
    ] = False,
    data: Annotated[
        str | None, typer.Option(help="Pictures to compare on (default: the run's validation).")
    ] = None,
    pictures: Annotated[int, typer.Option(min=1, help="How many of them.")] = 64,
    int8: Annotated[
        bool,
        typer.Option("--int8", help="Eight-bit weights, recalibrated on the labels of --data."),
    ] = False,
    runtime: Annotated[
        Path | None, typer.Option(help="Of web: the npm package onnxruntime-web, as .tgz.")
    ] = None,
) -> None:
    """Write a model as one file, from pixels to decided labels.

    The file takes a uint8 picture, scales and normalises it, and gives logits, probabilities by
    the model's own link, decided labels and the probability that there is none. It is compared
    with the model on real pictures first; if they differ, nothing is written.
    """
    from labelwise.cli.text import say
    from labelwise.export.session import require_onnx

    require_onnx()

    from labelwise.data import load
    from labelwise.errors import SettingsError
    from labelwise.export.int8 import quantised_content
    from labelwise.export.onnx_file import export_onnx, facts_of, pictures_of
    from labelwise.export.web import export_web
    from labelwise.files import replacing
    from labelwise.runs import RunFolder

    folder = RunFolder(run)
    spec, predictor = folder.spec, folder.model()
    if runtime is not None and format != "web":
        raise SettingsError("--runtime is for --format web; leave it out")
    if format == "web" and (int8 or input != "image"):
        raise SettingsError("--format web takes neither --int8 nor --input")
    if int8:
        if data is None:
            raise SettingsError("--int8 fits the link anew: give labelled photos with --data")
        facts = facts_of(predictor, spec, input=input, exact_resize=exact_resize)
        quantised = quantised_content(predictor, facts, load(data))
        with replacing(out) as temporary:
            temporary.write_bytes(quantised.content)
        say(f"wrote {out}")
        say(str(quantised))
        if spec.promises:
            say("promises were tested on the float32 model and are not in this file")
        return
    images, rows = pictures_of(folder, data, pictures)
    if format == "web":
        parity = export_web(
            predictor, spec, out, images, rows, runtime=runtime, exact_resize=exact_resize
        )
        say(f"wrote {out}; serve it with any web server: python -m http.server -d {out}")
        say(str(parity))
        return
    written = export_onnx(
        predictor, spec, out, images, rows, input=input, exact_resize=exact_resize
    )
    say(f"wrote {written.path} ({written.size / 1e6:.1f} MB)")
    say(str(written.parity))
    if written.ranks_only:
        say(
            f"{predictor.method or 'this model'} ranks labels and has no probabilities: the file "
            "gives logits and ranking; calibrate the run first for probabilities and labels"
        )
