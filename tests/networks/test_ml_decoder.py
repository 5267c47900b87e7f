"""ML-Decoder; oracle: the published forward pass written out, one image and one query at a time."""

import pytest
import torch
from torch import nn
from torch.nn.functional import layer_norm, relu

from labelwise.methods import find_head
from labelwise.models import HeadSpec
from labelwise.networks.heads import MLDecoder, WordDecoder

SMALL = {"width": 8, "attention_heads": 2, "feedforward": 12, "dropout": 0.0}


def slow_state(trunk, features, query):
    """The state (width,) of one query before one feature map (D, H, W), by loops over heads."""
    memory = [
        relu(trunk.project.weight @ features[:, row, column] + trunk.project.bias)
        for row in range(features.shape[1])
        for column in range(features.shape[2])
    ]
    state = layer_norm(2 * query, query.shape, trunk.norm.weight, trunk.norm.bias)
    layer = trunk.layer
    parts = layer.attention.in_proj_weight.chunk(3), layer.attention.in_proj_bias.chunk(3)
    (ask, key, value), (ask_0, key_0, value_0) = parts
    asked, size = ask @ state + ask_0, len(query) // layer.attention.num_heads
    seen = []
    for head in range(layer.attention.num_heads):
        part = slice(head * size, (head + 1) * size)
        scores = [asked[part] @ (key @ m + key_0)[part] / size**0.5 for m in memory]
        weights = torch.stack(scores).softmax(0)
        seen.append(
            sum(w * (value @ m + value_0)[part] for w, m in zip(weights, memory, strict=True))
        )
    out = layer.attention.out_proj
    state = state + out.weight @ torch.cat(seen) + out.bias
    norm = layer.norm_attention
    state = layer_norm(state, state.shape, norm.weight, norm.bias)
    state = state + layer.contract(relu(layer.expand(state)))
    norm = layer.norm_feedforward
    return layer_norm(state, state.shape, norm.weight, norm.bias)


def maps(images=2, channels=6):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(images, channels, 2, 3, generator=generator, dtype=torch.float64)


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


def test_word_queries_share_one_classifier_and_answer_for_unseen_labels():
    torch.manual_seed(1)
    words = torch.randn(4, 3)
    head = WordDecoder(6, words, **SMALL).double()
    head.start_at(torch.tensor([1.0, 2.0, 3.0, 6.0]))
    features = maps()
    unseen = torch.randn(2, 3)
    for decoder, given in ((head, words), (head.with_words(unseen), unseen)):
        logits = decoder(features).logits
        assert logits.shape == (2, len(given))
        for image, row in zip(features, logits, strict=True):
            for word, logit in zip(given.double(), row, strict=True):
                state = slow_state(head.trunk, image, relu(head.ask(word)))  # as the authors
                torch.testing.assert_close(logit, head.classifier.weight[0] @ state + 3.0)
    torch.testing.assert_close(head.words, words.double())  # the trained head is as it was


def test_unseen_labels_are_found_by_their_words():
    """Images hold the words of their labels; 8 of 48 words are never trained on."""
    torch.manual_seed(0)
    words = nn.functional.normalize(torch.randn(48, 4), dim=1)

    def draw(count):
        labels = (torch.rand(count, 48) < 2 / 48).float()
        places = torch.randn(count, 4, 2, 2) * 0.1
        places[:, :, 0, 0] += 4 * labels @ words
        return places, labels

    head = WordDecoder(4, words[:40], width=32, attention_heads=2, feedforward=64, dropout=0.0)
    optimizer = torch.optim.Adam(head.parameters(), lr=3e-3)
    for _ in range(150):
        features, labels = draw(64)
        logits = head(features).logits
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels[:, :40])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    features, labels = draw(400)
    with torch.no_grad():
        scores = head.with_words(words[40:]).eval()(features).logits
    present, absent = scores[labels[:, 40:] == 1], scores[labels[:, 40:] == 0]
    better = (present[:, None] > absent[None, :]).double().mean()
    assert better > 0.7  # AUROC of labels that were never seen; chance is 0.5


def test_published_sizes_and_what_is_not_trained():
    head = MLDecoder(2048, 1000)
    assert head.queries.shape == (100, 768)
    assert not any(parameter is head.queries for parameter in head.parameters())
    width, hidden = 768, 2048
    memory = 2048 * width + width
    attention = 4 * width * width + 4 * width
    feedforward = 2 * width * hidden + hidden + width
    norms, labels = 3 * 2 * width, 1000 * width + 1000
    count = sum(parameter.numel() for parameter in head.parameters())
    assert count == memory + attention + feedforward + norms + labels


def test_it_is_a_head_by_name_and_survives_as_plain_data():
    assert find_head("ml-decoder") is MLDecoder
    spec = HeadSpec("ml-decoder", {"width": 16, "feedforward": 8, "queries": 2})
    head, again = (spec.make(6, 5).eval() for _ in range(2))
    again.load_state_dict(head.state_dict())  # the fixed queries are part of it
    features = maps().float()
    assert torch.equal(head(features).logits, again(features).logits)


def test_senseless_settings_are_refused():
    with pytest.raises(ValueError, match="queries must lie between 1 and 5"):
        MLDecoder(6, 5, queries=6)
    with pytest.raises(ValueError, match="multiple of its 8 attention heads"):
        MLDecoder(6, 5, width=12)
    with pytest.raises(ValueError, match=r"words must be vectors \(K, E\)"):
        WordDecoder(6, torch.zeros(3))
    with pytest.raises(ValueError, match="must have the 3 numbers"):
        WordDecoder(6, torch.zeros(2, 3), **SMALL).with_words(torch.zeros(2, 4))
