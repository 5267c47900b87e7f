"""``labelwise train``: from a table to a trained, calibrated, reported model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from labelwise.cli.text import before_writing

if TYPE_CHECKING:
    from labelwise.models.run_folder import RunFolder
    from labelwise.training.run import Run
    from labelwise.training.settings import Settings


# Groups of its options in the help.
PICTURES = "Pictures and labels"
NETWORK = "The network"
LEARNING = "How it learns"
ANSWERS = "What its answers are"
MACHINE = "Where it runs"


def train(
    data: Annotated[str | None, typer.Argument(help="scenes, a file, or a folder.")] = None,
    settings: Annotated[Path | None, typer.Option(help="A YAML file; flags override it.")] = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            help="The run folder; an s3:// or gs:// place is sent what changes at each checkpoint.",
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="auto chooses by the labels; or one of `labelwise methods`.", show_default="auto"
        ),
    ] = None,
    on_error: Annotated[
        str | None,
        typer.Option(
            help="Pictures that cannot be read: stop or skip.",
            show_default="stop",
            rich_help_panel=PICTURES,
        ),
    ] = None,
    skip_missing: Annotated[
        bool | None,
        typer.Option(
            "--skip-missing", help="Leave missing pictures out.", rich_help_panel=PICTURES
        ),
    ] = None,
    taxonomy: Annotated[
        str | None,
        typer.Option(
            help="Which label is a kind of which (child,parent or a|b|c): labels, probabilities "
            "and sets obey it, and the model keeps it.",
            rich_help_panel=PICTURES,
        ),
    ] = None,
    attributes: Annotated[
        str | None,
        typer.Option(
            help="Labels that exclude each other: a CSV of group, kind (exactly-one, at-most-one, "
            "any) and labels (a|b|c). Labels, probabilities and sets obey it, and queries know it.",
            rich_help_panel=PICTURES,
        ),
    ] = None,
    effort: Annotated[
        str | None,
        typer.Option(
            help="With a pretrained network: quick solves a head on its features, good also trains "
            "it, best tries several networks and sizes.",
            show_default="quick on photos",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="With --effort good or best: give up what is not done after so long."),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="The network: auto chooses by the pictures; or small-cnn, any timm name, or "
            "torchvision/NAME.",
            show_default="auto",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            help="Solve a head on the features of this backbone, computed once and not trained; "
            "`identity` if the data holds features.",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="A file, an earlier run, a folder of timm's, or `pretrained`.",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            help="An earlier run with these labels, to begin where it ended.",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            help="linear, query2label, ml-decoder, boostlu or two-head.",
            show_default="the method's",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    image_size: Annotated[
        int | None,
        typer.Option(
            help="Side of the input, in pixels.",
            show_default="the backbone's",
            rich_help_panel=PICTURES,
        ),
    ] = None,
    bands: Annotated[
        str | None,
        typer.Option(
            help="For pictures that are not 8-bit RGB (TIFF, DICOM, .npy): the names of their "
            "bands, as B02,B03,B04, or all.",
            show_default="8-bit RGB",
            rich_help_panel=PICTURES,
        ),
    ] = None,
    composite: Annotated[
        str | None,
        typer.Option(
            help="With --bands: the three (red,green,blue) or the one that people are shown.",
            show_default="red,green,blue if there are such, else the first",
            rich_help_panel=PICTURES,
        ),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(
            help="With --bands, of DICOM files: none takes the modality's values, file the first "
            "window of each, CENTER,WIDTH this one.",
            show_default="none",
            rich_help_panel=PICTURES,
        ),
    ] = None,
    augment: Annotated[
        str | None,
        typer.Option(
            help="How pictures are varied: shift, crop-flip+trivial, ...",
            show_default="none",
            rich_help_panel=PICTURES,
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Images per step, over all devices.",
            show_default="64; 256 with --features",
            rich_help_panel=LEARNING,
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            help="Passes over the training split.",
            show_default="8; 30 with --features",
            rich_help_panel=LEARNING,
        ),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            help="Highest learning rate.",
            show_default="0.004; 0.001 with --features",
            rich_help_panel=LEARNING,
        ),
    ] = None,
    weight_decay: Annotated[
        float | None,
        typer.Option(
            help="On weights, not biases.",
            show_default="0.05; 0.1 with --features",
            rich_help_panel=LEARNING,
        ),
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(help="adamw or sgd.", show_default="adamw", rich_help_panel=LEARNING),
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            help="Of the learning rate: one-cycle, cosine, step or constant.",
            show_default="one-cycle",
            rich_help_panel=LEARNING,
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="What the kept epoch is best in: map, map_sample, log_loss, brier, ece, ace, mce "
            "or average-K.",
            show_default="map",
            rich_help_panel=LEARNING,
        ),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            help="Stop after so many epochs without a better metric.",
            show_default="never",
            rich_help_panel=LEARNING,
        ),
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(
            help="Calibrator that is fitted on validation: auto, none, temperature, platt, beta, "
            "isotonic, ...",
            show_default="auto",
            rich_help_panel=ANSWERS,
        ),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            help="How probabilities become labels: auto chooses by F over images; expected-f, "
            "best-f, 0.5, top-4, average-3, precision-0.9, recall-0.9, ...",
            show_default="auto",
            rich_help_panel=ANSWERS,
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(help="32 or bf16.", show_default="32", rich_help_panel=LEARNING),
    ] = None,
    accelerator: Annotated[
        str | None,
        typer.Option(help="auto, cpu or cuda.", show_default="auto", rich_help_panel=MACHINE),
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(
            help="GPUs, or processes on a CPU.", show_default="1", rich_help_panel=MACHINE
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Threads that decode images; with --engine ray, processes that train.",
            rich_help_panel=MACHINE,
        ),
    ] = None,
    engine: Annotated[
        Literal["local", "ray"],
        typer.Option(
            help="Where the run is trained: here, or by --workers of a Ray cluster.",
            rich_help_panel=MACHINE,
        ),
    ] = "local",
    log: Annotated[
        list[str] | None,
        typer.Option(
            help="Also log to tensorboard, wandb or mlflow; may be repeated.",
            rich_help_panel=MACHINE,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Same seed, same numbers.", show_default="0"),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting, as recipe.ema=0.999."),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Also train so many runs without a part of the training photos each, which judge "
            "the labels they did not see (`data suspects`).",
        ),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over in the run folder.")] = False,
) -> None:
    """Train a model, calibrate it, measure it, write a report.

    The same command on the same folder goes on where a stopped run was.
    """
    given = dict(locals())
    with before_writing():  # imports take seconds
        from labelwise.api import default_folder
        from labelwise.errors import SettingsError
        from labelwise.models.run_folder import RunFolder
        from labelwise.system.yaml_values import parse_assignments
        from labelwise.training.settings import SHORT_NAMES, read_settings

    given["log"] = log or None
    flags = {key: given[name] for name, key in SHORT_NAMES.items() if given[name] is not None}
    on_ray = None
    if engine == "ray":
        on_ray = flags.pop(SHORT_NAMES["workers"], 1)
        if folds is not None:
            raise SettingsError("--folds trains in this process; leave out --engine ray")
    resolved = read_settings(settings, flags | parse_assignments(set_ or ()))
    if resolved.effort in ("good", "best") and folds is not None:
        raise SettingsError("--folds trains one model, and this effort several; leave one out")
    with RunFolder.working_in(out or default_folder(resolved)) as run:
        train_and_report(resolved, run, fresh=fresh, folds=folds, on_ray=on_ray)


def train_and_report(
    settings: "Settings",
    folder: "RunFolder",
    *,
    fresh: bool,
    folds: int | None = None,
    on_ray: int | None = None,
) -> "Run | None":
    """Train, report, and say what came out and what to type next.

    ``on_ray`` workers of a Ray cluster train; then this process only reports.
    """
    from shlex import quote

    from labelwise.cli.text import resumable, say

    with before_writing():
        from labelwise.api import log_trained_model, report_run
        from labelwise.cli.outcome import command, summarise
        from labelwise.system.progress import make_watch
        from labelwise.system.storage import address_of
        from labelwise.training.run import train as run

    place = folder.address
    with resumable(place):
        watch = make_watch()
        if on_ray is None:
            done = run(settings, folder, watch=watch, fresh=fresh)
        else:
            from labelwise.shards.ray_training import RayTraining

            done = RayTraining(on_ray)(settings, folder, watch, fresh=fresh)
    if done is None:
        return None
    report_run(done, command=command())
    log_trained_model(folder, settings)
    folder.publish()
    if folds is not None:
        from labelwise.training.folds import train_folds

        with resumable(place):
            train_folds(done, folds, watch=make_watch(), fresh=fresh, publish=folder.publish)
    if done.was_finished:
        say(f"{place} was finished before; --fresh starts over")
    summarise(done.evaluation)
    say()
    say("Next:")
    say(f"  open {address_of(place, folder.report.name)}")
    named = place if folder.mirror is None else quote(folder.mirror.storage.place)
    say(f"  labelwise predict {named} PICTURES...")
    split = done.evaluation.data.split
    say(f"  labelwise evaluate {named}" + ("" if split == "test" else f" --split {split}"))
    if folds is not None:
        say(f"  labelwise data suspects {named} -o suspects.csv")
    return done
