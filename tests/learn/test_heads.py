"""Heads. Oracles: published forward passes written out slowly, golden vectors, torch's layers."""

import pytest
import torch
from golden import cases, tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import layer_norm, relu

from labelwise.errors import SettingsError
from labelwise.learn.heads import (
    BoostHead,
    LinearHead,
    MLDecoder,
    QueryDecoder,
    TwoHead,
    sine_position,
)
from labelwise.learn.methods import HEADS, METHODS, make_objective
from labelwise.types import DatasetFacts, Targets


def count(*modules):
    return sum(p.numel() for module in modules for p in module.parameters())


def maps():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 6, 2, 4, generator=generator, dtype=torch.float64)


def slow(head, features, alpha):
    """Return the logits (B, K): a place above 0 counts alpha times, then the mean over places."""
    weight, bias = head.classifier.weight, head.classifier.bias
    places = torch.einsum("kd,bdhw->hwbk", weight, features).flatten(0, 1) + bias
    return sum(place.clamp(min=0) * alpha + place.clamp(max=0) for place in places) / len(places)


def test_logits_are_the_published_ones_in_training_and_after():
    torch.manual_seed(1)
    features = maps()
    for options, training, after in (
        ({}, 5.0, 5.0),  # the published alpha
        ({"alpha": 2.5}, 2.5, 2.5),
        ({"boosts": "answers"}, 1.0, 5.0),  # trains the linear head
    ):
        head = BoostHead(6, 4, **options).double()
        for mode, alpha in ((True, training), (False, after)):
            found = head.train(mode)(features).logits
            torch.testing.assert_close(found, slow(head, features, alpha))
    linear = LinearHead(6, 4).double()
    linear.load_state_dict(head.state_dict())
    torch.testing.assert_close(linear(features).logits, slow(head, features, 1.0))


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


# Linear and two-head against plain linear maps, and all heads against the catalogue.


def test_both_maps_read_the_same_mean_features():
    head, features = TwoHead(3, 4), torch.randn(2, 3, 5, 6)
    outputs = head(features)
    pooled = features.mean(dim=(2, 3))
    proposal = outputs.aux["proposal"]
    for found, layer in ((outputs.logits, head.classifier), (proposal, head.proposer)):
        torch.testing.assert_close(found, pooled @ layer.weight.T + layer.bias)
    assert not torch.allclose(outputs.logits, proposal)
    linear = LinearHead(3, 4)
    linear.classifier.load_state_dict(head.classifier.state_dict())
    torch.testing.assert_close(linear(features).logits, outputs.logits)


@pytest.mark.parametrize("name", HEADS)
def test_every_head_gives_what_it_names_and_starts_where_told(name):
    head = HEADS[name](8, 5).eval()
    outputs = head(torch.randn(2, 8, 3, 3))
    assert (outputs.logits.shape, tuple(outputs.aux)) == ((2, 5), head.aux)
    head.start_at(-torch.arange(5.0))
    assert head.classifier.bias.tolist() == [0, -1, -2, -3, -4]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_names_a_head_that_gives_what_it_reads(name):
    head = HEADS[METHODS[name].head](8, 5)
    objective = make_objective(name, DatasetFacts(2, 5, 1.5, (0.3,) * 5))
    targets = Targets(torch.eye(5)[:2], None, torch.arange(2))
    assert objective(head(torch.randn(2, 8, 3, 3)), targets).isfinite()


# ML-Decoder; oracle: the published forward pass written out, one image and one query at a time.

SMALL = {"width": 8, "attention_heads": 2, "feedforward": 12, "dropout": 0.0}


def slow_state(trunk, features, query):
    """The state (width,) of one query before one feature map (D, H, W), by loops over heads."""
    memory = relu(features.flatten(1).T @ trunk.project.weight.T + trunk.project.bias)
    state = layer_norm(2 * query, query.shape, trunk.norm.weight, trunk.norm.bias)[None]
    return slow_layer(trunk.layer, state, state, memory, memory)[0]


@pytest.mark.parametrize(("labels", "queries"), [(5, None), (5, 2), (7, 3)])
def test_fixed_queries_decode_their_groups(labels, queries):
    torch.manual_seed(1)
    head = MLDecoder(6, labels, queries=queries, **SMALL).double()
    head.start_at(torch.arange(labels).double())
    features = maps()
    share = -(-labels // (queries or labels))
    for image, logits in zip(features, head(features).logits, strict=True):
        for label in range(labels):
            state = slow_state(head.trunk, image, head.queries[label // share])
            weight = head.classifier.weight[label // share, label % share]
            torch.testing.assert_close(logits[label], weight @ state + label)


def test_published_sizes_and_what_is_not_trained():
    head = MLDecoder(2048, 1000)
    assert head.queries.shape == (100, 768)
    assert not any(parameter is head.queries for parameter in head.parameters())
    width, hidden = 768, 2048
    memory = 2048 * width + width
    attention = 4 * width * width + 4 * width
    feedforward = 2 * width * hidden + hidden + width
    norms, labels = 3 * 2 * width, 1000 * width + 1000
    assert count(head) == memory + attention + feedforward + norms + labels


# The query decoder.


def test_golden_position():
    case = cases("q2l_position")["d=8,H=2,W=3"]
    code = sine_position(8, 2, 3, torch.zeros(()))
    torch.testing.assert_close(code.double(), tensor(case["expected"]["pe"]), rtol=0, atol=1e-6)
    assert sine_position(8, 2, 3, torch.zeros((), dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_golden_numbers_of_parameters():
    large, small = (case["expected"] for case in cases("q2l_params").values())
    with torch.device("meta"):
        head = QueryDecoder(2048, 80)
    assert count(head.encoder[0]) == large["encoder_layer"]
    assert count(head.decoder[1]) == large["decoder_layer_no_selfattn"]
    assert count(head.norm) == large["final_norm"]
    assert head.queries.numel() == large["query_embed"]
    assert count(head.classifier) == large["group_linear"]
    assert count(head) == large["total_head_identity_proj"]
    head = QueryDecoder(64, 5)
    assert count(head.encoder, head.decoder, head.norm) == small["transformer_params"]


def slow_attention(layer, query, key, value):
    """Return one image's attention (n, D), head by head and query by query."""
    width, heads = query.shape[1], layer.num_heads
    weights, biases = layer.in_proj_weight.chunk(3), layer.in_proj_bias.chunk(3)
    query, key, value = (
        x @ w.T + b for x, w, b in zip((query, key, value), weights, biases, strict=True)
    )
    size = width // heads
    seen = torch.zeros_like(query)
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        for row in range(len(query)):
            scores = torch.stack([query[row, part] @ k[part] for k in key]) / size**0.5
            chance = scores.exp() / scores.exp().sum()
            seen[row, part] = sum(c * v[part] for c, v in zip(chance, value, strict=True))
    return seen @ layer.out_proj.weight.T + layer.out_proj.bias


def slow_layer(layer, state, query, key, value):
    norm, last = layer.norm_attention, layer.norm_feedforward
    state = state + slow_attention(layer.attention, query, key, value)
    state = layer_norm(state, state.shape[-1:], norm.weight, norm.bias)
    hidden = (state @ layer.expand.weight.T + layer.expand.bias).clamp(min=0)
    state = state + hidden @ layer.contract.weight.T + layer.contract.bias
    return layer_norm(state, state.shape[-1:], last.weight, last.bias)


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 40), st.data())
def test_groups_cover_all_labels_and_no_query_is_idle(labels, data):
    queries = data.draw(st.integers(1, labels))
    head = QueryDecoder(4, labels, queries=queries, attention_heads=1, feedforward=4)
    share = head.classifier.weight.shape[1]
    assert len(head.queries) <= queries
    assert (len(head.queries) - 1) * share < labels <= len(head.queries) * share
    hidden = torch.randn(2, len(head.queries), 4)
    logits = head.classifier(hidden)
    for label in range(labels):
        group, place = divmod(label, share)
        expected = hidden[:, group] @ head.classifier.weight[group, place]
        torch.testing.assert_close(logits[:, label], expected + head.classifier.bias[label])


def test_runs_in_half_precision():
    head, features = QueryDecoder(8, 4).eval(), torch.randn(2, 8, 3, 3)
    with torch.autocast("cpu", torch.bfloat16):
        rough = head(features).logits
    torch.testing.assert_close(rough, head(features).logits, rtol=0, atol=0.05)
    assert not torch.equal(rough, head(features).logits)
    half = QueryDecoder(8, 4).bfloat16()(features.bfloat16()).logits
    assert half.dtype == torch.bfloat16
    assert half.isfinite().all()


def test_start_of_the_weights():
    torch.manual_seed(0)
    head = QueryDecoder(64, 50)
    bound = (6 / (64 + 3 * 64)) ** 0.5
    assert 0.95 * bound < head.encoder[0].attention.in_proj_weight.abs().max() <= bound
    assert head.queries.std().item() == pytest.approx(1.0, abs=0.05)
    assert 0.9 / 8 < head.classifier.weight.abs().max() <= 1 / 8


@pytest.mark.parametrize("kind", ["none", "first", "later", "all"])
def test_the_whole_head_written_out_slowly(kind):
    torch.manual_seed(1)
    options = {"width": 8, "attention_heads": 2, "dropout": 0.0, "self_attention": kind}
    head = QueryDecoder(6, 3, **options).double()
    for parameter in head.parameters():  # biases and norms must matter
        nn.init.normal_(parameter, std=0.5)
    features = torch.randn(1, 6, 2, 3, dtype=torch.float64)
    place = sine_position(8, 2, 3, features).flatten(1).T
    memory = features[0].flatten(1).T @ head.project.weight[:, :, 0, 0].T + head.project.bias
    memory = slow_layer(head.encoder[0], memory, memory + place, memory + place, memory)
    target = torch.zeros(3, 8, dtype=torch.float64)
    for number, layer in enumerate(head.decoder):
        if kind in ("all", "later" if number else "first"):
            query = target + head.queries
            target = target + slow_attention(layer.self_attention, query, query, target)
            target = layer_norm(target, (8,), layer.norm_self.weight, layer.norm_self.bias)
        target = slow_layer(layer, target, target + head.queries, memory + place, memory)
    final = layer_norm(target, (8,), head.norm.weight, head.norm.bias)
    expected = (head.classifier.weight[:, 0] * final).sum(dim=1) + head.classifier.bias
    torch.testing.assert_close(head(features).logits[0], expected)


def test_attention_maps_are_the_weights_of_the_last_layer():
    # Oracle: softmax(Q K' / sqrt(size)) of each attention head, written out, then their mean.
    torch.manual_seed(2)
    head = QueryDecoder(8, 5, queries=3, attention_heads=2, dropout=0.0).double().eval()
    features = torch.randn(2, 8, 2, 3, dtype=torch.float64)
    maps = head.attention(features)
    assert maps.shape == (2, 5, 2, 3)
    torch.testing.assert_close(maps.sum(dim=(2, 3)), torch.ones(2, 5, dtype=torch.float64))
    assert torch.equal(maps[:, 0], maps[:, 1])  # labels 0 and 1 share a query
    seen = []
    head.decoder[-1].attention.register_forward_pre_hook(lambda _, inputs: seen.append(inputs))
    head(features)
    query, key, _ = seen[0]
    layer = head.decoder[-1].attention
    weights, biases = layer.in_proj_weight.chunk(3), layer.in_proj_bias.chunk(3)
    q, k = query @ weights[0].T + biases[0], key @ weights[1].T + biases[1]
    parts = [slice(0, 4), slice(4, 8)]
    chances = [(q[..., p] @ k[..., p].mT / 2).softmax(dim=-1) for p in parts]
    expected = ((chances[0] + chances[1]) / 2)[:, [0, 0, 1, 1, 2]].unflatten(2, (2, 3))
    torch.testing.assert_close(maps, expected)


REFUSED = [
    (lambda: BoostHead(6, 4, alpha=0.5), r"alpha must be at least 1, got 0\.5"),
    (lambda: BoostHead(6, 4, alpha=float("nan")), "got nan"),
    (lambda: BoostHead(6, 4, boosts="never"), "boosts must be one of"),
    (lambda: MLDecoder(6, 5, queries=6), "queries must lie between 1 and 5"),
    (lambda: MLDecoder(6, 5, width=12), "multiple of its 8 attention heads"),
    (lambda: QueryDecoder(6, 5), "multiple of 4 and of its 4 attention heads, got 6; set width"),
    (lambda: QueryDecoder(8, 5, width=12, attention_heads=5), "of its 5 attention heads, got 12"),
    (lambda: QueryDecoder(8, 5, queries=6), "queries must lie between 1 and 5 labels, got 6"),
    (lambda: QueryDecoder(8, 5, decoder_layers=0), "at least one decoder layer, got 1 and 0"),
    (lambda: QueryDecoder(8, 3, self_attention="some"), "one of .*'later', 'all'.*, got 'some'"),
    (lambda: sine_position(6, 2, 2, torch.zeros(())), "multiple of 4, got 6"),
]


@pytest.mark.parametrize(("make", "rule"), REFUSED)
def test_what_does_not_fit_is_refused(make, rule):
    with pytest.raises((ValueError, SettingsError), match=rule):
        make()
