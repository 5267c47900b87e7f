"""EXPERIMENTS: every table of the five papers as runnable cells: table x data set x backbone x row.

A cell's name is its table's; where a table has several cells, their data set and backbone follow
after points, and the table's name alone means the first of them. ``protocol`` is the paper's
recipe as far as it is stated; ``quick`` overrides it for a budget of minutes. ``rows`` says what
distinguishes the rows. Keys are those of the settings file.
"""

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from labelwise.objectives import OFFICIAL_ASL, OFFICIAL_FOCAL, Focusing, PhiLink
from labelwise.papers import columns
from labelwise.papers.average_k_tables import average_k_tables
from labelwise.papers.head_tables import QUERY2LABEL, single_positive_table
from labelwise.papers.protocols import (
    CIFAR,
    COCO,
    FROZEN,
    GOOD_CIFAR,
    OUR_CHOICE,
    PLAIN,
    PRETRAINED,
    SGD,
    SOFTMAX_OR_NONE,
    V1,
    Experiment,
    Row,
    Values,
)
from labelwise.papers.said_in_text import alpha_experiment, margin_experiment

UNSTATED_BY_SPA = OUR_CHOICE | {
    *("augment", "recipe.keep", "recipe.epochs", "recipe.schedule.name"),
    *("recipe.optimizer.lr", "recipe.optimizer.backbone_lr", "recipe.optimizer.nesterov"),
}
TWO_WAY: Values = {  # the authors' repository
    "held_out": 0.0,
    "recipe.optimizer.nesterov": True,
    "augment": "resized-crop, flip, colour jitter 0.4, lighting 0.1",
}


SPA_OPTIONS: Values = {
    **{f"options.{name}_pos": value for name, value in (("zeta", 1.0), ("k", 1.0), ("b", 0.0))},
    **{f"options.{name}_neg": value for name, value in (("zeta", 5.0), ("k", 3.0), ("b", 1.0))},
}


def _methods(*names: str) -> dict[str, Row]:
    return {
        name: Row({"method": name}, stated=SPA_OPTIONS if name.startswith("spa") else {})
        for name in names
    }


def _read_through_phi(loss: str, focusing: Focusing) -> dict[str, Row]:
    """Return the rows of a loss as public code trains it, by sigmoids and by both maps, and ours.

    The printed map is that of full gradients; training with detached weights has another. One run
    serves all three readings.
    """
    official = f"{loss}-official"
    printed, right = (
        columns.ranked_and_calibrated_through(PhiLink(**asdict(read)))
        for read in (replace(focusing, weight_grad="full"), focusing)
    )
    trained: Values = {"method": official}
    ours = "ours; the loss as its formula is printed, with the gradient of its weights."
    return {
        official: Row(trained),
        f"{official}+phi printed": Row(trained, printed),
        f"{official}+phi right": Row(
            trained, right, note="ours; the same run read through the map of its own gradient."
        ),
        loss: Row({"method": loss}, runs="if named", note=ours),
        f"{loss}+phi": Row({"method": f"{loss}+phi"}, runs="if named", note=ours),
    }


QUASIBINARY = Row(
    {"method": "quasibinary", "options": {"test_normalizer": "moving"}},
    stated={"options.momentum": 0.9},
)
BINARY = Row({"method": "bce", "options": {"per": "image"}})
ONE_VERSUS_REST = {
    "binary": BINARY,
    "binary per entry": Row(
        {"method": "bce", "options": {"per": "entry"}},
        runs="if named",
        note="ours; the loss divided by the number of classes too, so every step is as much "
        "shorter, which may be what is printed.",
    ),
    "quasibinary": QUASIBINARY,
    "softmax": Row({"method": "softmax"}),
}
UNSTATED_BY_QUASIBINARY = OUR_CHOICE | {
    *("augment", "recipe.keep", "recipe.optimizer.nesterov", "recipe.optimizer.momentum"),
}
PRINTED_MOMENTUM = "The printed 'momentum 1e-4' is read as weight decay, with momentum 0.9."


def _one_versus_rest() -> Iterator[Experiment]:
    """Yield Table I, and the supplement's with three backbones."""
    networks = {"resnet18": "resnet18-32", "vgg16": "vgg16-32", "densenet40": "densenet40-12"}
    small = ("cifar100", "cifar10", "tiny-imagenet")
    cells = [("000-table1", data, "", networks["resnet18"]) for data in small]
    cells.append(("000-table1", "imagenet", "", "torchvision/resnet18"))
    cells += [
        ("000-supplement-table1", data, short, networks[short])
        for data in small
        for short in ("vgg16", "densenet40", "resnet18")
    ]
    for table, data, short, backbone in cells:
        protocol: dict[str, Any] = {**CIFAR, "backbone": backbone, "recipe.epochs": 200}
        quick: Values = GOOD_CIFAR
        remarks = [PRINTED_MOMENTUM]
        if data == "imagenet":
            protocol |= {"image_size": 224, "augment": "resized-crop"}
            quick = FROZEN
        if short == "densenet40":
            remarks.append("The growth rate of DenseNet-40 is not in the text; 12 is used.")
        if short == "vgg16":
            remarks.append("VGG16 with batch norm and without dense layers, as is usual on CIFAR.")
        yield Experiment(
            table,
            data,
            ONE_VERSUS_REST,
            protocol,
            quick,
            columns.top_error,
            cell=f"{data}.{short}" if short else data,
            validation=False,
            stated={**PLAIN, "held_out": 0.0, "image_size": 224 if data == "imagenet" else 32},
            unstated=UNSTATED_BY_QUASIBINARY,
            deviations=tuple(remarks),
        )


_EXPECTING = (
    "the same runs, told that so many images in use have no label; "
    "the share brings MMC near 6.5 % on validation images."
)
_ZERO_LABEL = Experiment(
    "000-table2",
    "cifar60+40",
    {
        "binary": BINARY,
        "softmax+uniform": Row({"method": "uniform"}),
        "softmax+maxconf": Row({"method": "maxconf"}),
        "quasibinary": QUASIBINARY,
        "softmax-or-none": Row(
            SOFTMAX_OR_NONE,
            hold_out=True,
            note="ours; TrivialAugment, averaged weights, mirrored answers, 70 epochs, "
            "a tenth of the training images held out.",
        ),
        "softmax-or-none at 77 % empty": Row(
            SOFTMAX_OR_NONE,
            columns.in_and_out_expecting(0.77),
            hold_out=True,
            note=_EXPECTING,
        ),
        "softmax": Row(
            {"method": "softmax"},
            runs="if named",
            note="ours; it never sees the images without a label.",
        ),
        "pretrained": Row(
            PRETRAINED,
            hold_out=True,
            runs="if named",
            note="ours; softmax-or-none on an EfficientNet-Lite0 that has seen ImageNet, "
            "192 pixels, 8 epochs, a tenth of the training images held out.",
        ),
        "pretrained at 70 % empty": Row(
            PRETRAINED,
            columns.in_and_out_expecting(0.70),
            hold_out=True,
            runs="if named",
            note=_EXPECTING,
        ),
    },
    {**CIFAR, "backbone": "resnet18-32", "recipe.epochs": 200},
    GOOD_CIFAR,
    columns.in_and_out,
    validation=False,
    seed_key="data_options.seed",
    deviations=("The seed also chooses which 40 classes lose their label.", PRINTED_MOMENTUM),
    stated={**PLAIN, "held_out": 0.0, "image_size": 32},
    unstated=UNSTATED_BY_QUASIBINARY,
)


def _top_four() -> Iterator[Experiment]:
    """Yield Table III: the four most confident labels, two data sets."""
    for data in ("coco", "nus-wide-gong"):
        yield Experiment(
            "000-table3",
            data,
            {
                "binary": BINARY,
                "binary, softmax of its logits": Row(
                    BINARY.values,
                    columns.top_four_as_softmax,
                    note="ours; the same run read through a softmax, which may be what is printed.",
                ),
                "binary, p / sum p": Row(
                    BINARY.values,
                    columns.top_four_normalised,
                    note="ours; the same run, its probabilities divided by their sum per image.",
                ),
                "softmax": Row({"method": "softmax"}),
                "softmax+temperature": Row(
                    {"method": "softmax"}, columns.top_four_after_temperature
                ),
                "quasibinary": QUASIBINARY,
            },
            {
                **COCO,
                "backbone": "vgg16-fc7",
                "recipe.epochs": 20,
                "recipe.optimizer.lr": 1e-3,
                "recipe.optimizer.backbone_lr": 1.0,
                "recipe.optimizer.nesterov": False,
                "recipe.schedule.name": "step",
                "batch_size": 64,
            },
            FROZEN,
            columns.top_four,
            cell=data.removesuffix("-gong"),
            stated={**PLAIN, "held_out": 0.0, "weights_tag": V1},
            unstated=OUR_CHOICE
            | {"augment", "recipe.keep", "recipe.optimizer.lr", "recipe.optimizer.backbone_lr"}
            | {"recipe.schedule.name", "weights"}
            | {"recipe.optimizer.nesterov", "recipe.optimizer.momentum"},
        )


def _spa() -> Iterator[Experiment]:
    """Yield Table 3 and Figure 3 for four data sets and two backbones, then Table 4."""
    networks = {"ecaresnet50t": "ecaresnet50t", "vit-b-32": "vit_base_patch32_224"}
    table3 = {
        **_methods("bce", "two-way"),
        **_read_through_phi("focal", OFFICIAL_FOCAL),
        **_read_through_phi("asl", OFFICIAL_ASL),
        **_methods("spa", "spa+lpr"),
    }
    table4 = _methods(
        *("bce", "bce+lpr", "focal-official", "focal-official+lpr"),
        *("asl-official", "asl-official+lpr"),
    )
    sets = ("coco", "voc", "wider", "vispr")
    cells = [
        ("001-table3", data, short, table3, columns.ranked_and_calibrated)
        for data in sets
        for short in networks
    ]
    cells.append(("001-table4", "coco", "", table4, columns.ranked_and_calibrated))
    cells += [
        (
            "001-fig3",
            data,
            short,
            _methods("bce", "asl-official", "spa"),
            columns.retrieval_by_length,
        )
        for data in sets
        for short in networks
    ]
    remarks = {
        "001-table3": "10 bins over all entries; learning rate and epochs of the two-way code; "
        "the exponents of focal are not in the text.",
        "001-table4": "LPR weight 1; the paper's is not in the text.",
        "001-fig3": "Sampled queries where there are too many; none without a relevant image.",
    }
    for table, data, short, rows, figures in cells:
        stated: Values = {**PLAIN, "held_out": 0.0}
        if short == "vit-b-32":
            stated = {**stated, "pooled": "class token"}
        protocol = {**COCO, "backbone": networks[short or "ecaresnet50t"], "image_size": 224}
        yield Experiment(
            table,
            data,
            rows,
            {**protocol, "batch_size": 256, "recipe.optimizer.nesterov": True},
            FROZEN,
            figures,
            cell=f"{data}.{short}" if short else "",
            deviations=(remarks[table],),
            stated=stated,
            unstated=UNSTATED_BY_SPA,
        )


_VQA = Experiment(
    "001-vqa",
    "vqa",
    _methods("bce", "bce+lpr", "spa", "spa+lpr"),
    {
        **SGD,
        "backbone": "identity",
        "recipe.optimizer.lr": 0.1,
        "recipe.optimizer.nesterov": True,
        "recipe.epochs": 15,
        "recipe.schedule.name": "cosine",
        "batch_size": 256,
        "calibrate": "none",
    },
    FROZEN,
    columns.vqa,
    deviations=(
        "Linear heads on stored features; the appendix, with its protocol, is not at hand.",
        "10 bins over all entries, soft labels as they are; val2014 is the test.",
    ),
    stated={**PLAIN, "held_out": 0.0, "backbone": "LXMERT"},
    unstated=UNSTATED_BY_SPA,
)
_TWO_WAY_RECIPE: Values = {
    **COCO,
    "backbone": "torchvision/resnet50",
    "weights": "IMAGENET1K_V1",
    "image_size": 224,
    "batch_size": 512,
}
_TWO_WAY = (
    Experiment(
        "002-tableB",
        "coco",
        {
            **_methods("warp", "rml", "two-way", "softmax", "bce"),
            "sample-wise": Row({"method": "two-way", "options": {"side": "sample"}}),
        },
        _TWO_WAY_RECIPE,
        FROZEN,
        columns.ranked,
        stated={**PLAIN, **TWO_WAY, "weights_tag": V1},
        unstated=OUR_CHOICE,
    ),
    Experiment(
        "002-tableC",
        "nus-wide",
        _methods("softmax", "asl-official", "two-way"),
        _TWO_WAY_RECIPE,
        FROZEN,
        columns.ranked,
        stated={**PLAIN, **TWO_WAY, "weights_tag": V1},
        unstated=OUR_CHOICE,
    ),
)


EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        *_one_versus_rest(),
        _ZERO_LABEL,
        *_top_four(),
        alpha_experiment(UNSTATED_BY_QUASIBINARY, PLAIN, PRINTED_MOMENTUM),
        *_spa(),
        _VQA,
        *_TWO_WAY,
        margin_experiment(_TWO_WAY_RECIPE, OUR_CHOICE, {**PLAIN, **TWO_WAY, "weights_tag": V1}),
        *average_k_tables(),
        QUERY2LABEL,
        single_positive_table(),
    )
}
