"""EXPERIMENTS: every table of the five papers as runnable cells: table x data set x backbone x row.

A cell's name is its table's; where a table has several cells, their data set and backbone follow
after points, and the table's name alone means the first of them. ``protocol`` is the paper's
recipe as far as it is stated; ``quick`` overrides it for a budget of minutes. ``rows`` says what
distinguishes the rows. Keys are those of the settings file.
"""

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from labelwise.experiments import columns
from labelwise.experiments.protocols import (
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
from labelwise.experiments.published import REGIMES, SINGLE_POSITIVE
from labelwise.experiments.said_in_text import alpha_experiment, margin_experiment
from labelwise.experiments.sources import LAST_FIFTH
from labelwise.objectives import OFFICIAL_ASL, OFFICIAL_FOCAL, Focusing, PhiLink

__all__ = ["EXPERIMENTS"]


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


def _average_k_rows(k: int, *, role: bool = False) -> dict[str, Row]:
    options = {
        "softmax": ("softmax", {}),
        "average-k": ("average-k", {"k": k}),
        "role": ("role", {"k": float(k)}),
        "an": ("wan", {"per": "image"}),
        "epr": ("epr", {"k": float(k), "per": "image"}),
        "top-k": ("top-k", {"k": k}),
    }
    return {
        row: Row({"method": method, "options": values})
        for row, (method, values) in options.items()
        if role or row != "role"
    }


_AVERAGE_K_CIFAR: Values = {
    **CIFAR,
    "backbone": "densenet40-40",
    "recipe.optimizer.nesterov": True,
    "recipe.epochs": 300,
    "recipe.keep": "best",
    "recipe.metric": "average-5",
}
_AVERAGE_K_REMARK = "--quick uses ResNet-18; the options of each loss are not in the text."
_PLANTNET: Values = {
    **SGD,
    "weights": "pretrained",
    "augment": "shift",
    "recipe.epochs": 30,
    "recipe.keep": "best",
    "recipe.optimizer.lr": 0.002,
    "recipe.optimizer.nesterov": True,
    "recipe.schedule.name": "step",
    "recipe.schedule.milestones": [25 / 30],
    "batch_size": 32,
    "calibrate": "none",
}


def _average_k() -> Iterator[Experiment]:
    """Yield Table 1, Table 2 for each K, and the appendices."""
    quick = {**GOOD_CIFAR, "backbone": "resnet18-32"}
    stated = {**PLAIN, "held_out": 0.1, "scores": "softmax"}
    shared = (_AVERAGE_K_CIFAR, quick, columns.average_sets(5))
    yield Experiment(
        "003-table1",
        "cifar100",
        _average_k_rows(5, role=True),
        *shared,
        deviations=(_AVERAGE_K_REMARK,),
        stated=stated,
        unstated=OUR_CHOICE | {"augment"},
    )
    for k in (5, 2, 3, 10):
        yield _on_plantnet("003-table2", f"k{k}", "torchvision/resnet18", k)
    alphas = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
    method: Values = {"method": "average-k", "options": {"k": 5}}
    sweep = {
        f"alpha={alpha:g}": Row({"method": "average-k", "options": {"k": 5, "alpha": alpha}})
        for alpha in alphas
    }
    batches = {f"batch={size}": Row({**method, "batch_size": size}) for size in (2, 8, 32, 128)}
    proposal = Row({**method, "head": "two-head", "head_options": {"answers": "proposal"}})
    yield Experiment(
        "003-appendix",
        "cifar100",
        {**sweep, **batches, "proposal head": proposal},
        *shared,
        deviations=(_AVERAGE_K_REMARK, "Which values the appendix varies is not in the text."),
        stated=stated,
        unstated=OUR_CHOICE | {"augment"},
    )
    networks = {
        "resnet34": "torchvision/resnet34",
        "densenet169": "torchvision/densenet169",
        "vit-b-16": "torchvision/vit_b_16",
    }
    for short, backbone in networks.items():
        yield _on_plantnet("003-appendixE", short, backbone, 5)


def _on_plantnet(table: str, cell: str, backbone: str, k: int) -> Experiment:
    return Experiment(
        table,
        "plantnet",
        _average_k_rows(k),
        {**_PLANTNET, "backbone": backbone, "image_size": 224, "recipe.metric": f"average-{k}"},
        FROZEN,
        columns.average_sets(k),
        cell=cell,
        deviations=("Random shifts stand in for crops of a larger picture.",),
        stated={**PLAIN, "weights_tag": V1, "scores": "softmax"},
        unstated=OUR_CHOICE | {"weights", "augment"},
    )


_QUERY2LABEL = Experiment(
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


def _single_positive() -> Experiment:
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
        *_average_k(),
        _QUERY2LABEL,
        _single_positive(),
    )
}
