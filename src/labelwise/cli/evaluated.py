"""What can be evaluated: each kind of source owns the options that apply to it.

    Shards           what `predict` wrote: a folder or a bucket
    ExportedModel    on labelled photos
    ScoreFile        scores of any program, with labels in it or beside it
    OwnPredictions   a run's saved predictions of a split
    RunOnData        a run's model on labelled photos

Any other option is refused by name.
"""

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from labelwise.cli.measuring import (
    LabelledData,
    measured_data,
    measured_export,
    measured_run,
    measured_split,
)
from labelwise.cli.options import DecodeKind, ScoreKind

if TYPE_CHECKING:
    from labelwise.evaluation import Evaluation


QUERY_LENGTH = 3


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the command line asks of an evaluation; None and False: it does not."""

    rule: str | None
    bins: int
    top_k: int
    split: str | None
    query_length: int | None
    taxonomy: Path | None
    attributes: Path | None
    data: str | None
    set: list[str] | None
    skip_missing: bool
    without_training_photos: bool
    device: str | None
    decode: DecodeKind | None
    adapt_shares: bool
    scores: ScoreKind | None
    link: str | None
    by: list[str] | None
    labels: str | None
    engine: str | None
    workers: int | None

    def figures(self) -> dict[str, Any]:
        """Return what is computed, as arguments of an evaluation of rows."""
        length = QUERY_LENGTH if self.query_length is None else self.query_length
        asked: dict[str, Any] = {
            "bins": self.bins,
            "k": self.top_k,
            "query_length": length,
            "curves": True,
        }
        if self.taxonomy is not None:
            from labelwise.taxonomy import Taxonomy

            asked["taxonomy"] = Taxonomy.read(self.taxonomy)
        if self.attributes is not None:
            from labelwise.attributes import AttributeGroups

            asked["attributes"] = AttributeGroups.read(self.attributes)
        return asked

    def labelled(self, source: str) -> LabelledData:
        """Return labelled photos, read as the options say."""
        return LabelledData(source, self.set, self.skip_missing, self.split)


EVERY = ("rule", "bins", "top_k")  # options of all sources
ROWS = ("split", "query_length", "taxonomy", "attributes")  # of those whose rows are all at hand


@dataclass(frozen=True)
class Source(ABC):
    """Something to evaluate: what it is in words, and the options that apply to it."""

    place: str
    words: ClassVar[str]
    options: ClassVar[tuple[str, ...]]

    def refuse_others(self, asked: Asked) -> None:
        """Raise if an option was given that does not apply."""
        from labelwise.errors import SettingsError

        for option in (field.name for field in fields(asked)):
            if getattr(asked, option) in (None, False, []) or option in (*EVERY, *self.options):
                continue
            flag = f"--{option.replace('_', '-')}"
            whose = f" ({flag} is for shards)" if option in ("engine", "workers") else ""
            raise SettingsError(
                f"{flag} does not apply: {self.place} {self.words}{whose}; leave it out"
            )

    @abstractmethod
    def measured(self, asked: Asked) -> tuple["Evaluation", dict[str, Any]]:
        """Return the evaluation, and what else its report shows."""


class Shards(Source):
    """Shards that `predict` wrote; their sums merge, so memory does not grow with the rows."""

    words = "holds shards"
    options = ("labels", "engine", "workers")

    def measured(self, asked: Asked) -> tuple["Evaluation", dict[str, Any]]:
        from labelwise.cli.engines import make_engine
        from labelwise.scores import fixed_rule
        from labelwise.shards import evaluate_shards
        from labelwise.system.progress import make_watch

        evaluation = evaluate_shards(
            self.place,
            asked.labels,
            make_engine(asked.engine or "local", asked.workers or 1),
            rule=None if asked.rule is None else fixed_rule(asked.rule),
            sets=asked.rule != "none",
            bins=asked.bins,
            k=asked.top_k,
            watch=make_watch(sys.stderr),
        )
        return evaluation, {}


class ExportedModel(Source):
    """An exported file, measured on labelled photos."""

    words = "is an exported model"
    options = ("data", "set", "skip_missing", *ROWS)

    def measured(self, asked: Asked) -> tuple["Evaluation", dict[str, Any]]:
        from labelwise.errors import SettingsError

        if asked.data is None:
            raise SettingsError(
                f"{self.place} is measured on labelled photos: give them with --data"
            )
        data = asked.labelled(asked.data)
        return measured_export(Path(self.place), data, asked.rule, asked.figures()), {}


class ScoreFile(Source):
    """A file of scores."""

    words = "is a file of scores"
    options = ("scores", "link", "labels", "by", *ROWS)

    def measured(self, asked: Asked) -> tuple["Evaluation", dict[str, Any]]:
        from labelwise.scores import fixed_rule, judge_as_given, read_scores

        columns = tuple(dict.fromkeys(asked.by or ()))
        table = read_scores(
            Path(self.place), asked.scores, link=asked.link, labels=asked.labels, keep=columns
        )
        rule = fixed_rule("0.5" if asked.rule is None else asked.rule)
        figures = asked.figures()
        return judge_as_given(table, rule, split=asked.split, by=columns, **figures), {}


class OwnPredictions(Source):
    """A run folder, by the predictions it saved."""

    words = "is a run folder, evaluated on its own predictions without --data"
    options = ("without_training_photos", *ROWS)

    def measured(self, asked: Asked) -> tuple["Evaluation", dict[str, Any]]:
        folder = Path(self.place)
        split = asked.split or measured_split(folder, ", or give labelled photos with --data")
        without = asked.without_training_photos
        return measured_run(folder, split, asked.rule, asked.figures(), without_seen=without)


@dataclass(frozen=True)
class RunOnData(Source):
    """A run folder, by its model's answers for labelled photos."""

    data: str
    words = "is a run folder"
    options = (
        *("data", "set", "skip_missing", "without_training_photos"),
        *("device", "decode", "adapt_shares", *ROWS),
    )

    def measured(self, asked: Asked) -> tuple["Evaluation", dict[str, Any]]:
        return measured_data(
            Path(self.place),
            asked.labelled(self.data),
            asked.rule,
            asked.figures(),
            device=asked.device,
            decode=asked.decode,
            adapt_shares=asked.adapt_shares,
            without_seen=asked.without_training_photos,
        )


def source_at(place: str, data: str | None) -> Source:
    """Return what a place holds, evaluated on ``data`` if there is any; a place must be there."""
    from labelwise.errors import DataError
    from labelwise.models.loading import is_exported, refuse_program
    from labelwise.models.run_folder import fetched_run

    if _is_run_in_a_bucket(place):
        place = str(fetched_run(place))
    path = Path(place)
    refuse_program(path)
    if _holds_shards(place):
        return Shards(place)
    if is_exported(path):
        return ExportedModel(place)
    if not path.exists():
        raise DataError(
            f"{place} does not exist; give the folder of a run, an exported model, or a file of "
            "scores"
        )
    if not path.is_dir():
        return ScoreFile(place)
    return OwnPredictions(place) if data is None else RunOnData(place, data)


def _is_run_in_a_bucket(place: str) -> bool:
    """Return whether a URI names a run or a model, not shards."""
    from labelwise.system.storage import is_uri, storage_at

    return is_uri(place) and storage_at(place).size("model.json") is not None


def _holds_shards(place: str) -> bool:
    """Return whether a place is a bucket, or a folder that `predict` wrote shards to."""
    folder = Path(place)
    if "://" in place or not folder.is_dir():
        return "://" in place
    return (folder / "_manifest.jsonl").exists() or any(folder.glob("part-*.parquet"))
