"""The tables of average-K as cells: CIFAR-100, Pl@ntNet for each K, and the appendices."""

from collections.abc import Iterator

from labelwise.papers import columns
from labelwise.papers.protocols import (
    CIFAR,
    FROZEN,
    GOOD_CIFAR,
    OUR_CHOICE,
    PLAIN,
    SGD,
    V1,
    Experiment,
    Row,
    Values,
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


def average_k_tables() -> Iterator[Experiment]:
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
