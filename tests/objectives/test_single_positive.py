"""Single-positive losses against golden vectors, a slow double loop and their degenerate cases."""

import pytest
import torch
from golden import assert_golden, cases, tensor
from torch.nn.functional import one_hot

from labelwise.objectives import AN, EPR, IU, PR, WAN, LabelPairs, SmoothedBCE

CODE = {"eps_mode": "code"}
OF_MLSPL = {
    "an": lambda **o: AN(**o),
    "an_ls": lambda **o: AN(smoothing=0.1, **o),
    "wan": lambda **o: WAN(**o),
    "epr": lambda **o: EPR(2.0, **o),
    "pr": lambda **o: PR(),
}


def logits_and_labels(case):
    return torch.logit(tensor(case["inputs"]["preds"])), tensor(case["inputs"]["labels_obs"])


def random_batch(seed=0, rows=5, labels=7):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, labels, generator=generator, dtype=torch.float64)
    return logits, (torch.rand(rows, labels, generator=generator) < 0.3).double()


@pytest.mark.parametrize("name", OF_MLSPL)
def test_golden(name):
    case = cases(f"mlspl_{name}")["2x4"]
    batch = logits_and_labels(case)
    assert_golden(OF_MLSPL[name](**CODE)(*batch), case["expected"]["total"])
    assert_golden(OF_MLSPL[name]()(*batch), case["expected"]["total_with_eps0"])


def test_golden_iun_knows_the_true_negatives_only():
    case = cases("mlspl_iun")["2x4"]
    logits, labels = logits_and_labels(case)
    observed = (labels == 1) | (tensor(case["inputs"]["labels_true"]) == -1)
    assert_golden(IU(**CODE)(logits, labels, observed), case["expected"]["total"])
    assert_golden(IU()(logits, labels, observed), case["expected"]["total_with_eps0"])


def test_golden_complete_labels():
    for name, options in (("bce_ls", {}), ("bce", {"smoothing": 0.0})):
        case = cases(f"mlspl_{name}")["2x4 clean"]
        loss = SmoothedBCE(**options, **CODE)(*logits_and_labels(case))
        assert_golden(loss, case["expected"]["total"])


def test_golden_of_garcin_et_al():
    case = cases("avgk_an")["eq. (5) batch mean"]
    logits, labels = tensor(case["inputs"]["logits"]), one_hot(torch.tensor([0, 1, 0]), 4)
    assert_golden(WAN(per="image")(logits, labels), case["expected"]["loss"])
    assert_golden(4 * WAN()(logits, labels), case["expected"]["loss"])
    case = cases("avgk_epr")["eq. (8)"]
    assert_golden(EPR(2, weight=0.5, per="image")(logits, labels), case["expected"]["loss"])


@pytest.mark.parametrize("name", OF_MLSPL)
def test_unknown_and_absent_are_read_alike(name):
    logits, labels = random_batch()
    plain = OF_MLSPL[name]()(logits, labels)
    hidden = torch.where(labels == 1, labels, float("nan"))
    torch.testing.assert_close(OF_MLSPL[name]()(logits, hidden, labels == 1), plain)


def test_smoothed_bce_leaves_unknown_entries_out_of_the_mean_but_iu_counts_them():
    logits, labels = random_batch()
    observed = torch.ones_like(labels, dtype=torch.bool)
    observed[:, 3:] = False
    torch.testing.assert_close(
        SmoothedBCE()(logits, labels, observed), SmoothedBCE()(logits[:, :3], labels[:, :3])
    )
    torch.testing.assert_close(
        IU()(logits, labels, observed), IU()(logits[:, :3], labels[:, :3]) * 3 / 7
    )


def test_a_term_added_to_them_still_leaves_unknown_entries_out():
    logits, labels = random_batch()
    observed = torch.ones_like(labels, dtype=torch.bool)
    observed[:, 3:] = False
    both = AN() + LabelPairs()
    assert both.reads_unknown
    pairs = both(logits, labels, observed) - AN()(logits, labels, observed)
    moved = torch.where(observed, logits, 9.0)
    again = both(moved, labels, observed) - AN()(moved, labels, observed)
    torch.testing.assert_close(pairs, again)
