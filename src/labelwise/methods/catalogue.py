"""METHODS: every way to train, by name. A new one is its file in ``objectives`` and an entry here.

Ranges for tuning stand with the method whose option they are: the papers' own where they give one
(LPR's weight, two-way's temperature, average-k's alpha), else around the default.
"""

from dataclasses import replace

from labelwise.methods.derived import asymmetric, spa, with_boost, with_pairs, with_phi, with_term
from labelwise.methods.method import Method
from labelwise.objectives import (
    AN,
    BCE,
    EPR,
    FOCAL,
    IU,
    LSEP,
    MMCE,
    OFFICIAL_ASL,
    OFFICIAL_FOCAL,
    PR,
    RML,
    ROLE,
    SPLC,
    WAN,
    WARP,
    ZLPR,
    AverageK,
    DistributionBalanced,
    EntropyMaximisation,
    EntropyWithPseudoLabels,
    Focusing,
    GeneralizedRobust,
    Hill,
    LargeLoss,
    LargeLossForGood,
    LogitMargin,
    MaxConfidence,
    MeanDifference,
    NoisedTopK,
    PairwiseHinge,
    Quasibinary,
    SmoothedBCE,
    SmoothTopK,
    SoftmaxCrossEntropy,
    SoftmaxOrNone,
    TwoWay,
    UniformKL,
)

_LPR = "Cheng and Vasconcelos, CVPR 2024, eqs. 20 and 21, Table 4"
_COLE = "Cole et al., CVPR 2021"
_GAMMAS = {"gamma_neg": (1.0, 2.0, 4.0)}
_SMOOTHINGS = {"smoothing": (0.05, 0.1, 0.2)}
_RATES = {"rate": (0.001, 0.002, 0.003, 0.004, 0.005)}
_IMAGES = {"num_images": "num_images"}
_COUNT = {"k": "mean_labels"}  # of an image: as told, else as the table says

_BCE = Method(
    make=BCE,
    probabilities="proper",
    sentence="Binary cross-entropy: every label its own coin.",
    source="the common baseline; Cheng and Vasconcelos, CVPR 2024, eqs. 5 and 6",
    from_facts={"priors": "priors"},
)
_FOCAL = Method(
    make=asymmetric,
    probabilities="improper",
    sentence="Focal loss: easy entries count less; its sigmoids are not probabilities.",
    source="Lin et al., ICCV 2017; Cheng and Vasconcelos, CVPR 2024, eqs. 7 and 8",
    arguments=Focusing,
    changed=vars(FOCAL),
    tuning=_GAMMAS,
)
_ASL = Method(
    make=asymmetric,
    probabilities="improper",
    sentence="Asymmetric loss: easy absent labels count least, the easiest not at all.",
    source="Ridnik et al., ICCV 2021; Cheng and Vasconcelos, CVPR 2024, eqs. 7 and 8",
    arguments=Focusing,
    tuning=_GAMMAS,
)
_OFFICIAL_FOCAL = replace(
    _FOCAL,
    sentence="Focal loss as public code trains it: absent labels alone, weights detached.",
    source="Ridnik et al.'s code; the exponents 2 and 0 are guessed",
    changed=vars(OFFICIAL_FOCAL),
)
_OFFICIAL_ASL = replace(
    _ASL,
    sentence="Asymmetric loss as its authors train it: gamma_pos 0, weights detached.",
    source="Ridnik et al., ICCV 2021, the settings of their code for MS-COCO",
    changed=vars(OFFICIAL_ASL),
)
_SPA = Method(
    make=spa,
    probabilities="proper",
    sentence="Strictly proper asymmetric loss: easy absent labels count less, p stays true.",
    source="Cheng and Vasconcelos, CVPR 2024, eqs. 16 and 17 (signs of 17 corrected)",
)


_LL_R = Method(
    make=LargeLoss,
    probabilities="improper",
    sentence="Unknown labels are read as absent, and the largest losses among them dropped.",
    source="Kim et al., CVPR 2022 (LL-R)",
    from_facts=_IMAGES,
    changed={"correction": "reject"},
    tuning=_RATES,
)
_LL_CT = replace(
    _LL_R,
    sentence="As ll-r, but the labels with the largest losses are taken as present.",
    source="Kim et al., CVPR 2022 (LL-Ct)",
    changed={"correction": "correct"},
)
_LL_CP = Method(
    make=LargeLossForGood,
    probabilities="improper",
    sentence="As ll-ct, but what was once taken as present stays so.",
    source="Kim et al., CVPR 2022 (LL-Cp)",
    from_facts={"num_images": "num_images", "num_labels": "num_labels"},
    tuning=_RATES,
)


METHODS: dict[str, Method] = {
    # Labels that are known, or known to be unknown.
    "bce": _BCE,
    "bce+lpr": with_pairs(
        _BCE, "Binary cross-entropy, and a price on every pair of labels in the wrong order.", _LPR
    ),
    "focal": _FOCAL,
    "focal+phi": with_phi(
        _FOCAL, "Focal loss, read through the map that turns its optimum into probabilities."
    ),
    "focal+lpr": with_pairs(_FOCAL, "Focal loss with the label-pair regulariser.", _LPR),
    "asl": _ASL,
    "asl+phi": with_phi(
        _ASL, "Asymmetric loss through its recovery map; gamma_pos=0 with a margin: p < 0.97."
    ),
    "asl+lpr": with_pairs(_ASL, "Asymmetric loss with the label-pair regulariser.", _LPR),
    "focal-official": _OFFICIAL_FOCAL,
    "focal-official+phi": with_phi(
        _OFFICIAL_FOCAL, "The focal loss of public code through the map of its detached weights."
    ),
    "focal-official+lpr": with_pairs(
        _OFFICIAL_FOCAL, "The focal loss of public code with the label-pair regulariser.", _LPR
    ),
    "asl-official": _OFFICIAL_ASL,
    "asl-official+phi": with_phi(
        _OFFICIAL_ASL,
        "ASL of its authors' code through the map of its detached weights; p < 0.943.",
    ),
    "asl-official+lpr": with_pairs(
        _OFFICIAL_ASL, "ASL of its authors' code with the label-pair regulariser.", _LPR
    ),
    "spa": _SPA,
    "spa+lpr": with_pairs(
        _SPA,
        "SPA with the label-pair regulariser on its own log-odds.",
        "Cheng and Vasconcelos, CVPR 2024, eqs. 16 to 21",
    ),
    "two-way": Method(
        make=TwoWay,
        probabilities="ranking only",
        sentence="Two-way loss: ranks labels within an image and images within a label.",
        source="Kobayashi, CVPR 2023, eqs. 14 to 17 and supplement",
        tuning={"temperature_pos": (1.0, 2.0, 4.0, 8.0)},
    ),
    "softmax": Method(
        make=SoftmaxCrossEntropy,
        probabilities="improper",
        sentence="Softmax shared by the labels of an image; images without labels are skipped.",
        source="Liao et al., quasibinary classifier, Table III",
    ),
    "softmax-or-none": Method(
        make=SoftmaxOrNone,
        probabilities="improper",
        sentence="Softmax that can also answer none: true where images have at most one label.",
        source="multinomial logistic regression with none as the reference class",
    ),
    "uniform": Method(
        make=UniformKL,
        probabilities="improper",
        sentence="Softmax that is pulled to uniform on images without labels.",
        source="Lee et al., ICLR 2018; Liao et al., quasibinary classifier, Table II",
        tuning={"beta": (0.1, 0.3, 1.0, 3.0)},
    ),
    "maxconf": Method(
        make=MaxConfidence,
        probabilities="improper",
        sentence="Softmax whose largest answer is pushed down on images without labels.",
        source="Hein et al., CVPR 2019; Liao et al., quasibinary classifier, Table II",
    ),
    "quasibinary": Method(
        make=Quasibinary,
        probabilities="proper",
        sentence="One normaliser for all labels and images: comparable, and able to say none.",
        source="Liao et al., quasibinary classifier, eqs. 10 to 13",
    ),
    "zlpr": Method(
        make=ZLPR,
        probabilities="improper",
        sentence="Present labels above 0, absent ones below, the worst of an image most.",
        source="Su et al., ZLPR, 2022",
    ),
    "warp": Method(
        make=WARP,
        probabilities="ranking only",
        sentence="Hinges of label pairs, heavier where the present label ranks low.",
        source="Gong et al., 2013",
    ),
    "rml": Method(
        make=RML,
        probabilities="ranking only",
        sentence="WARP with ramps in place of hinges: wrong labels cannot pull without end.",
        source="Cevikalp et al., 2020",
        tuning={"beta": (0.5, 0.7, 0.9), "s": (-0.8, -0.4, 0.0)},
    ),
    "lsep": Method(
        make=LSEP,
        probabilities="ranking only",
        sentence="Smooth pairwise ranking: log of one plus all pairs' exponentials.",
        source="Li et al., CVPR 2017",
    ),
    "pairwise": Method(
        make=PairwiseHinge,
        probabilities="ranking only",
        sentence="A hinge on every pair of a present and an absent label.",
        source="Gong et al., 2013; Kobayashi, CVPR 2023",
    ),
    "bce+mmce": with_term(
        _BCE,
        MMCE,
        2.0,
        probabilities="proper",
        sentence="Binary cross-entropy, and the squared calibration error of the batch.",
        source="Kumar et al., ICML 2018 (MMCE), over all entries, without the root",
    ),
    "bce+mdca": with_term(
        _BCE,
        MeanDifference,
        1.0,
        probabilities="improper",
        sentence="Binary cross-entropy, and the gap of mean probability and share of each label.",
        source="Hebbalaguppe et al., CVPR 2022 (MDCA); Liang et al., 2020 (DCA)",
    ),
    "bce+mbls": with_term(
        _BCE,
        LogitMargin,
        0.1,
        probabilities="improper",
        sentence="Binary cross-entropy, and a price on log-odds beyond 6 either way.",
        source="Liu et al., CVPR 2022 (MbLS), a label as two logits",
    ),
    "db": Method(
        make=DistributionBalanced,
        probabilities="improper",
        sentence="Weights by the rarity of an image's labels; absent labels are forgiven sooner.",
        source="Wu et al., ECCV 2020 (distribution-balanced)",
        from_facts={"priors": "priors"},
        tuning={"middle": (0.1, 0.2, 0.3)},
    ),
    # Images of which few labels are known.
    "an": Method(
        make=AN,
        probabilities="improper",
        sentence="Assume negative: every label not known to be present is taken as absent.",
        source=_COLE,
    ),
    "an-ls": Method(
        make=AN,
        probabilities="improper",
        sentence="Assume negative with label smoothing: wrong assumptions hurt less.",
        source=_COLE,
        changed={"smoothing": 0.1},
        tuning=_SMOOTHINGS,
    ),
    "wan": Method(
        make=WAN,
        probabilities="improper",
        sentence="Weak assume negative: all assumed absences together weigh one presence.",
        source="Cole et al., CVPR 2021; Garcin et al., two-head loss, eq. 5 (per='image')",
    ),
    "epr": Method(
        make=EPR,
        probabilities="improper",
        sentence="Known presences only, and the mean number of predicted labels held near k.",
        source="Cole et al., CVPR 2021; Garcin et al., two-head loss, eq. 8 (per='image')",
        from_facts=_COUNT,
        tuning={"weight": (0.1, 0.3, 1.0, 3.0, 10.0)},
    ),
    "pr": Method(
        make=PR,
        probabilities="improper",
        sentence="Pairwise ranking: known presences above everything unknown.",
        source=_COLE,
    ),
    "iun": Method(
        make=IU,
        probabilities="improper",
        sentence="Ignores hidden presences; for tables that know all absences, as a bound.",
        source=_COLE,
    ),
    "iu": Method(
        make=IU,
        probabilities="improper",
        sentence="Cross-entropy at the known labels; unknown ones count as no loss.",
        source=_COLE,
    ),
    "bce-ls": Method(
        make=SmoothedBCE,
        probabilities="improper",
        sentence="Binary cross-entropy with label smoothing, on complete labels.",
        source=_COLE,
        tuning=_SMOOTHINGS,
    ),
    "role": Method(
        make=ROLE,
        probabilities="improper",
        sentence="Estimates the unknown labels of every training image while it trains.",
        source=_COLE,
        from_facts={"num_images": "num_images", "num_labels": "num_labels", **_COUNT},
    ),
    "hill": Method(
        make=Hill,
        probabilities="improper",
        sentence="Unknown labels are read as absent, and left alone once they look present.",
        source="Zhang et al., Simple and robust loss design, 2021 (Hill)",
        tuning={"margin": (0.5, 1.0)},
    ),
    "splc": Method(
        make=SPLC,
        probabilities="improper",
        sentence="Unknown labels that look present after the first epoch are taken as present.",
        source="Zhang et al., Simple and robust loss design, 2021 (SPLC)",
        from_facts=_IMAGES,
        tuning={"threshold": (0.5, 0.6, 0.7)},
    ),
    "ll-r": _LL_R,
    "ll-ct": _LL_CT,
    "ll-cp": _LL_CP,
    "ll-r+boostlu": with_boost(_LL_R, 0.005, "ll-r"),
    "ll-ct+boostlu": with_boost(_LL_CT, 0.002, "ll-ct"),
    "ll-cp+boostlu": with_boost(_LL_CP, 0.001, "ll-cp"),
    "em": Method(
        make=EntropyMaximisation,
        probabilities="improper",
        sentence="Unknown labels are kept undecided: their entropy is made large.",
        source="Zhou et al., ECCV 2022, without its pseudo-labels",
        tuning={"alpha": (0.01, 0.1, 0.2)},
    ),
    "em+apl": Method(
        make=EntropyWithPseudoLabels,
        probabilities="improper",
        sentence="As em; the least likely unknown labels become soft pseudo-labels of absence.",
        source="Zhou et al., ECCV 2022 (EM + APL), settings of their code for MS-COCO",
        from_facts={"num_images": "num_images", "num_labels": "num_labels"},
        tuning={"beta": (0.02, 0.2, 0.9)},
    ),
    "gr": Method(
        make=GeneralizedRobust,
        probabilities="improper",
        sentence="Unknown labels are partly present: robust losses, mixed as the network believes.",
        source="Chen et al., IJCAI 2024 (GR Loss), the settings of their code",
        from_facts=_IMAGES,
        tuning={"absent_exponent": (0.5, 1.0), "slope_last": (2.0, 4.0)},
    ),
    # Sets of a wanted size.
    "top-k": Method(
        make=NoisedTopK,
        probabilities="improper",
        sentence="A hinge that wants the label among the k highest scores, smoothed by noise.",
        source="Garcin et al., ICML 2022",
        changed={"k": 2},
        tuning={"eps": (0.1, 0.2, 0.5, 1.0)},
    ),
    "smooth-top-k": Method(
        make=SmoothTopK,
        probabilities="improper",
        sentence="A smooth margin that wants the label among the k highest scores.",
        source="Berrada et al., ICLR 2018",
        changed={"k": 2},
        tuning={"tau": (0.1, 1.0, 10.0)},
    ),
    "average-k": Method(
        make=AverageK,
        probabilities="improper",
        sentence="One head proposes further labels, the other learns them: k per image on average.",
        source="Garcin et al., two-head loss, eqs. 10 to 15",
        head="two-head",
        changed={"k": 2.0},
        tuning={"alpha": (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)},
    ),
}
