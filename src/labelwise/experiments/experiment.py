"""Experiment: one printed table of a paper as runs; and the data sets the papers use."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from labelwise.experiments.outcome import Outcome
from labelwise.experiments.published import PUBLISHED, PublishedTable

__all__ = ["DATASETS", "Dataset", "Experiment", "Row", "Values"]

Values = Mapping[str, Any]
Figures = Callable[[Outcome], dict[str, float]]


@dataclass(frozen=True)
class Dataset:
    """A data set of the papers: its reader, its folder below the data root, where to get it."""

    format: str
    folder: str
    how_to_get: str


@dataclass(frozen=True)
class Row:
    """What distinguishes a row: its settings, and where it differs from the rest of its table.

    ``figures`` replaces the table's, ``hold_out`` takes validation images nevertheless, ``runs``
    says when it is run, and ``note`` is said with the deviations if it is. It starts where the row
    ``after`` ended, of the same seed.
    """

    values: Values
    figures: Figures | None = None
    hold_out: bool = False
    runs: Literal["always", "if named", "not with --quick"] = "always"
    note: str = ""
    after: str | None = None


@dataclass(frozen=True)
class Experiment:
    """One printed table as runs: the data, the rows, the recipe, the figures, what differs.

    ``figures`` computes printed columns from a run; ``rename`` maps its names to the printed ones.
    ``validation`` says that images are held out for what is fitted after training;
    ``one_positive`` that training images keep one known label each.
    ``seed_key`` names a further setting that takes the seed (the split of CIFAR60+40).
    """

    table: str
    data: str
    rows: Mapping[str, Row]
    protocol: Values
    quick: Values
    figures: Figures
    rename: Mapping[str, str] = field(default_factory=dict)
    data_options: Values = field(default_factory=dict)
    validation: bool = True
    one_positive: bool = False
    seed_key: str | None = None
    deviations: tuple[str, ...] = ()

    @property
    def published(self) -> PublishedTable:
        """What the paper prints."""
        return PUBLISHED[self.table]


DATASETS: dict[str, Dataset] = {
    "cifar100": Dataset(
        "cifar100",
        "cifar-100-binary",
        "the binary version of CIFAR-100: train.bin, test.bin and fine_label_names.txt",
    ),
    "cifar60+40": Dataset(
        "cifar60+40",
        "cifar-100-binary",
        "the binary version of CIFAR-100: train.bin, test.bin and fine_label_names.txt",
    ),
    "coco": Dataset(
        "coco2014",
        "coco",
        "MS-COCO 2014: annotations/instances_{train,val}2014.json, train2014/ and val2014/",
    ),
    "nus-wide": Dataset(
        "nuswide",
        "nus-wide",
        "NUS-WIDE: ImageList/, Groundtruth/TrainTestLabels/ and Flickr/",
    ),
    "plantnet": Dataset(
        "plantnet",
        "plantnet_300K",
        "Pl@ntNet-300K: images_train/, images_val/ and images_test/, a folder a species",
    ),
}
