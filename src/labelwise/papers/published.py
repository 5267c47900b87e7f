"""The figures the papers print, cell by cell, so that ours can stand beside them.

A cell is a printed table on one data set with one backbone; its name is the table's, and where a
table has several, their data set and backbone after points: ``001-table3.voc.vit-b-32``. Columns:
`mAP@class`, `mAP@sample`, `ACE`, `MCE`, `ECE`, ... all in per cent except AUROC. A missing figure
("failed to converge", "not in the text") is None.
"""

from collections.abc import Mapping
from dataclasses import dataclass

Figures = tuple[float | None, ...]


@dataclass(frozen=True)
class PublishedTable:
    """One printed table: what its columns are, and the printed figures of each row."""

    title: str
    columns: tuple[str, ...]
    rows: Mapping[str, Figures]
    remark: str = ""


RANKED = ("mAP@class", "mAP@sample", "ACE", "MCE")
SHOTS = ("overall", "few", "medium", "many")
NOT_CONVERGED = "A missing figure is printed as 'failed to converge'."
ONE_VERSUS_REST = ("binary", "quasibinary", "softmax")

# Quasibinary, Table I and the supplement's: errors of binary, quasibinary and softmax.
_ERRORS: dict[tuple[str, str], Figures] = {
    ("CIFAR-10", "ResNet-18"): (4.8, 4.9, 5.2),
    ("CIFAR-100", "ResNet-18"): (35.4, 21.9, 22.2),
    ("Tiny-ImageNet", "ResNet-18"): (None, 42.9, 43.3),
    ("ImageNet", "ResNet-18"): (None, 25.4, 23.9),
    ("CIFAR-10", "DenseNet-40"): (8.6, 6.7, 6.4),
    ("CIFAR-100", "DenseNet-40"): (None, 32.6, 31.2),
    ("Tiny-ImageNet", "DenseNet-40"): (None, 55.0, 53.0),
    ("CIFAR-10", "VGG16"): (6.1, 8.3, 8.0),
    ("CIFAR-100", "VGG16"): (25.8, 25.5, 25.8),
    ("Tiny-ImageNet", "VGG16"): (None, 48.9, 48.7),
}


def _errors(where: str, data: str, backbone: str) -> PublishedTable:
    return PublishedTable(
        f"Quasibinary classifier, {where}: top-1 error of {backbone} on {data}",
        ("error",),
        {
            row: (value,)
            for row, value in zip(ONE_VERSUS_REST, _ERRORS[data, backbone], strict=True)
        },
        NOT_CONVERGED,
    )


def _one_versus_rest() -> dict[str, PublishedTable]:
    sets = {
        "cifar100": "CIFAR-100",
        "cifar10": "CIFAR-10",
        "tiny-imagenet": "Tiny-ImageNet",
        "imagenet": "ImageNet",
    }
    found = {
        f"000-table1.{key}": _errors("Table I", data, "ResNet-18") for key, data in sets.items()
    }
    networks = {"vgg16": "VGG16", "densenet40": "DenseNet-40", "resnet18": "ResNet-18"}
    for key, data in list(sets.items())[:3]:
        for short, backbone in networks.items():
            cell = f"000-supplement-table1.{key}.{short}"
            found[cell] = _errors("supplement, Table I", data, backbone)
    return found


def _top_four(data: str, rows: Mapping[str, Figures]) -> PublishedTable:
    return PublishedTable(
        f"Quasibinary classifier, Table III: {data}, VGG16, top 4 labels of an image",
        ("F1", "ECE"),
        rows,
    )


# SPA, Table 3: mAP@class, mAP@sample, ACE, MCE with ECA-ResNet50-T, then with ViT-B/32.
_SPA: dict[str, dict[str, tuple[Figures, Figures]]] = {
    "coco": {
        "bce": ((72.2, 82.4, 8.2, 17.0), (70.1, 81.9, 6.0, 15.5)),
        "two-way": ((77.2, 87.9, 17.2, 33.6), (76.2, 88.0, 14.2, 31.3)),
        "focal-official": ((74.8, 85.9, 20.1, 34.9), (72.0, 83.8, 23.6, 36.2)),
        "focal-official+phi printed": ((None, None, 11.1, 20.3), (None, None, 8.5, 17.9)),
        "asl-official": ((77.5, 88.2, 30.6, 46.0), (76.4, 87.7, 29.5, 48.6)),
        "asl-official+phi printed": ((77.0, 87.8, 15.0, 26.0), (76.2, 87.3, 16.2, 26.2)),
        "spa": ((77.8, 88.4, 5.3, 12.0), (76.8, 87.9, 4.8, 10.7)),
        "spa+lpr": ((77.7, 88.6, 4.2, 9.3), (76.6, 88.1, 2.1, 5.3)),
    },
    "voc": {
        "bce": ((85.1, 92.4, 6.9, 13.8), (86.9, 92.7, 7.8, 16.7)),
        "two-way": ((89.1, 93.7, 10.8, 22.0), (90.1, 94.5, 14.5, 28.3)),
        "focal-official": ((87.4, 93.3, 19.0, 35.8), (88.4, 93.6, 16.2, 31.7)),
        "focal-official+phi printed": ((None, None, 7.0, 16.5), (None, None, 9.3, 20.7)),
        "asl-official": ((89.6, 94.6, 26.4, 47.7), (90.4, 94.7, 31.7, 52.8)),
        "asl-official+phi printed": ((89.1, 94.3, 12.9, 24.7), (89.8, 94.2, 15.5, 33.0)),
        "spa": ((89.5, 94.1, 5.4, 14.9), (90.0, 93.9, 6.1, 14.4)),
        "spa+lpr": ((89.9, 94.3, 4.9, 11.0), (90.4, 94.8, 5.5, 12.7)),
    },
    "wider": {
        "bce": ((74.9, 82.8, 11.5, 25.2), (76.7, 83.2, 8.6, 13.3)),
        "two-way": ((79.9, 85.5, 14.3, 29.0), (81.6, 87.6, 16.7, 32.3)),
        "focal-official": ((78.5, 84.1, 20.1, 34.2), (80.8, 85.2, 18.8, 31.2)),
        "focal-official+phi printed": ((None, None, 9.3, 21.0), (None, None, 7.4, 16.5)),
        "asl-official": ((80.6, 86.0, 24.2, 35.2), (82.2, 87.8, 22.8, 36.3)),
        "asl-official+phi printed": ((79.9, 85.4, 14.3, 27.5), (81.8, 87.2, 13.3, 20.7)),
        "spa": ((80.1, 85.8, 5.3, 11.2), (82.0, 87.6, 4.3, 10.5)),
        "spa+lpr": ((80.3, 85.9, 3.5, 8.0), (82.7, 87.9, 2.8, 6.2)),
    },
}
_SPA_REMARKS = {
    "coco": "",
    "voc": "",
    "wider": " The third group of rows in the text is taken as WIDER-Attribute.",
    "vispr": " The rows of VISPR are missing from the text at hand.",
}
_SPA_SETS = {"coco": "MS-COCO", "voc": "VOC 2012", "wider": "WIDER-Attribute", "vispr": "VISPR"}
_SPA_NETWORKS = {"ecaresnet50t": "ECA-ResNet50-T", "vit-b-32": "ViT-B/32"}


def _spa() -> dict[str, PublishedTable]:
    found = {}
    for data, name in _SPA_SETS.items():
        for column, (short, backbone) in enumerate(_SPA_NETWORKS.items()):
            rows = {row: both[column] for row, both in _SPA.get(data, {}).items()}
            found[f"001-table3.{data}.{short}"] = PublishedTable(
                f"SPA and LPR, Table 3: {name}, {backbone}",
                RANKED,
                rows or dict.fromkeys(_SPA["coco"], (None,) * 4),
                "Bins, pooling, learning rate and the weight of LPR are not in the text."
                + _SPA_REMARKS[data],
            )
            found[f"001-fig3.{data}.{short}"] = PublishedTable(
                f"SPA and LPR, Figure 3: retrieval mAP against query length, {name}, {backbone}",
                ("n=1", "n=2", "n=3", "n=4", "n=5"),
                {row: (None,) * 5 for row in ("bce", "asl-official", "spa")},
                "Curves only. Told in words: SPA > BCE > ASL, and the gap grows with n.",
            )
    return found


# Average-K, Table 2: overall, few, medium and many shots, for K = 2, 3, 5, 10.
_PLANTNET: dict[str, tuple[Figures, Figures, Figures, Figures]] = {
    "softmax": (
        (89.63, 27.08, 65.83, 85.97),
        (92.64, 38.44, 75.55, 90.50),
        (95.11, 35.39, 83.65, 94.59),
        (97.11, 46.58, 91.71, 97.30),
    ),
    "top-k": (
        (90.48, 24.98, 63.08, 87.21),
        (93.60, 38.46, 73.67, 91.85),
        (95.75, 49.90, 81.39, 95.00),
        (97.26, 56.49, 88.78, 97.26),
    ),
    "average-k": (
        (90.34, 23.77, 61.81, 86.74),
        (93.81, 40.39, 76.50, 92.17),
        (96.42, 55.83, 88.19, 95.90),
        (98.23, 75.75, 94.14, 98.08),
    ),
    "an": (
        (85.41, 2.05, 30.26, 76.64),
        (90.15, 7.46, 47.20, 86.04),
        (93.88, 20.31, 67.55, 92.66),
        (96.86, 42.61, 85.49, 96.87),
    ),
    "epr": (
        (86.30, 9.01, 37.27, 77.72),
        (90.49, 18.49, 51.58, 85.19),
        (93.63, 31.02, 65.85, 90.79),
        (95.99, 41.44, 78.61, 95.09),
    ),
}


def _plantnet() -> dict[str, PublishedTable]:
    return {
        f"003-table2.k{k}": PublishedTable(
            f"Average-K, Table 2: Pl@ntNet-300K, ResNet-18, average-{k} accuracy",
            SHOTS,
            {row: by_k[column] for row, by_k in _PLANTNET.items()},
            "Few, medium, many: under 20, 20 to 100, over 100 training images of the class.",
        )
        for column, k in ((2, 5), (0, 2), (1, 3), (3, 10))
    }


_UNPRINTED = "Its figures stand in an appendix that is not at hand."
_APPENDIX_ROWS = (
    *(f"alpha={alpha:g}" for alpha in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)),
    *(f"batch={size}" for size in (2, 8, 32, 128)),
    "proposal head",
)
SINGLE_POSITIVE = ("an", "an-ls", "wan", "pr", "epr", "role")
REGIMES = ("linear", "fine-tuned", "linear-init")
_ROLE = {"role linear": 66.3, "role fine-tuned": 66.9}

# Two-way, Table A: what is transferred to, with the number of classes, train and test images.
TRANSFER = {
    "aircraft": ("Aircraft", 100, 6_667, 3_333),
    "caltech101": ("Caltech101", 102, 3_060, 6_084),
    "cars": ("Car", 196, 8_144, 8_041),
    "cub": ("CUB", 200, 5_994, 5_794),
    "dtd": ("DTD", 47, 3_760, 1_880),
    "flowers": ("Flower", 102, 2_040, 6_149),
    "food101": ("Food101", 101, 75_750, 25_250),
    "pets": ("Pets", 37, 3_680, 3_669),
    "sun397": ("SUN", 397, 19_850, 19_850),
}

PUBLISHED: dict[str, PublishedTable] = {
    **_one_versus_rest(),
    "000-table2": PublishedTable(
        "Quasibinary classifier, Table II: CIFAR60+40, ResNet-18",
        ("IN accuracy", "OUT MMC", "AUROC"),
        {
            "binary": (77.8, 14.7, 0.901),
            "softmax+uniform": (80.7, 59.8, 0.800),
            "softmax+maxconf": (45.2, 7.4, 0.764),
            "quasibinary": (80.6, 6.9, 0.913),
        },
        "The authors' choice of the 40 unlabelled classes was never published.",
    ),
    "000-table3.coco": _top_four(
        "MS-COCO",
        {
            "binary": (51.2, 26.8),
            "softmax": (54.7, 32.2),
            "softmax+temperature": (54.7, 31.4),
            "quasibinary": (54.7, 2.8),
        },
    ),
    "000-table3.nus-wide": _top_four(
        "NUS-WIDE",
        {
            "binary": (40.7, 23.6),
            "softmax": (43.2, 25.8),
            "softmax+temperature": (43.2, 24.6),
            "quasibinary": (43.5, 3.3),
        },
    ),
    **_spa(),
    "001-table4": PublishedTable(
        "SPA and LPR, Table 4: LPR added to other losses, MS-COCO, ECA-ResNet50-T",
        RANKED,
        {
            "bce": (72.2, 82.4, 8.2, 17.0),
            "bce+lpr": (72.4, 82.9, 6.5, 14.8),
            "focal-official": (74.8, 85.9, 20.1, 34.9),
            "focal-official+lpr": (75.1, 86.3, 19.7, 36.4),
            "asl-official": (77.5, 88.2, 30.6, 46.0),
            "asl-official+lpr": (77.2, 88.1, 29.4, 44.7),
        },
        "The printed header swaps mAP@class and mAP@sample.",
    ),
    "001-vqa": PublishedTable(
        "SPA and LPR, appendix: VQA v2, LXMERT",
        ("VQA accuracy", "ACE", "MCE"),
        dict.fromkeys(("bce", "bce+lpr", "spa", "spa+lpr"), (None, None, None)),
        _UNPRINTED,
    ),
    "002-tableB": PublishedTable(
        "Two-way loss, Table B: MS-COCO, ResNet-50",
        ("mAP@class", "mAP@sample"),
        {
            "warp": (62.54, 84.22),
            "sample-wise": (67.18, 86.07),
            "rml": (71.37, 85.58),
            "two-way": (74.11, 86.66),
            "softmax": (58.00, 83.60),
            "bce": (67.71, 79.65),
        },
        "The last two rows stand in the authors' README.",
    ),
    "002-tableC": PublishedTable(
        "Two-way loss, Table C: NUS-WIDE, ResNet-50",
        ("mAP@class", "mAP@sample"),
        {"softmax": (49.85, 82.77), "asl-official": (58.40, 83.73), "two-way": (59.67, 83.60)},
    ),
    "000-alpha": PublishedTable(
        "Quasibinary classifier, III-B: the α of the moving average, and q above 1; CIFAR-100",
        ("error", "q > 1"),
        {
            **{f"alpha={alpha}": (None, None) for alpha in ("0.01", "0.05", "0.1", "0.2", "0.5")},
            "alpha=0.1": (21.9, 0.1),
        },
        "Said in words: about 0.1 % of q are above 1 on test data, and the variance of C differs "
        "by up to 0.01 between values of α. The error is that of Table I.",
    ),
    "002-margin": PublishedTable(
        "Two-way loss, supplement A.1: a temperature against a margin; MS-COCO, ResNet-50",
        ("mAP@class", "mAP@sample"),
        {
            **{f"T={value}": (None, None) for value in ("1", "2", "4", "8")},
            **{f"margin={value}": (None, None) for value in ("0.5", "1", "2", "4")},
            "T=4": (74.11, 86.66),
        },
        "Said in words: the temperature is superior to the margin; its Table 2 is not at hand.",
    ),
    "003-table1": PublishedTable(
        "Average-K, Table 1: CIFAR-100, DenseNet-40-40, test average-5 accuracy",
        ("overall",),
        {
            "softmax": (96.83,),
            "average-k": (97.35,),
            "role": (96.12,),
            "an": (96.71,),
            "epr": (95.88,),
            "top-k": (96.32,),
        },
        "±0.16, 0.06, 0.11, 0.02, 0.05, 0.05 over an unstated number of seeds.",
    ),
    **_plantnet(),
    "003-appendix": PublishedTable(
        "Average-K, appendices A and C: alpha, batch size and the proposal head, CIFAR-100",
        ("overall",),
        {row: (None,) for row in _APPENDIX_ROWS},
        _UNPRINTED,
    ),
    **{
        f"003-appendixE.{short}": PublishedTable(
            f"Average-K, appendix E: Pl@ntNet-300K, {name}, average-5 accuracy",
            SHOTS,
            {row: (None,) * 4 for row in _PLANTNET},
            _UNPRINTED,
        )
        for short, name in {
            "resnet34": "ResNet-34",
            "densenet169": "DenseNet-169",
            "vit-b-16": "ViT-16",
        }.items()
    },
    "004-table1": PublishedTable(
        "Query2Label report, Table 1: MS-COCO, released checkpoints",
        ("mAP@class (VOC)",),
        {
            "resnet101-448": (84.9,),
            "resnet101-576": (86.5,),
            "swin-l-384": (90.5,),
            "cvt-w24-384": (91.3,),
        },
        "VOC-interpolated AP; not comparable with the others.",
    ),
    "004-table2": PublishedTable(
        "Query2Label report, Table 2: single positives, MS-COCO, ResNet-50",
        ("mAP@class",),
        {
            f"{method} {regime}": (_ROLE.get(f"{method} {regime}"),)
            for method in SINGLE_POSITIVE
            for regime in REGIMES
        },
        "The report prints ROLE alone, linear and fine-tuned; its paper has 66.3 for both.",
    ),
}
