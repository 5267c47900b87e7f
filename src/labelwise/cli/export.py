"""``labelwise export``: a model as one file or folder that other programs read."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from labelwise.base.files import replacing
from labelwise.base.progress import Watch, make_watch
from labelwise.cli.command import refuse_overwriting
from labelwise.cli.options import Options
from labelwise.cli.text import caution, next_steps, say, tell
from labelwise.errors import CheckpointError, SettingsError
from labelwise.evaluation import Evaluation
from labelwise.exports.hub import export_hub, expressible
from labelwise.exports.int8 import quantised_content
from labelwise.exports.onnx_file import export_onnx, facts_of, pictures_of
from labelwise.exports.parity import Parity
from labelwise.exports.torch_programs import export_program
from labelwise.models import Predictor
from labelwise.models.run_folder import RunFolder, check_repository, push_to_hub
from labelwise.pictures import labelwise_runtime
from labelwise.report.model_card import write_model_card
from labelwise.report.runs import measured_data, measured_run
from labelwise.tables import load
from labelwise.tables.load import load_for_labels

ALL = (
    *("input", "exact_resize", "pictures", "int8", "int8_anyway", "open_thresholds"),
    *("with_runtime", "license", "push"),
)
TAKES = {  # options of each format
    "onnx": {*ALL} - {"license", "push"},
    "hf": {"license", "push"},
    "torch-export": {"pictures"},
}
LEFT = {  # formats of earlier versions, and what replaces them
    "web": "onnxruntime-web runs the .onnx file in a page; labelwise serve has a page of its own",
    "openvino": "OpenVINO reads the .onnx file: openvino.Core().read_model('model.onnx')",
    "executorch": "lower the .pt2 file of --format torch-export with ExecuTorch's own tools",
}
RUNTIME = "labelwise_runtime.py"
FIGURES = {"bins": 10, "k": 4, "query_length": 0}


def export(run: Path, given: Options) -> None:
    """Write a model as a file or hub folder, checked first."""
    kind, out, folder = given.format or "onnx", given.target, RunFolder(run)
    if kind in LEFT:
        raise SettingsError(f"--format {kind} is no longer written: {LEFT[kind]}")
    if kind not in TAKES:
        raise SettingsError(f"--format must be one of {', '.join(TAKES)}, got {kind!r}")
    given.refuse(f"it is not an option of --format {kind}", *(set(ALL) - TAKES[kind]))
    if given.exact_resize is False and "exact_resize" not in TAKES[kind]:
        raise SettingsError(f"--fast-resize does not apply to --format {kind}; leave it out")
    if kind == "onnx" and out.suffix.lower() != ".onnx":
        raise SettingsError(f"the file must end in .onnx, by which it is known, got {out.name!r}")
    if given.int8_anyway and not given.int8:
        raise SettingsError("--int8-anyway is for --int8; leave it out, or give both")
    bands = folder.spec.transform.bands
    if given.with_runtime:
        _check_runtime(folder, given)
    caution(folder.spec.caution)
    if kind == "hf":
        _hub(folder, given)
        return
    form = {
        "input": given.input or ("image" if bands is None else "pixels"),
        "exact_resize": given.exact_resize is not False,
        "open_thresholds": given.open_thresholds,
    }
    if given.int8:
        given.refuse("--int8 takes all of --data", "pictures")
        _int8(folder, form, given)
    else:
        _program(folder, kind, form, given)
    if given.with_runtime:
        path = out.with_name(RUNTIME)
        with replacing(path) as temporary:
            temporary.write_bytes(Path(labelwise_runtime.__file__).read_bytes())
        say(f"wrote {path}: from labelwise_runtime import Tagger; Tagger({out.name!r})(photo)")
    if kind == "onnx":
        next_steps(f"predict {out} PHOTOS", f"evaluate {out} --data LABELLED.csv")
    else:
        next_steps(f"export {run} -o model.onnx")


def _check_runtime(folder: RunFolder, given: Options) -> None:
    path = given.target.with_name(RUNTIME)
    if path.is_file() and not given.overwrite and b"class Tagger" not in path.read_bytes():
        refuse_overwriting(path)
    if given.input == "pixels" or folder.spec.transform.bands is not None:
        raise SettingsError(
            "--with-runtime reads photos; leave it out for --input pixels and for models of bands"
        )
    if folder.spec.link is None:
        raise SettingsError(
            "--with-runtime answers with probabilities, and this model ranks labels only; "
            "calibrate the run first"
        )


def _program(folder: RunFolder, kind: str, form: dict[str, Any], given: Options) -> None:
    out = given.target
    model = (folder.model(), folder.spec, out, *pictures_of(folder, given.data, given.pictures))
    writers: dict[str, Callable[..., tuple[int, Parity]]] = {
        "onnx": partial(export_onnx, **form),
        "torch-export": export_program,
    }
    with _progress() as watch:
        size, parity = writers[kind](*model, watch=watch)
    say(f"wrote {out} ({size / 1e6:.1f} MB)\n{parity}")
    if kind == "onnx" and folder.spec.link is None:
        ranks = f"{folder.spec.method or 'this model'} ranks labels and has no probabilities"
        mend = "calibrate the run first for probabilities and labels"
        say(f"{ranks}: the file gives logits and ranking; {mend}")


@contextmanager
def _progress() -> Iterator[Watch]:
    watch = make_watch()
    try:
        yield watch
    finally:
        watch.finish()


def _int8(folder: RunFolder, form: dict[str, Any], given: Options) -> None:
    if given.data is None:
        raise SettingsError("--int8 fits the link again: give labelled photos with --data")
    spec, predictor = folder.spec, folder.model()
    facts, table = facts_of(predictor, spec, **form), load(given.data)
    with _progress() as watch:
        how = {"anyway": given.int8_anyway, "watch": watch}
        quantised = quantised_content(predictor, facts, table, **how)
    with replacing(given.target) as temporary:
        temporary.write_bytes(quantised.content)
    say(f"wrote {given.out}\n{quantised}")
    if spec.promises:
        say("guarantees were tested on the float32 model and are not in this file")


def _hub(folder: RunFolder, given: Options) -> None:
    out, push = given.target, given.push
    if push is not None:
        check_repository(push)
    predictor, cost = expressible(folder.model(), folder)
    evaluation, measured_on = _measured(folder, given.data, predictor if cost else None)
    facts = {"title": out.name, "data": measured_on, "license": given.license}
    model = export_hub(predictor, out, partial(write_model_card, evaluation=evaluation, **facts))
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
        next_steps(f"export {folder.path} --format hf -o {out} --push OWNER/NAME --overwrite")


def _measured(
    folder: RunFolder, data: str | None, fitted: Predictor | None
) -> tuple[Evaluation, str]:
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
