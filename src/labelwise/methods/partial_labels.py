"""Methods for images of which few labels are known, and for sets of a wanted size."""

from typing import Any

from labelwise.methods.method import Method
from labelwise.objectives import (
    AN,
    EPR,
    IU,
    PR,
    ROLE,
    WAN,
    AverageK,
    NoisedTopK,
    Objective,
    SmoothedBCE,
    SmoothTopK,
)
from labelwise.types import DatasetFacts

__all__ = ["PARTIAL_LABELS"]


def _count(facts: DatasetFacts, k: float | None) -> float:
    """Return the mean number of labels an image has: as told, else as the table says."""
    return facts.mean_labels if k is None else k


def _epr(facts: DatasetFacts, *, k: float | None, **o: Any) -> Objective:
    return EPR(_count(facts, k), **o)


def _role(facts: DatasetFacts, *, k: float | None, **o: Any) -> Objective:
    return ROLE(facts.num_images, facts.num_labels, _count(facts, k), **o)


_EXACT = {"eps_mode": "stable"}

PARTIAL_LABELS: dict[str, Method] = {
    "an": Method(
        make=lambda facts, **o: AN(**o),
        probabilities="improper",
        sentence="Assume negative: every label not known to be present is taken as absent.",
        source="Cole et al., CVPR 2021",
        options={"smoothing": 0.0, **_EXACT},
    ),
    "an-ls": Method(
        make=lambda facts, **o: AN(**o),
        probabilities="improper",
        sentence="Assume negative with label smoothing: wrong assumptions hurt less.",
        source="Cole et al., CVPR 2021",
        options={"smoothing": 0.1, **_EXACT},
    ),
    "wan": Method(
        make=lambda facts, **o: WAN(**o),
        probabilities="improper",
        sentence="Weak assume negative: all assumed absences together weigh one presence.",
        source="Cole et al., CVPR 2021; Garcin et al., two-head loss, eq. 5 (per='image')",
        options={"per": "entry", **_EXACT},
    ),
    "epr": Method(
        make=_epr,
        probabilities="improper",
        sentence="Known presences only, and the mean number of predicted labels held near k.",
        source="Cole et al., CVPR 2021; Garcin et al., two-head loss, eq. 8 (per='image')",
        options={"k": None, "weight": 1.0, "per": "entry", **_EXACT},
    ),
    "pr": Method(
        make=lambda facts: PR(),
        probabilities="improper",
        sentence="Pairwise ranking: known presences above everything unknown.",
        source="Cole et al., CVPR 2021",
    ),
    "iun": Method(
        make=lambda facts, **o: IU(**o),
        probabilities="improper",
        sentence="Ignores hidden presences; for tables that know all absences, as a bound.",
        source="Cole et al., CVPR 2021",
        options=_EXACT,
    ),
    "iu": Method(
        make=lambda facts, **o: IU(**o),
        probabilities="improper",
        sentence="Cross-entropy at the known labels; unknown ones count as no loss.",
        source="Cole et al., CVPR 2021",
        options=_EXACT,
    ),
    "bce-ls": Method(
        make=lambda facts, **o: SmoothedBCE(**o),
        probabilities="improper",
        sentence="Binary cross-entropy with label smoothing, on complete labels.",
        source="Cole et al., CVPR 2021",
        options={"smoothing": 0.1, **_EXACT},
    ),
    "role": Method(
        make=_role,
        probabilities="improper",
        sentence="Estimates the unknown labels of every training image while it trains.",
        source="Cole et al., CVPR 2021",
        options={"k": None, "table": "memory", "start": 0.6, "seed": 0, **_EXACT},
    ),
    "top-k": Method(
        make=lambda facts, **o: NoisedTopK(**o),
        probabilities="improper",
        sentence="A hinge that wants the label among the k highest scores, smoothed by noise.",
        source="Garcin et al., ICML 2022",
        options={"k": 2, "eps": 0.2, "draws": 10, "seed": 0},
    ),
    "smooth-top-k": Method(
        make=lambda facts, **o: SmoothTopK(**o),
        probabilities="improper",
        sentence="A smooth margin that wants the label among the k highest scores.",
        source="Berrada et al., ICLR 2018",
        options={"k": 2, "tau": 1.0, "alpha": 1.0},
    ),
    "average-k": Method(
        make=lambda facts, **o: AverageK(**o),
        probabilities="improper",
        sentence="One head proposes further labels, the other learns them: k an image on average.",
        source="Garcin et al., two-head loss, eqs. 10 to 15",
        head="two-head",
        options={"k": 2.0, "alpha": 1.0},
    ),
}
