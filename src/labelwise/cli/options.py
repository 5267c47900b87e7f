"""Options that several verbs share, each with its type and its line of help."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from labelwise.models.run_folder import RunPart


ScoreKind = Literal["logits", "probs"]
ScoresOption = Annotated[ScoreKind | None, typer.Option(help="What a file's scores are.")]
LinkOption = Annotated[
    str | None, typer.Option(help="Of logits: sigmoid (default), softmax, or none.")
]
LabelsOption = Annotated[
    str | None, typer.Option(help="The labels: a second file, or any data labelwise reads.")
]
TestOption = Annotated[Path | None, typer.Option(help="Other scores, to report on.")]
FitOnOption = Annotated[str | None, typer.Option(help="Split to fit on.")]
ReportOnOption = Annotated[str | None, typer.Option(help="Split to report on.")]
ROWS_GIVEN = "the rows to fit on and those to report on are given"
FoldsOption = Annotated[
    int | None, typer.Option(min=2, help="Of one undivided file.", show_default="5")
]

TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        envvar="LABELWISE_TOKEN_FILE",
        help="A file with the token that requests must bring. LABELWISE_TOKEN works too; a "
        "token on the command line could be seen by others.",
    ),
]
AllowHostOption = Annotated[
    list[str] | None,
    typer.Option(
        envvar="LABELWISE_ALLOW_HOST",
        help="One more name the server answers to, such as photos.example; may be repeated.",
    ),
]

DecodeKind = Literal["auto", "cpu", "cuda"]
DECODE_HELP = (
    "Who decodes JPEGs: cpu (default), cuda (nvJPEG on the GPU, whose pixels are a few levels "
    "off), or auto (cuda wherever the model is on a GPU)."
)
DecodeOption = Annotated[DecodeKind | None, typer.Option(help=DECODE_HELP)]

SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting, as recipe.epochs=5."),
]
FeaturesOption = Annotated[
    str | None, typer.Option(help="Train heads on the frozen features of this backbone.")
]
WeightsOption = Annotated[
    str | None, typer.Option(help="The weights of --features: a file, a run, or pretrained.")
]
JobsOption = Annotated[
    int | None, typer.Option(min=1, help="Runs side by side; 2 on a GPU (4 with MPS), else 1.")
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Only say what would run and how long.")
]


AttributesOption = Annotated[
    Path | None,
    typer.Option(
        help="Labels that exclude each other: a CSV of group, kind (exactly-one, at-most-one, any) "
        "and labels (a|b|c)."
    ),
]


def check_weights(features: str | None, weights: str | None) -> None:
    """Refuse the weights of --features where no features are asked for."""
    from labelwise.errors import SettingsError

    if weights is not None and features is None:
        raise SettingsError(
            "--weights are those of --features, which is not given; for a backbone that is "
            f"trained say --set weights={weights}"
        )


def number_of_folds(folds: int | None, reason: str = "") -> int:
    """Return how many folds rows are dealt into; refuse a number where ``reason`` says why not."""
    from labelwise.errors import SettingsError

    if folds is not None and reason:
        raise SettingsError(f"--folds does not apply: {reason}; leave it out")
    return 5 if folds is None else folds


def chosen_decoder(decode: DecodeKind | None, device: str) -> Literal["cpu", "cuda"]:
    """Return who decodes JPEGs for a model on a device; refuse what cannot be had."""
    from labelwise.errors import SettingsError

    on_gpu = device.partition(":")[0] == "cuda"
    if decode == "cuda" and not on_gpu:
        raise SettingsError(f"--decode cuda needs a model on a GPU, --device cuda; got {device}")
    return "cuda" if on_gpu and decode in ("auto", "cuda") else "cpu"


@dataclass(frozen=True)
class FromBucket:
    """Marks an argument that may be the URI of a run: the verb gets the folder of a copy."""

    part: "RunPart"


A_MODEL, A_RUN = FromBucket("model"), FromBucket("results")


def with_local_paths(verb: Callable[..., None]) -> Callable[..., None]:
    """Have a verb get local paths: runs of a bucket are fetched, other URIs refused at once.

    ``Path("s3://bucket/run")`` is the folder ``s3:`` on this disk, which nobody means. What may
    be a URI otherwise is typed ``str``.
    """
    parameters = signature(verb).parameters

    @wraps(verb)
    def checked(**given: Any) -> None:
        runs = {}
        for name, value in given.items():
            for path in value if isinstance(value, list) else [value]:
                uri = _meant(path) if isinstance(path, Path) else None
                if uri is None:
                    continue
                marks = getattr(parameters[name].annotation, "__metadata__", ())
                mark = next((mark for mark in marks if isinstance(mark, FromBucket)), None)
                if mark is not None:
                    runs[name] = (uri, mark.part)
                else:
                    from labelwise.errors import SettingsError

                    raise SettingsError(
                        f"{name} must be on a local or mounted disk, got {uri}; copy it, or mount "
                        "the store"
                    )
        if runs:
            from labelwise.models.run_folder import fetched_run

            given |= {name: fetched_run(*run) for name, run in runs.items()}
        verb(**given)

    return checked


def _meant(path: Path) -> str | None:
    """Return the URI that a path was made of, None if it was none."""
    first, *rest = path.parts or ("",)
    return "//".join((first, "/".join(rest))) if rest and first[-1] == ":" else None


def read_token(file: Path | None) -> str | None:
    """Return the token of a server: that of a file or of LABELWISE_TOKEN, not of both."""
    return read_secret(file, "LABELWISE_TOKEN", "the token", "--token-file")


def read_secret(file: Path | None, variable: str, what: str, option: str) -> str | None:
    """Return what a file or a variable of the environment holds; None where neither is given."""
    import os

    from labelwise.errors import SettingsError

    given = os.environ.get(variable)
    if file is None:
        return given or None
    if given:
        raise SettingsError(f"give {what} once: {option} or {variable}, not both")
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SettingsError(
            f"{what.removeprefix('the ')} file {file} cannot be read: {reason}"
        ) from None
