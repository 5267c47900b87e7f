"""Links and rules as ONNX graphs. Oracle: the links and rules themselves, in float64."""

import numpy as np
import pytest
import torch
from export_samples import LABELS, base_links, fitted_links, rules
from onnx import TensorProto, helper

from labelwise.calibration import CALIBRATORS
from labelwise.exports.graph import Graph
from labelwise.exports.links import LINK_OPS, RULE_OPS, default_thresholds, write_link, write_rule
from labelwise.methods import LINKS, RULES
from labelwise.models.graph_file import open_session

BASE_LINKS, FITTED_LINKS = base_links(), fitted_links()
RANDOM = np.random.default_rng(1).normal(0, 4, (200, LABELS))
EXTREME = np.array([[-1e4, -90, 0, 90, 1e4], [0, 0, 0, 0, 0], [-700, -700, -700, -700, -700]])
LOGITS = np.concatenate([RANDOM, EXTREME, 30 * RANDOM[:50]]).astype(np.float32)


def run(graph, values, *outputs):
    """Run a graph from the float64 input ``x`` to outputs of any kind."""
    names = [graph.named(one, f"out{at}") for at, one in enumerate(outputs)]
    info = [helper.make_empty_tensor_value_info(name) for name in names]
    start = helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["n", values.shape[1]])
    body = graph.body("test", [start], info)
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return open_session(model, threads=1).run(names, {"x": values})


def test_every_kind_in_the_catalogues_can_be_written():
    for pair in (CALIBRATORS, [*BASE_LINKS, "nothing"]):
        assert all(any(name in made.split(" of ") for made in FITTED_LINKS) for name in pair)
    samples = [*BASE_LINKS.values(), *FITTED_LINKS.values()]
    assert set(LINK_OPS) == set(LINKS) == {link.kind for link in samples}
    assert set(RULE_OPS) == set(RULES) == {rule.kind for rule in rules().values()}


@pytest.mark.parametrize("name", [*BASE_LINKS, *FITTED_LINKS])
def test_probabilities_are_those_of_the_link(name):
    link = BASE_LINKS[name] if name in BASE_LINKS else FITTED_LINKS[name]
    values = torch.from_numpy(LOGITS).double()
    graph = Graph()
    p, none = run(graph, values.numpy(), *write_link(graph, link, "x"))
    np.testing.assert_allclose(p, link(values), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(none, link.log_none(values).exp(), rtol=1e-8, atol=1e-12)


def test_a_link_is_written_once_for_its_probabilities_and_for_none():
    graph = Graph()
    write_link(graph, BASE_LINKS["sigmoid"], "x")
    # Its formula has |v| twice: in log p and in log(1 - p).
    assert [node.op_type for node in graph.nodes].count("Abs") == 2


@pytest.mark.parametrize("name", rules())
def test_sets_are_those_of_the_rule(name):
    rule = rules()[name]
    rng = np.random.default_rng(2)
    spread = rng.beta(0.3, 0.9, (300, LABELS))
    ties = rng.integers(0, 3, (100, LABELS)) / 2  # equal, zero and one
    probs = np.concatenate([spread, ties, np.zeros((1, LABELS)), np.ones((1, LABELS))])
    graph = Graph()
    thresholds = default_thresholds(rule, LABELS)
    given = None if thresholds is None else graph.constant(thresholds)
    (sets,) = run(graph, probs, write_rule(graph, rule, "x", given))
    np.testing.assert_array_equal(sets, rule(probs))


def test_expected_f_of_many_labels_cuts_its_laws_without_harm():
    rule, rng = rules()["expected F"], np.random.default_rng(3)
    probs = rng.beta(0.2, 4, (20, 120))
    graph = Graph()
    (sets,) = run(graph, probs, write_rule(graph, rule, "x", None))
    np.testing.assert_array_equal(sets, rule(probs))
    assert sets.any()
