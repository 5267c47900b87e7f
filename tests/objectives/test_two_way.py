"""Oracles: golden vectors, softmax cross-entropy, LSEP, a loop, shift invariance."""

import golden
import pytest
import torch
from contract import example, value_and_grad

from labelwise.errors import SettingsError
from labelwise.objectives import LSEP, TwoWay, two_way_unit
from labelwise.objectives.ops import split_labels

CASES = golden.cases("twl")


def loss(side, logits, labels, observed=None, t_pos=4.0, t_neg=1.0, margin=0.0):
    objective = TwoWay(side=side, temperature_pos=t_pos, temperature_neg=t_neg, margin=margin)
    return objective(logits, labels, observed)


@pytest.mark.parametrize("name", [n for n in CASES if n.startswith(("2x4", "zero", "ignored"))])
def test_golden_terms(name):
    logits, labels, observed = golden.batch(CASES[name])
    expected = CASES[name]["expected"]
    golden.assert_golden(loss("sample", logits, labels, observed), expected["sample_term"])
    golden.assert_golden(loss("class", logits, labels, observed), expected["class_term"])
    golden.assert_golden(loss("both", logits, labels, observed), expected["total"])
    present, absent = split_labels(labels, observed)
    for dim, key in [(1, "per_sample"), (0, "per_class")]:
        units = two_way_unit(logits, present, absent, dim=dim)
        golden.assert_golden(units[present.any(dim=dim)], expected[key])


def test_golden_special_cases():
    case = CASES["single positive: temperature T_pos has no effect"]
    logits, labels, _ = golden.batch(case)
    for t_pos, expected in zip(
        case["params"]["T_pos"], case["expected"]["sample_term"], strict=True
    ):
        golden.assert_golden(loss("sample", logits, labels, t_pos=t_pos), expected)
    case = CASES["hand-checkable: x_p=(0,0), x_n=(0,): softplus(T log 2)"]
    logits, labels, _ = golden.batch(case)
    golden.assert_golden(loss("sample", logits, labels), case["expected"]["closed_form"])
    case = CASES["margin bias eps (supp. eq. iii), T_pos=T_neg=1"]
    logits, labels, _ = golden.batch(case)
    for margin, expected in zip(
        case["params"]["eps"], case["expected"]["sample_term"], strict=True
    ):
        golden.assert_golden(loss("sample", logits, labels, t_pos=1.0, margin=margin), expected)
    case = CASES["global shift invariance"]
    logits, labels, _ = golden.batch(case)
    golden.assert_golden(loss("both", logits, labels), case["expected"]["total"])


def test_golden_gradient():
    case = CASES["gradient, 2x4 defaults"]
    logits, labels, _ = golden.batch(case)
    loss("both", logits, labels).backward()
    golden.assert_golden(logits.grad, case["expected"]["grad"])


def test_one_label_is_softmax_cross_entropy():
    logits, chosen = torch.randn(7, 5, dtype=torch.float64), torch.randint(5, (7,))
    labels = torch.nn.functional.one_hot(chosen, 5).double()
    expected = torch.nn.functional.cross_entropy(logits, chosen)
    torch.testing.assert_close(loss("sample", logits, labels), expected)


def test_unit_temperatures_are_lsep():
    logits, labels = example()
    keep = labels.sum(dim=1) > 0  # LSEP counts images without labels, as 0
    expected = LSEP()(logits[keep], labels[keep])
    torch.testing.assert_close(loss("sample", logits, labels, t_pos=1.0), expected)


def test_a_common_shift_changes_nothing_and_image_gradients_sum_to_zero():
    logits, labels = example()
    once, shifted = loss("both", logits, labels), loss("both", logits + 3.7, labels)
    torch.testing.assert_close(once, shifted)
    _, grad = value_and_grad(TwoWay(side="sample"), logits, labels)
    torch.testing.assert_close(grad.sum(dim=1), torch.zeros(6, dtype=torch.float64))


def test_masks_do_not_leak_where_logits_pass_a_hundred():
    logits = torch.tensor([[0.0, -500.0, 3.0]], dtype=torch.float64)
    labels = torch.tensor([[1.0, 0.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(loss("sample", logits, labels).item(), 0.0)


def test_a_batch_without_labels_is_zero_with_a_gradient():
    value, grad = value_and_grad(TwoWay(), torch.randn(3, 4), torch.zeros(3, 4))
    assert value == 0
    assert (grad == 0).all()


def test_only_the_class_side_couples_the_batch():
    assert TwoWay().couples_batch
    assert not TwoWay(side="sample").couples_batch


def test_rejects_bad_options_and_probabilities():
    with pytest.raises(ValueError, match="side must be one of"):
        TwoWay(side="left")
    with pytest.raises(ValueError, match="must be positive, got 0 and"):
        TwoWay(temperature_pos=0)
    with pytest.raises(SettingsError, match=r"TwoWay ranks labels .* calibrate\.platt"):
        TwoWay().probabilities(torch.zeros(1, 3))
