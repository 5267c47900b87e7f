"""One method to a file: its loss as a function, its link, its objective."""

from labelwise.links import (
    CROSS_ENTROPY,
    EASY_NEGATIVES,
    FocalMarginLink,
    Focusing,
    PhiLink,
    QuasibinaryLink,
    Side,
    SoftmaxOrNoneLink,
    SPALink,
    WeightedSigmoid,
)
from labelwise.objectives.asymmetric import (
    FOCAL,
    OFFICIAL_ASL,
    OFFICIAL_FOCAL,
    Asymmetric,
    asymmetric_loss,
)
from labelwise.objectives.average_k import AverageK, average_k_candidates, average_k_loss
from labelwise.objectives.base import Objective, Sum, Term, Weighted, refuse_accumulation
from labelwise.objectives.calibration_terms import (
    MMCE,
    LogitMargin,
    MeanDifference,
    kernel_calibration_error,
)
from labelwise.objectives.cross_entropy import BCE, bce_loss
from labelwise.objectives.distribution_balanced import (
    DistributionBalanced,
    balanced_weights,
    distribution_balanced_loss,
)
from labelwise.objectives.entropy_maximisation import EntropyMaximisation, negative_entropy
from labelwise.objectives.expected_positives import EPR, expected_positives
from labelwise.objectives.focal_margin import (
    SPLC,
    Hill,
    hill_loss,
    splc_loss,
)
from labelwise.objectives.generalized_robust import GeneralizedRobust, tempered_log
from labelwise.objectives.label_pair import LabelPairs, label_pair_loss
from labelwise.objectives.large_loss import LargeLoss, LargeLossForGood, largest_unknown
from labelwise.objectives.pseudo_label_robust import PseudoLabelRobust, guessed_labels
from labelwise.objectives.pseudo_labels import EntropyWithPseudoLabels
from labelwise.objectives.quasibinary import (
    Quasibinary,
    precise_normalizer,
    quasibinary_loss,
)
from labelwise.objectives.ranking import (
    LSEP,
    RML,
    WARP,
    PairwiseHinge,
    lsep_loss,
    pairwise_hinge_loss,
)
from labelwise.objectives.role import ROLE, role_loss
from labelwise.objectives.single_positive import (
    AN,
    IU,
    PR,
    WAN,
    SmoothedBCE,
    pr_loss,
    smoothed_bce_loss,
    wan_loss,
)
from labelwise.objectives.smooth_top_k import SmoothTopK, smooth_top_k_loss
from labelwise.objectives.softmax import SoftmaxCrossEntropy, softmax_loss
from labelwise.objectives.softmax_or_none import (
    SoftmaxOrNone,
    log_softmax_or_none,
)
from labelwise.objectives.spa import SPA, spa_loss
from labelwise.objectives.top_k import NoisedTopK, noised_top_k_loss
from labelwise.objectives.two_way import TwoWay, two_way_unit
from labelwise.objectives.zero_label import MaxConfidence, UniformKL, max_confidence, uniform_kl
from labelwise.objectives.zlpr import ZLPR, zlpr_loss

__all__ = [
    "AN",
    "BCE",
    "CROSS_ENTROPY",
    "EASY_NEGATIVES",
    "EPR",
    "FOCAL",
    "IU",
    "LSEP",
    "MMCE",
    "OFFICIAL_ASL",
    "OFFICIAL_FOCAL",
    "PR",
    "RML",
    "ROLE",
    "SPA",
    "SPLC",
    "WAN",
    "WARP",
    "ZLPR",
    "Asymmetric",
    "AverageK",
    "DistributionBalanced",
    "EntropyMaximisation",
    "EntropyWithPseudoLabels",
    "FocalMarginLink",
    "Focusing",
    "GeneralizedRobust",
    "Hill",
    "LabelPairs",
    "LargeLoss",
    "LargeLossForGood",
    "LogitMargin",
    "MaxConfidence",
    "MeanDifference",
    "NoisedTopK",
    "Objective",
    "PairwiseHinge",
    "PhiLink",
    "PseudoLabelRobust",
    "Quasibinary",
    "QuasibinaryLink",
    "SPALink",
    "Side",
    "SmoothTopK",
    "SmoothedBCE",
    "SoftmaxCrossEntropy",
    "SoftmaxOrNone",
    "SoftmaxOrNoneLink",
    "Sum",
    "Term",
    "TwoWay",
    "UniformKL",
    "Weighted",
    "WeightedSigmoid",
    "asymmetric_loss",
    "average_k_candidates",
    "average_k_loss",
    "balanced_weights",
    "bce_loss",
    "distribution_balanced_loss",
    "expected_positives",
    "guessed_labels",
    "hill_loss",
    "kernel_calibration_error",
    "label_pair_loss",
    "largest_unknown",
    "log_softmax_or_none",
    "lsep_loss",
    "max_confidence",
    "negative_entropy",
    "noised_top_k_loss",
    "pairwise_hinge_loss",
    "pr_loss",
    "precise_normalizer",
    "quasibinary_loss",
    "refuse_accumulation",
    "role_loss",
    "smooth_top_k_loss",
    "smoothed_bce_loss",
    "softmax_loss",
    "spa_loss",
    "splc_loss",
    "tempered_log",
    "two_way_unit",
    "uniform_kl",
    "wan_loss",
    "zlpr_loss",
]
