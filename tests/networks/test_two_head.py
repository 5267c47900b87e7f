"""Linear and two-head against plain linear maps, and all heads against the catalogue."""

import pytest
import torch

from labelwise.methods import HEADS, METHODS, make_objective
from labelwise.networks.heads import LinearHead, TwoHead
from labelwise.types import DatasetFacts, Targets


def test_both_maps_read_the_same_mean_features():
    head, features = TwoHead(3, 4), torch.randn(2, 3, 5, 6)
    outputs = head(features)
    pooled = torch.stack([image.flatten(1).mean(dim=1) for image in features])
    for found, layer in (
        (outputs.logits, head.classifier),
        (outputs.aux["proposal"], head.proposer),
    ):
        torch.testing.assert_close(found, pooled @ layer.weight.T + layer.bias)
    assert not torch.allclose(outputs.logits, outputs.aux["proposal"])
    linear = LinearHead(3, 4)
    linear.classifier.load_state_dict(head.classifier.state_dict())
    torch.testing.assert_close(linear(features).logits, outputs.logits)


@pytest.mark.parametrize("name", HEADS)
def test_every_head_gives_what_it_names_and_starts_where_told(name):
    head = HEADS[name](8, 5).eval()
    outputs = head(torch.randn(2, 8, 3, 3))
    assert outputs.logits.shape == (2, 5)
    assert tuple(outputs.aux) == head.aux
    head.start_at(-torch.arange(5.0))
    assert head.classifier.bias.tolist() == [0, -1, -2, -3, -4]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_names_a_head_that_gives_what_it_reads(name):
    head = HEADS[METHODS[name].head](8, 5)
    objective = make_objective(name, DatasetFacts(2, 5, 1.5, (0.3,) * 5))
    targets = Targets(torch.eye(5)[:2], None, torch.arange(2))
    assert objective(head(torch.randn(2, 8, 3, 3)), targets).isfinite()
