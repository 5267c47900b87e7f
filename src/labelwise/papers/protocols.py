"""Protocols: what an experiment of a paper consists of, its data, and the settings rows share.

SGD, CIFAR, COCO   as the papers state them, gaps filled from their code
GOOD_CIFAR         good settings for minutes: one-cycle, batch 128, stronger weight decay
SOFTMAX_OR_NONE    our answer to CIFAR60+40: GOOD_CIFAR, longer, with stronger augmentation
PRETRAINED         our better answer: an ImageNet network, pictures scaled up to 192 pixels
FROZEN             a head on the frozen features of a pretrained backbone: seconds
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from labelwise.papers.measures import FinishedRun
from labelwise.papers.published import PUBLISHED, PublishedTable
from labelwise.papers.table_claims import TableClaim

Values = Mapping[str, Any]
Figures = Callable[[FinishedRun], dict[str, float]]


@dataclass(frozen=True)
class Dataset:
    """A data set of the papers: its reader, its folder below the data root, where to get it."""

    format: str
    folder: str
    how_to_get: str
    has_validation: bool = False
    holds_features: bool = False


@dataclass(frozen=True)
class Row:
    """What distinguishes a row: its settings, and where it differs from the rest of its table.

    ``figures`` replaces the table's, ``hold_out`` takes validation images nevertheless, ``runs``
    says when it is run, and ``note`` is said with the deviations if it is. It starts where the row
    ``after`` ended, of the same seed. ``stated`` is what the paper states for this row alone, where
    it is not what we run.
    """

    values: Values
    figures: Figures | None = None
    hold_out: bool = False
    runs: Literal["always", "if named", "not with --quick"] = "always"
    note: str = ""
    after: str | None = None
    stated: Values = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """One printed table on one data set with one backbone: rows, recipe, figures, what differs.

    ``cell`` tells it from the other cells of its table. ``figures`` computes the printed columns
    from a run. ``data_options`` are for the reader of the paper's own data.
    ``validation`` says that images are held out for what is fitted after training;
    ``one_positive`` that training images keep one known label each.
    ``seed_key`` names a further setting that takes the seed (the split of CIFAR60+40).
    ``protocol`` is the paper's where it states one; ``unstated`` names the keys that are our guess,
    ``stated`` what the paper states and we do otherwise (see ``deviations``, which finds the rest).
    ``claims`` are what it says of the table in words alone.
    """

    table: str
    data: str
    rows: Mapping[str, Row]
    protocol: Values
    quick: Values
    figures: Figures
    cell: str = ""
    data_options: Values = field(default_factory=dict)
    validation: bool = True
    one_positive: bool = False
    seed_key: str | None = None
    stated: Values = field(default_factory=dict)
    unstated: frozenset[str] = frozenset()
    deviations: tuple[str, ...] = ()
    claims: tuple[TableClaim, ...] = ()

    @property
    def name(self) -> str:
        """The table's name, with the cell's after a point if it has any."""
        return f"{self.table}.{self.cell}" if self.cell else self.table

    @property
    def published(self) -> PublishedTable:
        """What the paper prints."""
        return PUBLISHED[self.name]


NUS_WIDE = "NUS-WIDE: ImageList/, Groundtruth/AllLabels/, Groundtruth/TrainTestLabels/, Flickr/"
DATASETS: dict[str, Dataset] = {
    "cifar100": Dataset(
        "cifar100",
        "cifar-100-binary",
        "the binary version of CIFAR-100: train.bin, test.bin and fine_label_names.txt",
    ),
    "cifar10": Dataset(
        "cifar10",
        "cifar-10-batches-bin",
        "the binary version of CIFAR-10: data_batch_1.bin to data_batch_5.bin, test_batch.bin and "
        "batches.meta.txt",
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
    "imagenet": Dataset(
        "imagenet",
        "imagenet",
        "ImageNet (ILSVRC2012): train/ and val/, one folder per class",
    ),
    "nus-wide": Dataset("nuswide", "nus-wide", NUS_WIDE),
    "nus-wide-gong": Dataset("nuswide-gong", "nus-wide", NUS_WIDE),
    "tiny-imagenet": Dataset(
        "tiny-imagenet",
        "tiny-imagenet-200",
        "Tiny-ImageNet: wnids.txt, train/ and val/ with val_annotations.txt",
    ),
    "vispr": Dataset(
        "vispr",
        "vispr",
        "VISPR: a JSON file for each photo in train2017/, val2017/ and test2017/, and the photos",
    ),
    "voc": Dataset(
        "voc2012",
        "VOC2012",
        "Pascal VOC 2012: JPEGImages/, Annotations/ and ImageSets/Main/",
    ),
    "vqa": Dataset(
        "vqa",
        "vqa",
        "VQA v2: v2_OpenEnded_mscoco_{train,val}2014_questions.json, "
        "v2_mscoco_{train,val}2014_annotations.json and {train,val}2014_features.npz with "
        "question_id and features",
        holds_features=True,
    ),
    "wider": Dataset(
        "wider",
        "wider-attribute",
        "WIDER-Attribute: Anno/wider_attribute_{trainval,test}.json and Image/",
    ),
    "plantnet": Dataset(
        "plantnet",
        "plantnet_300K",
        "Pl@ntNet-300K: images_train/, images_val/ and images_test/, one folder per species",
        has_validation=True,
    ),
}


# What the papers' own code does: no bias is started at a prior, and weight decay acts on every
# parameter (ours spares biases and norms).
PLAIN: Values = {"recipe.prior_bias": False, "decayed": "all parameters"}
V1 = "torchvision IMAGENET1K_V1"  # what "pretrained" meant when the papers were written
OUR_CHOICE = frozenset({"precision", "calibrate"})  # which no paper states
SGD: Values = {
    "recipe.optimizer.name": "sgd",
    "recipe.optimizer.momentum": 0.9,
    "recipe.optimizer.weight_decay": 1e-4,
    "recipe.keep": "last",
    "recipe.prior_bias": False,
    "precision": "bf16",
}
CIFAR: Values = {
    **SGD,
    "augment": "crop-flip",
    "recipe.optimizer.nesterov": False,
    "recipe.optimizer.lr": 0.1,
    "recipe.schedule.name": "step",
    "recipe.schedule.milestones": [0.5, 0.75],
    "batch_size": 64,
    "calibrate": "none",
}
GOOD_CIFAR: Values = {
    "recipe.epochs": 30,
    "recipe.schedule.name": "one-cycle",
    "recipe.schedule.rise": 0.2,
    "recipe.optimizer.weight_decay": 5e-4,
    "recipe.optimizer.nesterov": True,
    "batch_size": 128,
}
SOFTMAX_OR_NONE: Values = {
    **GOOD_CIFAR,
    "method": "softmax-or-none",
    "augment": "crop-flip+trivial",
    "mirror": True,
    "recipe.epochs": 70,
    "recipe.ema": 0.999,
    "recipe.prior_bias": True,
}
PRETRAINED: Values = {
    **SOFTMAX_OR_NONE,
    "backbone": "tf_efficientnet_lite0",
    "weights": "pretrained",
    "image_size": 192,
    "squash": True,
    "augment": "shift+flip+trivial",
    "recipe.epochs": 8,
    "recipe.ema": 0.998,
    "recipe.optimizer.name": "adamw",
    "recipe.optimizer.lr": 8e-4,
    "recipe.optimizer.weight_decay": 0.05,
}
COCO: Values = {
    **SGD,
    "augment": "resized-crop",
    "recipe.optimizer.lr": 0.01,
    "recipe.optimizer.backbone_lr": 0.1,
    "recipe.epochs": 40,
    "recipe.schedule.name": "cosine",
    "weights": "pretrained",
    "calibrate": "none",
}
FROZEN: Values = {
    "backbone": "identity",
    "image_size": None,
    "squash": False,
    "freeze": 0,
    "augment": "none",
    "mirror": False,
    "recipe.optimizer.name": "adamw",
    "recipe.optimizer.lr": 5e-4,
    "recipe.optimizer.weight_decay": 0.05,
    "recipe.optimizer.backbone_lr": 1.0,
    "recipe.schedule.name": "one-cycle",
    "recipe.epochs": 15,
    "recipe.ema": 0.0,
    "recipe.prior_bias": True,
    "batch_size": 256,
    "weights": None,
    "precision": "32",
}
