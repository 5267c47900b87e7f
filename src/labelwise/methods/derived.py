"""How entries of the catalogue are made from options, and from other entries."""

from dataclasses import replace
from typing import Any, Literal

from labelwise.methods.method import Method
from labelwise.objectives import (
    BCE,
    CROSS_ENTROPY,
    EASY_NEGATIVES,
    SPA,
    Asymmetric,
    Focusing,
    LabelPairs,
    Objective,
    Side,
    Term,
)


def spa(
    *,
    zeta_pos: float = CROSS_ENTROPY.zeta,
    k_pos: float = CROSS_ENTROPY.k,
    b_pos: float = CROSS_ENTROPY.b,
    zeta_neg: float = EASY_NEGATIVES.zeta,
    k_neg: float = EASY_NEGATIVES.k,
    b_neg: float = EASY_NEGATIVES.b,
) -> Objective:
    """Return the strictly proper asymmetric loss of six numbers."""
    return SPA(Side(zeta_pos, k_pos, b_pos), Side(zeta_neg, k_neg, b_neg))


def asymmetric(**options: Any) -> Objective:
    """Return the asymmetric loss of the options of its focusing."""
    return Asymmetric(Focusing(**options))


def with_phi(method: Method, sentence: str) -> Method:
    """Return the method read through phi: the right map, or as an option the printed one."""

    def make(*, phi: Literal["right", "printed"], **options: Any) -> Objective:
        return Asymmetric(Focusing(**options), phi=phi)

    return replace(
        method,
        make=make,
        probabilities="proper",
        sentence=sentence,
        source="Cheng and Vasconcelos, CVPR 2024, eqs. 13 to 15",
        changed={**method.changed, "phi": "right"},
    )


def with_pairs(method: Method, sentence: str, source: str) -> Method:
    """Return the method with the label-pair regulariser, which has a weight of its own."""

    def make(*, lpr_weight: float, **options: Any) -> Objective:
        return method.make(**options) + lpr_weight * LabelPairs()

    return replace(
        method,
        make=make,
        sentence=sentence,
        source=source,
        arguments=method.arguments or method.make,
        changed={**method.changed, "lpr_weight": 1.0},
        tuning={**method.tuning, "lpr_weight": (0.1, 0.3, 1.0, 3.0, 10.0)},
    )


def with_boost(method: Method, rate: float, name: str) -> Method:
    """Return the method with the head that boosts positive evidence, at its authors' rate."""
    return replace(
        method,
        sentence=f"As {name}, with a head that multiplies evidence for a label at a place by 5.",
        source="Kim et al., CVPR 2023 (BoostLU), the rate of their code",
        head="boostlu",
        changed={**method.changed, "rate": rate},
    )


def with_term(bce: Method, term: type[Term], weight: float, **stated: Any) -> Method:
    """Return binary cross-entropy with a term of its own weight; ``stated`` says what it is."""

    def make(*, term_weight: float, **options: Any) -> Objective:
        return BCE(**options) + term_weight * term()

    return replace(
        bce,
        make=make,
        arguments=BCE,
        changed={"term_weight": weight},
        tuning={"term_weight": (weight / 3, weight, 3 * weight)},
        **stated,
    )
