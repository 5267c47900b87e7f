"""BoostLU head; oracle: the published map, one image, label and place at a time."""

import pytest
import torch

from labelwise.methods import METHODS
from labelwise.models import HeadSpec
from labelwise.networks.heads import BoostHead, LinearHead


def maps():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 6, 2, 4, generator=generator, dtype=torch.float64)


def slow(head, features, alpha):
    """Return the logits (B, K): a place above 0 counts alpha times, then the mean over places."""
    weight, bias = head.classifier.weight.tolist(), head.classifier.bias.tolist()
    logits = []
    for image in features.flatten(2).tolist():
        row = []
        for w, b in zip(weight, bias, strict=True):
            found = [
                sum(a * x for a, x in zip(w, place, strict=True)) + b
                for place in zip(*image, strict=True)
            ]
            row.append(sum(alpha * a if a > 0 else a for a in found) / len(found))
        logits.append(row)
    return torch.tensor(logits, dtype=torch.float64)


@pytest.mark.parametrize("alpha", [1.0, 2.5, 5.0])
def test_logits_are_the_published_ones_in_training_and_after(alpha):
    torch.manual_seed(1)
    head, features = BoostHead(6, 4, alpha=alpha).double(), maps()
    for mode in (True, False):
        torch.testing.assert_close(head.train(mode)(features).logits, slow(head, features, alpha))


def test_five_is_the_published_alpha():
    torch.manual_seed(1)
    head, features = BoostHead(6, 4).double(), maps()
    torch.testing.assert_close(head(features).logits, slow(head, features, 5.0))


def test_boosting_the_answers_alone_trains_the_linear_head():
    torch.manual_seed(1)
    head, linear = BoostHead(6, 4, boosts="answers").double(), LinearHead(6, 4).double()
    linear.load_state_dict(head.state_dict())
    features = maps()
    torch.testing.assert_close(head.train()(features).logits, linear(features).logits)
    torch.testing.assert_close(head.eval()(features).logits, slow(head, features, 5.0))


def test_gradients_are_those_of_the_formula():
    torch.manual_seed(1)
    head = BoostHead(6, 4).double()
    assert torch.autograd.gradcheck(lambda x: head(x).logits, maps().requires_grad_())


@pytest.mark.parametrize("boosts", ["always", "answers"])
def test_training_starts_at_the_logits_it_is_told(boosts):
    told = torch.tensor([-3.0, 0.0, 2.0])
    head = BoostHead(6, 3, boosts=boosts).train()
    head.start_at(told)
    torch.testing.assert_close(head(torch.zeros(2, 6, 2, 2)).logits, told.expand(2, 3))


def test_it_takes_over_how_features_were_standardised():
    head, features = BoostHead(6, 4).double(), maps()
    mean, scale = torch.arange(6.0).double(), torch.linspace(0.5, 2, 6).double()
    standard = (features - mean.view(-1, 1, 1)) / scale.view(-1, 1, 1)
    expected = head(standard).logits
    assert head.absorbs
    assert not head.pools  # f comes before the mean
    head.absorb_scaling(mean, scale)
    torch.testing.assert_close(head(features).logits, expected)


def test_it_is_the_head_of_three_methods_and_survives_as_plain_data():
    boosted = {name for name, method in METHODS.items() if method.head == "boostlu"}
    assert boosted == {"ll-r+boostlu", "ll-ct+boostlu", "ll-cp+boostlu"}
    spec = HeadSpec("boostlu", {"alpha": 2.5})
    head = spec.make(6, 4).double().eval()
    assert isinstance(head, BoostHead)
    torch.testing.assert_close(head(maps()).logits, slow(head, maps(), 2.5))


def test_senseless_settings_are_refused():
    with pytest.raises(ValueError, match=r"alpha must be at least 1, got 0\.5"):
        BoostHead(6, 4, alpha=0.5)
    with pytest.raises(ValueError, match="alpha must be at least 1, got nan"):
        BoostHead(6, 4, alpha=float("nan"))
    with pytest.raises(ValueError, match="boosts must be one of"):
        BoostHead(6, 4, boosts="never")
