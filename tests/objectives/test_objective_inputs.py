"""Bad input is refused with the rule and the value; bare tensors and Targets mean the same."""

import pytest
import torch
from contract import example
from torch.nn.functional import binary_cross_entropy_with_logits

from labelwise.methods import make_objective
from labelwise.objectives import BCE, SPA, LabelPairs, Sum
from labelwise.types import DatasetFacts, Outputs, Targets

LOGITS, LABELS = example()
FACTS = DatasetFacts(100, 3, 1.0, (0.1, 0.2, 0.3))


def test_bare_tensors_and_named_ones_agree():
    observed = torch.rand(6, 5) < 0.5
    for objective in (BCE(), SPA() + 1.0 * LabelPairs()):
        bare = objective(LOGITS, LABELS, observed)
        assert bare == objective(Outputs(LOGITS), Targets(LABELS, observed))


@pytest.mark.parametrize(
    ("logits", "labels", "observed", "error", "message"),
    [
        (LOGITS[0], LABELS, None, ValueError, r"logits must be \(B, K\), got shape \(5,\)"),
        (LOGITS, torch.arange(6), None, ValueError, r"matrix of 0 and 1, got .*one_hot\(ids, 5\)"),
        (LOGITS, LABELS[:, :4], None, ValueError, r"shape of the logits \(6, 5\), got \(6, 4\)"),
        (LOGITS, LABELS * 3, None, ValueError, r"labels must lie in \[0, 1\], got 3.0"),
        (LOGITS, LABELS - 1, None, ValueError, r"labels must lie in \[0, 1\], got -1.0"),
        (LOGITS, LABELS * float("nan"), None, ValueError, "labels must lie in .*got nan"),
        (
            LOGITS,
            LABELS,
            LABELS * 0 + 2,
            ValueError,
            "boolean, or 0 and 1, got 2",
        ),
        (LOGITS, LABELS, LABELS[:5] > 0, ValueError, r"observed must have .* got \(5, 5\)"),
    ],
)
def test_refusals(logits, labels, observed, error, message):
    with pytest.raises(error, match=message):
        BCE()(logits, labels, observed)


def test_a_magic_number_under_the_mask_is_no_error():
    observed = torch.rand(6, 5) < 0.5
    masked = torch.where(observed, LABELS, -1.0)
    torch.testing.assert_close(BCE()(LOGITS, masked, observed), BCE()(LOGITS, LABELS, observed))


def test_integer_labels_are_welcome():
    assert BCE()(LOGITS, LABELS.to(torch.uint8)) == BCE()(LOGITS, LABELS)


def test_bce_per_image_is_the_sum_over_labels():
    logits, labels = torch.randn(6, 4), (torch.rand(6, 4) < 0.4).float()
    observed = torch.rand(6, 4) < 0.7
    observed[0] = False
    expected = binary_cross_entropy_with_logits(logits, labels, reduction="none")
    expected = (expected * observed).sum(dim=1)[observed.any(dim=1)].mean()
    torch.testing.assert_close(BCE(per="image")(logits, labels, observed), expected)
    with pytest.raises(ValueError, match="per must be"):
        BCE(per="batch")


@pytest.mark.parametrize("name", ["bce", "spa", "focal", "asl", "asl+phi", "spa+lpr", "an"])
def test_the_loss_is_at_rest_where_labels_of_a_share_start(name):
    priors = torch.tensor([0.05, 0.3, 0.6], dtype=torch.float64)
    objective = make_objective(name, FACTS)
    start = objective.start_logits(priors).requires_grad_()
    main = objective.main if isinstance(objective, Sum) else objective
    main(start[None], priors[None]).backward()
    torch.testing.assert_close(start.grad, torch.zeros(3, dtype=torch.float64), atol=1e-6, rtol=0)


def test_methods_that_only_rank_start_at_the_log_odds():
    priors = torch.tensor([0.1, 0.2, 0.3])
    start = make_objective("two-way", FACTS).start_logits(priors)
    torch.testing.assert_close(start, torch.logit(priors.double()))
    start = make_objective("quasibinary", FACTS).start_logits(priors)
    torch.testing.assert_close(start, priors.double().log())
