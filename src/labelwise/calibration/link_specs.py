"""Links as plain data, and back, beside the rules of :mod:`labelwise.decide.rules`."""

from collections.abc import Mapping
from typing import Any

from labelwise.calibration.adjusted import ZeroShare
from labelwise.calibration.few import AveragedCurves
from labelwise.calibration.isotonic import Histogram, Isotonic
from labelwise.calibration.regression import Beta, Platt, Temperature
from labelwise.links import (
    Consistent,
    FocalMarginLink,
    Grouped,
    Link,
    PhiLink,
    QuasibinaryLink,
    Sigmoid,
    Softmax,
    SoftmaxOrNoneLink,
    SPALink,
    WeightedSigmoid,
    made_from_spec,
)

LINKS: dict[str, type[Link]] = {
    link.kind: link
    for link in (
        *(Sigmoid, WeightedSigmoid, Softmax, SoftmaxOrNoneLink, PhiLink, SPALink, QuasibinaryLink),
        FocalMarginLink,
        *(AveragedCurves, Beta, Histogram, Isotonic, Platt, Temperature, ZeroShare, Consistent),
        Grouped,
    )
}


def link_to_spec(link: Link) -> dict[str, Any]:
    """Return a link as plain data, nested links included."""
    spec = {
        key: link_to_spec(value) if isinstance(value, Link) else value
        for key, value in link.spec().items()
    }
    return {"kind": link.kind, **spec}


def link_from_spec(spec: Mapping[str, Any]) -> Link:
    """Return the link that ``link_to_spec`` described."""
    return made_from_spec(spec, LINKS, "link")
