"""Oracles: golden vectors, identities of C."""

from math import exp, inf, isnan, log

import golden
import pytest
import torch
from contract import example, value_and_grad

from labelwise.errors import TrainingError
from labelwise.learn.methods import link_from_spec, link_to_spec
from labelwise.learn.objectives import LabelPairs, Quasibinary, QuasibinaryLink, precise_normalizer
from labelwise.learn.objectives.quasibinary import TrackedLink, log_normalizer

CASES = golden.cases("quasibinary")
BATCHES = [name for name in CASES if "targets" in CASES[name]["inputs"]]
GRADIENTS = {"literal": "grad_through_C", "detached": "grad_penalty_C_detached"}


@pytest.mark.parametrize("name", BATCHES)
def test_golden_batches(name):
    expected = CASES[name]["expected"]
    for penalty, key in GRADIENTS.items():
        logits, labels, _ = golden.batch(CASES[name])
        loss = Quasibinary(penalty=penalty)(logits, labels)
        loss.backward()
        golden.assert_golden(loss, expected["loss"])
        golden.assert_golden(logits.grad, expected[key])
        log_c = log_normalizer(logits, labels)
        golden.assert_golden(log_c, expected["logC"])
        golden.assert_golden(logits - log_c, expected["log_q"])
        golden.assert_golden((logits - log_c).exp(), expected["q"])


def test_golden_probabilities_are_clipped_and_the_average_moves():
    case = CASES["test-time probability with clipping"]
    link = QuasibinaryLink(log(case["inputs"]["C_mavg"]))
    golden.assert_golden(link(golden.tensor(case["inputs"]["logits"])), case["expected"]["prob"])
    link = TrackedLink()
    for c, expected in [(10.0, 10.0), (20.0, 11.0), (5.0, 10.4)]:
        link.track(golden.tensor(c).log())
        golden.assert_golden(link.log_normalizer.exp(), expected)
    link, logits = QuasibinaryLink(1.0), torch.tensor([-1e4, 0.0, 1.0, 1e4])
    log_p, log_q = link.log_probs(logits)
    assert (log_p.tolist(), log_q[2:].tolist()) == ([-10001.0, -1.0, 0.0, 0.0], [-inf] * 2)
    assert link.log_odds(logits).isfinite().all()
    torch.testing.assert_close(link(link.logits_at(torch.tensor([0.3]))).item(), 0.3)


def test_a_batch_without_labels_keeps_the_average_and_only_pays_the_penalty():
    objective = Quasibinary()
    logits = torch.tensor([[1.0, -1.0], [2.0, 0.5]])
    loss, grad = value_and_grad(objective, logits, torch.zeros(2, 2))
    assert loss == grad.abs().sum() == 0
    assert objective.link.log_normalizer.isnan()
    objective.link.track(torch.tensor(0.75))
    loss, grad = value_and_grad(objective, logits, torch.zeros(2, 2))
    torch.testing.assert_close(loss.item(), (0.25 + 1.25) / 2)
    torch.testing.assert_close(grad, torch.tensor([[0.5, 0.0], [0.5, 0.0]]))
    assert objective.link.log_normalizer == 0.75


def test_the_average_moves_only_in_training():
    objective = Quasibinary()
    logits, labels = example()
    objective.eval()(logits, labels)
    assert objective.link.log_normalizer.isnan()
    with pytest.raises(ValueError, match="must have seen a batch with labels"):
        objective.probabilities(logits)
    assert isnan(link_from_spec(link_to_spec(QuasibinaryLink())).log_normalizer)
    objective.train()(logits, labels)
    torch.testing.assert_close(objective.link.log_normalizer, log_normalizer(logits, labels))
    assert "link.log_normalizer" in objective.state_dict()


def test_precise_normalizer_is_the_c_of_all_rows():
    logits, labels = example(rows=40)
    link = precise_normalizer(logits, labels)
    for objective in (Quasibinary(), Quasibinary() + 0.5 * LabelPairs()):  # a sum hands it on
        assert objective.final_link(logits, labels).log_normalizer == link.log_normalizer
    torch.testing.assert_close((logits - link.log_normalizer).exp().sum(), labels.sum())
    observed = torch.rand(40, 5) < 0.5
    part = precise_normalizer(logits, labels, observed).log_normalizer
    expected = logits[observed].exp().sum() / labels[observed].sum()
    assert exp(part) == pytest.approx(expected.item())
    with pytest.raises(ValueError, match="at least one observed label"):
        precise_normalizer(logits, torch.zeros_like(labels))
    moving = Quasibinary(test_normalizer="moving")
    moving(logits, labels), moving(2 * logits, labels)
    assert moving.final_link(logits, labels).log_normalizer == moving.link.log_normalizer.item()


def test_centred_takes_only_the_mean_out_of_detached_whose_logits_may_run_away():
    logits, labels = example(rows=12, seed=4)
    kinds = (Quasibinary(penalty=penalty) for penalty in ("detached", "centred"))
    detached, centred = (value_and_grad(kind, logits, labels)[1] for kind in kinds)
    torch.testing.assert_close(centred, detached - detached.mean())
    Quasibinary(penalty="centred")(logits - 20, labels)
    with pytest.raises(TrainingError, match="use penalty='centred'"):
        Quasibinary(penalty="detached")(logits - 20, labels)
    Quasibinary(penalty="detached").eval()(logits - 20, labels)
