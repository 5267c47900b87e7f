"""The query decoder against golden vectors, torch's own layers and a decoder written out slowly."""

import pytest
import torch
from golden import cases, tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import layer_norm

from labelwise.networks.heads import AttentionLayer, QueryDecoder, sine_position


def count(*modules):
    return sum(p.numel() for module in modules for p in module.parameters())


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


def test_a_layer_is_torch_s_encoder_layer():
    ours = AttentionLayer(8, 2, 16, 0.0).double()
    theirs = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True).double()
    pairs = [
        (theirs.self_attn, ours.attention),
        (theirs.linear1, ours.expand),
        (theirs.linear2, ours.contract),
        (theirs.norm1, ours.norm_attention),
        (theirs.norm2, ours.norm_feedforward),
    ]
    for their_part, our_part in pairs:
        their_part.load_state_dict(our_part.state_dict())
    state = torch.randn(3, 5, 8, dtype=torch.float64)
    torch.testing.assert_close(ours(state, state, state, state), theirs(state))


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


@settings(max_examples=30, deadline=None)
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


def test_compiles_to_one_graph_and_runs_in_half_precision():
    head = QueryDecoder(8, 4).eval()
    features = torch.randn(2, 8, 3, 3)
    torch._dynamo.reset()
    compiled = torch.compile(head, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(features).logits, head(features).logits)
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
    weight = head.encoder[0].attention.in_proj_weight
    assert 0.95 * bound < weight.abs().max() <= bound
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
