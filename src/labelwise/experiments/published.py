"""The figures the papers print, table by table, so that ours can stand beside them.

Columns: `mAP@class`, `mAP@sample`, `ACE`, `MCE`, `ECE`, ... all in per
cent except AUROC. A missing figure ("failed to converge", "not in the text") is None.
"""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["PUBLISHED", "PublishedTable"]

Figures = tuple[float | None, ...]


@dataclass(frozen=True)
class PublishedTable:
    """One printed table: what its columns are, and the printed figures of each row."""

    title: str
    columns: tuple[str, ...]
    rows: Mapping[str, Figures]
    remark: str = ""


_RANKED = ("mAP@class", "mAP@sample", "ACE", "MCE")
_SHOTS = ("overall", "few", "medium", "many")

PUBLISHED: dict[str, PublishedTable] = {
    "000-table1": PublishedTable(
        "Quasibinary classifier, Table I: top-1 error of ResNet-18",
        ("CIFAR-10 error", "CIFAR-100 error", "Tiny-ImageNet error", "ImageNet error"),
        {
            "binary": (4.8, 35.4, None, None),
            "quasibinary": (4.9, 21.9, 42.9, 25.4),
            "softmax": (5.2, 22.2, 43.3, 23.9),
        },
        "A missing figure is printed as 'failed to converge'.",
    ),
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
    "000-table3": PublishedTable(
        "Quasibinary classifier, Table III: multi-label, VGG16, top 4 labels of an image",
        ("COCO F1", "COCO ECE", "NUS F1", "NUS ECE"),
        {
            "binary": (51.2, 26.8, 40.7, 23.6),
            "softmax": (54.7, 32.2, 43.2, 25.8),
            "softmax+temperature": (54.7, 31.4, 43.2, 24.6),
            "quasibinary": (54.7, 2.8, 43.5, 3.3),
        },
    ),
    "001-table3": PublishedTable(
        "SPA and LPR, Table 3: MS-COCO, ECA-ResNet50-T",
        _RANKED,
        {
            "bce": (72.2, 82.4, 8.2, 17.0),
            "two-way": (77.2, 87.9, 17.2, 33.6),
            "focal": (74.8, 85.9, 20.1, 34.9),
            "focal+phi": (None, None, 11.1, 20.3),
            "asl": (77.5, 88.2, 30.6, 46.0),
            "asl+phi": (77.0, 87.8, 15.0, 26.0),
            "spa": (77.8, 88.4, 5.3, 12.0),
            "spa+lpr": (77.7, 88.6, 4.2, 9.3),
        },
        "Bins, pooling, learning rate and the weight of LPR are not in the text.",
    ),
    "001-table4": PublishedTable(
        "SPA and LPR, Table 4: LPR added to other losses, MS-COCO, ECA-ResNet50-T",
        _RANKED,
        {
            "bce": (72.2, 82.4, 8.2, 17.0),
            "bce+lpr": (72.4, 82.9, 6.5, 14.8),
            "focal": (74.8, 85.9, 20.1, 34.9),
            "focal+lpr": (75.1, 86.3, 19.7, 36.4),
            "asl": (77.5, 88.2, 30.6, 46.0),
            "asl+lpr": (77.2, 88.1, 29.4, 44.7),
        },
        "The printed header swaps mAP@class and mAP@sample.",
    ),
    "001-fig3": PublishedTable(
        "SPA and LPR, Figure 3: retrieval mAP against query length, MS-COCO",
        ("n=1", "n=2", "n=3", "n=4", "n=5"),
        {name: (None,) * 5 for name in ("bce", "asl", "spa")},
        "Curves only. Told in words: SPA > BCE > ASL, and the gap grows with n.",
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
        {"softmax": (49.85, 82.77), "asl": (58.40, 83.73), "two-way": (59.67, 83.60)},
    ),
    "003-table1": PublishedTable(
        "Average-K, Table 1: CIFAR-100, DenseNet-40-40, test average-5 accuracy",
        ("average-5 accuracy",),
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
    "003-table2": PublishedTable(
        "Average-K, Table 2: Pl@ntNet-300K, ResNet-18, average-5 accuracy",
        _SHOTS,
        {
            "softmax": (95.11, 35.39, 83.65, 94.59),
            "top-k": (95.75, 49.90, 81.39, 95.00),
            "average-k": (96.42, 55.83, 88.19, 95.90),
            "an": (93.88, 20.31, 67.55, 92.66),
            "epr": (93.63, 31.02, 65.85, 90.79),
        },
        "K = 5 of the printed K = 2, 3, 5, 10.",
    ),
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
        "Query2Label report, Table 2: ROLE from single positives, MS-COCO, ResNet-50",
        ("mAP@class",),
        {"role linear": (66.3,), "role fine-tuned": (66.9,)},
        "The paper's own column prints 66.3 for both.",
    ),
}
