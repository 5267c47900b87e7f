"""Methods for labels that are known, or known to be unknown."""

from collections.abc import Callable
from typing import Any

from labelwise.methods.method import Method
from labelwise.objectives import (
    BCE,
    LSEP,
    RML,
    SPA,
    WARP,
    Asymmetric,
    Focusing,
    LabelPairs,
    MaxConfidence,
    Objective,
    PairwiseHinge,
    Quasibinary,
    Side,
    SoftmaxCrossEntropy,
    SoftmaxOrNone,
    TwoWay,
    UniformKL,
)
from labelwise.types import DatasetFacts

__all__ = ["FULL_LABELS"]


def _spa(facts: DatasetFacts, **o: Any) -> Objective:
    present = Side(o["zeta_pos"], o["k_pos"], o["b_pos"])
    return SPA(present, Side(o["zeta_neg"], o["k_neg"], o["b_neg"]))


def _asymmetric(facts: DatasetFacts, **o: Any) -> Objective:
    return Asymmetric(Focusing(**o))


def _asymmetric_phi(facts: DatasetFacts, **o: Any) -> Objective:
    return Asymmetric(Focusing(**o), phi=True)


def _with_pairs(make: Callable[..., Objective]) -> Callable[..., Objective]:
    def make_sum(facts: DatasetFacts, *, lpr_weight: float, **o: Any) -> Objective:
        return make(facts, **o) + lpr_weight * LabelPairs()

    return make_sum


_ASL = {"gamma_neg": 4.0, "gamma_pos": 1.0, "margin": 0.05, "weight_grad": "full"}
_FOCAL = {"gamma_neg": 2.0, "gamma_pos": 2.0, "margin": 0.0, "weight_grad": "full"}
_SPA = {"zeta_pos": 1.0, "k_pos": 1.0, "b_pos": 0.0, "zeta_neg": 5.0, "k_neg": 3.0, "b_neg": 1.0}
_PAIRS = {"lpr_weight": 1.0}
_RANK = {"rank": "sampled", "rounding": "floor", "seed": 0}

FULL_LABELS: dict[str, Method] = {
    "bce": Method(
        make=lambda facts, **o: BCE(**o),
        probabilities="proper",
        sentence="Binary cross-entropy: every label its own coin.",
        source="the common baseline; Cheng and Vasconcelos, CVPR 2024, eqs. 5 and 6",
        options={"per": "entry"},
    ),
    "bce+lpr": Method(
        make=_with_pairs(lambda facts: BCE()),
        probabilities="proper",
        sentence="Binary cross-entropy, and a price on every pair of labels in the wrong order.",
        source="Cheng and Vasconcelos, CVPR 2024, eqs. 20 and 21, Table 4",
        options=_PAIRS,
    ),
    "focal": Method(
        make=_asymmetric,
        probabilities="improper",
        sentence="Focal loss: easy entries count less; its sigmoids are not probabilities.",
        source="Lin et al., ICCV 2017; Cheng and Vasconcelos, CVPR 2024, eqs. 7 and 8",
        options=_FOCAL,
    ),
    "focal+phi": Method(
        make=_asymmetric_phi,
        probabilities="proper",
        sentence="Focal loss, read through the map that turns its optimum into probabilities.",
        source="Cheng and Vasconcelos, CVPR 2024, eqs. 13 to 15",
        options=_FOCAL,
    ),
    "focal+lpr": Method(
        make=_with_pairs(_asymmetric),
        probabilities="improper",
        sentence="Focal loss with the label-pair regulariser.",
        source="Cheng and Vasconcelos, CVPR 2024, eqs. 20 and 21, Table 4",
        options={**_FOCAL, **_PAIRS},
    ),
    "asl": Method(
        make=_asymmetric,
        probabilities="improper",
        sentence="Asymmetric loss: easy absent labels count least, the easiest not at all.",
        source="Ridnik et al., ICCV 2021; Cheng and Vasconcelos, CVPR 2024, eqs. 7 and 8",
        options=_ASL,
    ),
    "asl+phi": Method(
        make=_asymmetric_phi,
        probabilities="proper",
        sentence="Asymmetric loss, read through its recovery map; below the margin p is 0.",
        source="Cheng and Vasconcelos, CVPR 2024, eqs. 13 to 15",
        options=_ASL,
    ),
    "asl+lpr": Method(
        make=_with_pairs(_asymmetric),
        probabilities="improper",
        sentence="Asymmetric loss with the label-pair regulariser.",
        source="Cheng and Vasconcelos, CVPR 2024, eqs. 20 and 21, Table 4",
        options={**_ASL, **_PAIRS},
    ),
    "spa": Method(
        make=_spa,
        probabilities="proper",
        sentence="Strictly proper asymmetric loss: easy absent labels count less, p stays true.",
        source="Cheng and Vasconcelos, CVPR 2024, eqs. 16 and 17 (signs of 17 corrected)",
        options=_SPA,
    ),
    "spa+lpr": Method(
        make=_with_pairs(_spa),
        probabilities="proper",
        sentence="SPA with the label-pair regulariser on its own log-odds.",
        source="Cheng and Vasconcelos, CVPR 2024, eqs. 16 to 21",
        options={**_SPA, **_PAIRS},
    ),
    "two-way": Method(
        make=lambda facts, **o: TwoWay(**o),
        probabilities="ranking only",
        sentence="Two-way loss: ranks labels within an image and images within a label.",
        source="Kobayashi, CVPR 2023, eqs. 14 to 17 and supplement",
        options={"side": "both", "temperature_pos": 4.0, "temperature_neg": 1.0, "margin": 0.0},
    ),
    "softmax": Method(
        make=lambda facts, **o: SoftmaxCrossEntropy(**o),
        probabilities="improper",
        sentence="Softmax shared by the labels of an image; images without labels are skipped.",
        source="Liao et al., quasibinary classifier, Table III",
        options={"temperature": 1.0},
    ),
    "softmax-or-none": Method(
        make=lambda facts: SoftmaxOrNone(),
        probabilities="improper",
        sentence="Softmax that can also answer none: true where images have at most one label.",
        source="multinomial logistic regression with none as the reference class",
    ),
    "uniform": Method(
        make=lambda facts, **o: UniformKL(**o),
        probabilities="improper",
        sentence="Softmax that is pulled to uniform on images without labels.",
        source="Lee et al., ICLR 2018; Liao et al., quasibinary classifier, Table II",
        options={"beta": 1.0},
    ),
    "maxconf": Method(
        make=lambda facts: MaxConfidence(),
        probabilities="improper",
        sentence="Softmax whose largest answer is pushed down on images without labels.",
        source="Hein et al., CVPR 2019; Liao et al., quasibinary classifier, Table II",
    ),
    "quasibinary": Method(
        make=lambda facts, **o: Quasibinary(**o),
        probabilities="proper",
        sentence="One normaliser for all labels and images: comparable, and able to say none.",
        source="Liao et al., quasibinary classifier, eqs. 10 to 13",
        options={"penalty": "literal", "momentum": 0.9},
    ),
    "warp": Method(
        make=lambda facts, **o: WARP(**o),
        probabilities="ranking only",
        sentence="Hinges of label pairs, heavier where the present label ranks low.",
        source="Gong et al., 2013",
        options={**_RANK, "margin": 1.0},
    ),
    "rml": Method(
        make=lambda facts, **o: RML(**o),
        probabilities="ranking only",
        sentence="WARP with ramps in place of hinges: wrong labels cannot pull without end.",
        source="Cevikalp et al., 2020",
        options={**_RANK, "rounding": "round", "s": -0.8, "beta": 0.9, "c_u": 5.0},
    ),
    "lsep": Method(
        make=lambda facts: LSEP(),
        probabilities="ranking only",
        sentence="Smooth pairwise ranking: log of one plus all pairs' exponentials.",
        source="Li et al., CVPR 2017",
    ),
    "pairwise": Method(
        make=lambda facts, **o: PairwiseHinge(**o),
        probabilities="ranking only",
        sentence="A hinge on every pair of a present and an absent label.",
        source="Gong et al., 2013; Kobayashi, CVPR 2023",
        options={"margin": 1.0},
    ),
}
