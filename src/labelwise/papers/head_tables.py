"""Query2Label's table and that of single positives, both on MS-COCO, as cells."""

from labelwise.papers import columns
from labelwise.papers.protocols import (
    COCO,
    FROZEN,
    OUR_CHOICE,
    V1,
    Experiment,
    Row,
    Values,
)
from labelwise.papers.published import REGIMES, SINGLE_POSITIVE
from labelwise.papers.sources import LAST_FIFTH

QUERY2LABEL = Experiment(
    "004-table1",
    "coco",
    {
        "resnet101-448": Row({"backbone": "torchvision/resnet101", "image_size": 448, "freeze": 2}),
        "resnet101-576": Row({"backbone": "torchvision/resnet101", "image_size": 576, "freeze": 2}),
        "swin-l-384": Row(
            {
                "backbone": "swin_large_patch4_window12_384.ms_in22k",
                "image_size": 384,
                "weights": "pretrained",
            },
            runs="if named",
            stated={"weights_tag": "ImageNet-22k"},
        ),
        "cvt-w24-384": Row(
            {"backbone": "cvt-w24", "image_size": 384, "weights": "pretrained"},
            runs="if named",
            stated={"weights_tag": "ImageNet-22k"},
            note="trained only from a file of the published weights: --set weights=FILE.",
        ),
    },
    {
        **COCO,
        "squash": True,
        "method": "asl",
        "options": {
            "gamma_neg": 2.0,
            "gamma_pos": 0.0,
            "margin": 0.0,
            "weight_grad": "detached",
        },
        "head": "query2label",
        "head_options": {"feedforward": 8192},
        "augment": "rand",
        "weights": "IMAGENET1K_V1",
        "recipe.optimizer.name": "adamw",
        "recipe.optimizer.lr": 1e-4,
        "recipe.optimizer.backbone_lr": 1.0,
        "recipe.optimizer.weight_decay": 1e-2,
        "recipe.schedule.name": "one-cycle",
        "recipe.epochs": 80,
        "recipe.ema": 0.9997,
        "recipe.keep": "best",
        "recipe.patience": 9,  # more than eight epochs without a better one
        "freeze_batch_norm": True,
        "batch_size": 128,
    },
    {"recipe.epochs": 10, "recipe.ema": 0.99},
    columns.voc_precision,
    data_options={"drop_unlabelled": False},
    deviations=(
        "Trained here; the report evaluates released checkpoints, as --checkpoint does.",
        "The published command names Cutout, but makes one that cuts nothing; here is none.",
    ),
    stated={
        "recipe.prior_bias": False,
        "weights_tag": V1,
        "held_out": 0.0,
        "chosen_on": "test images",
    },
    unstated=OUR_CHOICE | {"weights"},
)


def single_positive_table() -> Experiment:
    """Return Table II: every loss of single positives, linear, fine-tuned, and one after other."""
    rows = {}
    for method in SINGLE_POSITIVE:
        options = {"k": 2.9} if method in ("epr", "role") else {}
        by_regime: dict[str, Values] = {
            "linear": {"freeze": -1, "augment": "none"},  # on features, computed once
            "fine-tuned": {"recipe.optimizer.lr": 1e-5, "recipe.epochs": 10},
            "linear-init": {"recipe.optimizer.lr": 1e-5, "recipe.epochs": 10},
        }
        for regime in REGIMES:
            rows[f"{method} {regime}"] = Row(
                {"method": method, "options": options, **by_regime[regime]},
                runs="if named"
                if method != "role" or regime == "linear-init"
                else "always"
                if regime == "linear"
                else "not with --quick",
                note="starts where the linear row ended, estimated labels included."
                if regime == "linear-init"
                else "",
                after=f"{method} linear" if regime == "linear-init" else None,
            )
    return Experiment(
        "004-table2",
        "coco",
        rows,
        {
            "backbone": "torchvision/resnet50",
            "weights": "IMAGENET1K_V1",
            "image_size": 448,
            "squash": True,
            "augment": "flip",
            "batch_size": 16,
            # AdamW without decay is the published Adam.
            "recipe.optimizer.name": "adamw",
            "recipe.optimizer.weight_decay": 0.0,
            "recipe.optimizer.lr": 1e-3,
            "recipe.schedule.name": "constant",
            "recipe.prior_bias": False,
            "recipe.epochs": 25,
            "recipe.keep": "best",
            "precision": "bf16",
            "calibrate": "none",
        },
        FROZEN,
        columns.ranked,
        data_options={"string_order": True},
        one_positive=True,
        deviations=("Training labels are reduced to one positive per image first.",),
        stated={
            "recipe.prior_bias": False,
            "weights_tag": V1,
            "held_out": 0.2,
            "split": LAST_FIFTH,
            "image_order": "ids as text",
        },
        unstated=OUR_CHOICE | {"weights"},
    )
