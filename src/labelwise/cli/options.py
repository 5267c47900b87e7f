"""Options that several verbs share, each with its type and its line of help."""

from pathlib import Path
from typing import Annotated, Literal

import typer

__all__ = [
    "DryRunOption",
    "FeaturesOption",
    "FitOnOption",
    "JobsOption",
    "LabelsOption",
    "LinkOption",
    "ReportOnOption",
    "ScoreKind",
    "ScoresOption",
    "SettingsOption",
    "TestOption",
    "WeightsOption",
]

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

SettingsOption = Annotated[
    list[str] | None, typer.Option("--set", help="Any setting, as recipe.epochs=5.")
]
FeaturesOption = Annotated[
    str | None, typer.Option(help="Train heads on the frozen features of this backbone.")
]
WeightsOption = Annotated[
    str | None, typer.Option(help="Its weights: a file, a run, or pretrained.")
]
JobsOption = Annotated[
    int | None, typer.Option(min=1, help="Runs side by side; 2 on a GPU (4 with MPS), else 1.")
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Only say what would run and how long.")
]
