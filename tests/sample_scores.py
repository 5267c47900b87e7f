"""Small tables of predictions whose truth is known, for tests of evaluation and report."""

from dataclasses import replace

import pytest
import torch

from labelwise.decide import Rule
from labelwise.evaluation import evaluate
from labelwise.learn.methods import link_to_spec, rule_to_spec
from labelwise.links import Link, Sigmoid
from labelwise.models import HeadSpec, ModelSpec
from labelwise.pictures import Transform
from labelwise.predictions import Predictions

NAMES = ("dog", "cat", "beach", "car", "<b>tree & co</b>")


def sample(rows: int = 400, *, unknown: float = 0.0, seed: int = 0, names=NAMES) -> Predictions:
    """Return overconfident logits: the true log-odds are half of what they claim."""
    generator = torch.Generator().manual_seed(seed)
    offset = torch.linspace(-0.5, -2.5, len(names))
    odds = torch.randn(rows, len(names), generator=generator) * 2 + offset
    chance = torch.rand(rows, len(names), generator=generator)
    labels = (chance < odds.sigmoid()).to(torch.uint8)
    observed = None
    if unknown:
        observed = torch.rand(rows, len(names), generator=generator) >= unknown
    ids = [f"image-{row}" for row in range(rows)]
    return Predictions(ids, 2 * odds, labels, observed, tuple(names), "test", Sigmoid())


def spec_of(names, link: Link | None, rule: Rule) -> ModelSpec:
    """Return the description of a model with these labels, link and rule, without its weights."""
    backbone = {"name": "small-cnn", "channels": 8}
    facts = {"labels": tuple(names), "backbone": backbone, "transform": Transform(32)}
    facts |= {"link": None if link is None else link_to_spec(link), "rule": rule_to_spec(rule)}
    return ModelSpec(head=HeadSpec("linear"), weights_sha256="0" * 64, **facts)


class Halved(Link):
    """The calibrated link of :func:`sample`."""

    kind = "halved"

    def log_probs(self, logits):
        return Sigmoid().log_probs(logits / 2)


WITHOUT_INTERVAL = ("mAP over labels", "ECE", "F1")  # where an evaluation comes from sums


def in_memory(predictions, link, rule):
    """Return the evaluation of all rows, without what sums cannot have."""
    whole = evaluate(predictions, link, rule, query_length=0)
    headline = tuple(
        replace(figure, low=None, high=None) if figure.name.startswith(WITHOUT_INTERVAL) else figure
        for figure in whole.headline
    )
    return replace(whole, headline=headline)


def assert_close(found, truth, place=""):
    """Compare plain data: numbers to 1e-9, words alike but for how intervals were made."""
    if isinstance(truth, dict):
        assert found.keys() == truth.keys(), place
        for key in truth.keys() - {"notes"}:
            assert_close(found[key], truth[key], f"{place}.{key}")
    elif isinstance(truth, tuple):
        assert len(found) == len(truth), place
        for row, (one, other) in enumerate(zip(found, truth, strict=True)):
            assert_close(one, other, f"{place}[{row}]")
    elif isinstance(truth, float):
        assert found == pytest.approx(truth, rel=1e-9, abs=1e-9), place
    elif isinstance(truth, str) and place.endswith("how"):
        assert _without_interval(found) == _without_interval(truth), place
    else:
        assert found == truth, place


def _without_interval(how):
    return how.partition(" Interval")[0].partition(" No interval")[0]
