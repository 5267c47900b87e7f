"""BoostLU head; oracle: the published map, one image, label and place at a time."""

from math import exp, sqrt
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from torch.nn.functional import layer_norm, relu

from labelwise.errors import SettingsError
from labelwise.methods import HEADS, METHODS, find_head, make_objective
from labelwise.models import HeadSpec
from labelwise.networks.heads import (
    BoostHead,
    DualPrompts,
    LinearHead,
    MLDecoder,
    QueryDecoder,
    TwoHead,
    WordDecoder,
    sine_position,
)
from labelwise.objectives import BCE
from labelwise.photos.words.tower_files import (
    TextTower,
    TextTowerShape,
    Tokens,
    dual_prompts,
)
from labelwise.types import DatasetFacts, Targets


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


@pytest.mark.parametrize("options", [{}, {"alpha": 1.0}, {"alpha": 2.5}])
def test_logits_are_the_published_ones_in_training_and_after(options):
    torch.manual_seed(1)
    head, features = BoostHead(6, 4, **options).double(), maps()
    alpha = options.get("alpha", 5.0)  # the published one
    for mode in (True, False):
        torch.testing.assert_close(head.train(mode)(features).logits, slow(head, features, alpha))


def test_boosting_the_answers_alone_trains_the_linear_head():
    torch.manual_seed(1)
    head, linear = BoostHead(6, 4, boosts="answers").double(), LinearHead(6, 4).double()
    linear.load_state_dict(head.state_dict())
    features = maps()
    torch.testing.assert_close(head.train()(features).logits, linear(features).logits)
    torch.testing.assert_close(head.eval()(features).logits, slow(head, features, 5.0))


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


# DualCoOp's head; oracle: its formulas, one image, label and place at a time.


NAMES = ("dog", "polar bear", "cat", "teddy bear")


def towers(causal=True):
    """Return a small random text-image model whose tokens are whole words."""
    torch.manual_seed(0)
    words = ["<start>", "<end>", *sorted({word for name in NAMES for word in name.split()})]
    tokenizer = Tokenizer(models.WordLevel({w: n for n, w in enumerate(words)}, "<end>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        "<start> $A <end>", special_tokens=[("<start>", 0), ("<end>", 1)]
    )
    text = TextTower(TextTowerShape(causal, len(words), 9, 8, 2, 2, 12, 6, "quick_gelu", 1e-5))
    for parameter in text.parameters():
        nn.init.normal_(parameter, std=0.5)
    return SimpleNamespace(text=text, tokens=Tokens(tokenizer, 9))


def slow_logit(head, image, name):
    """Return the logit of one label before one map (D, H, W) of features."""

    def vector(words):
        text = torch.cat([name[:1], words, name[1:]])
        return head.encoder(text[None])[0].tolist()

    def cosine(a, b):
        product = sum(x * y for x, y in zip(a, b, strict=True))
        return product / sqrt(sum(x * x for x in a)) / sqrt(sum(y * y for y in b))

    places = image.flatten(1).T.tolist()
    present, absent = (vector(words) for words in (head.present, head.absent))
    scores = [(cosine(place, present), cosine(place, absent)) for place in places]
    total = sum(exp(20 * high) for high, _ in scores)
    return 100 * sum(exp(20 * high) / total * (high - low) for high, low in scores)


def test_logits_are_those_of_the_formulas():
    model = towers()
    head = dual_prompts(model, NAMES, context=3).double()
    features = torch.randn(2, 6, 2, 3, dtype=torch.float64)
    ids = [torch.tensor(model.tokens.of(name)) for name in NAMES]
    assert [len(one) for one in ids] == [3, 4, 3, 4]
    logits = head(features).logits
    for image, row in zip(features, logits, strict=True):
        for one, logit in zip(ids, row, strict=True):
            expected = slow_logit(head, image, model.text.tokens(one))
            assert logit.item() == pytest.approx(expected, rel=1e-9)
    pooled = features[:, :, :1, :1]
    for image, row in zip(pooled, head(pooled).logits, strict=True):
        assert row[0].item() == pytest.approx(
            slow_logit(head, image, model.text.tokens(ids[0])), rel=1e-9
        )


def test_only_the_words_learn_and_other_names_are_asked_with_them():
    model = towers()
    before = {name: value.clone() for name, value in model.text.state_dict().items()}
    head = dual_prompts(model, NAMES[:3], context=4)
    with torch.no_grad():
        meant = model.text.encode(NAMES, model.tokens).clone()
    assert {name for name, one in head.named_parameters() if one.requires_grad} == {
        "present",
        "absent",
    }
    labels = (torch.rand(200, 4, generator=torch.Generator().manual_seed(1)) < 0.4).float()
    features = (labels - 0.4) @ meant  # a photo is the sum of its labels' own texts
    objective, optimizer = BCE(), torch.optim.Adam([head.present, head.absent], lr=0.05)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = objective(head(features[:, :, None, None]), labels[:, :3])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    for name, value in model.text.state_dict().items():
        assert torch.equal(value, before[name])
    ids = [torch.tensor(model.tokens.of(name)) for name in NAMES]
    with torch.no_grad():
        other = head.with_names([model.text.tokens(one) for one in ids])
        found = other(features[:, :, None, None]).logits
        trained = head(features[:, :, None, None]).logits
    torch.testing.assert_close(found[:, :3], trained, rtol=1e-4, atol=1e-3)
    assert found.shape == (200, 4)


# ML-Decoder; oracle: the published forward pass written out, one image and one query at a time.


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


def feature_maps(images=2, channels=6):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(images, channels, 2, 3, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("labels", "queries"), [(5, None), (5, 2), (7, 3)])
def test_fixed_queries_decode_their_groups(labels, queries):
    torch.manual_seed(1)
    head = MLDecoder(6, labels, queries=queries, **SMALL).double()
    head.start_at(torch.arange(labels).double())
    features = feature_maps()
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
    features = feature_maps()
    unseen = torch.randn(2, 3)
    for decoder, given in ((head, words), (head.with_words(unseen), unseen)):
        logits = decoder(features).logits
        assert logits.shape == (2, len(given))
        for image, row in zip(features, logits, strict=True):
            for word, logit in zip(given.double(), row, strict=True):
                state = slow_state(head.trunk, image, relu(head.ask(word)))  # as the authors
                torch.testing.assert_close(logit, head.classifier.weight[0] @ state + 3.0)
    torch.testing.assert_close(head.words, words.double())  # the trained head is as it was


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
    boosted = {name for name, method in METHODS.items() if method.head == "boostlu"}
    assert boosted == {"ll-r+boostlu", "ll-ct+boostlu", "ll-cp+boostlu"}
    spec = HeadSpec("ml-decoder", {"width": 16, "feedforward": 8, "queries": 2})
    head, again = (spec.make(6, 5).eval() for _ in range(2))
    again.load_state_dict(head.state_dict())  # the fixed queries are part of it
    features = feature_maps().float()
    assert torch.equal(head(features).logits, again(features).logits)


CLIP = towers()
REFUSED = [
    (lambda: BoostHead(6, 4, alpha=0.5), r"alpha must be at least 1, got 0\.5"),
    (lambda: BoostHead(6, 4, alpha=float("nan")), "alpha must be at least 1, got nan"),
    (lambda: BoostHead(6, 4, boosts="never"), "boosts must be one of"),
    (lambda: dual_prompts(CLIP, NAMES, context=6), r"4 tokens and 6 learned words .* at most 5"),
    (lambda: dual_prompts(towers(causal=False), NAMES), "need a model of the CLIP sort"),
    (lambda: dual_prompts(CLIP, [], context=2), "one per label, got"),
    (lambda: dual_prompts(CLIP, NAMES, context=0), "context must be at least 1, got 0"),
    (
        lambda: dual_prompts(CLIP, NAMES, context=2).with_names([torch.zeros(3, 5)]),
        "must have the width 8 .* got 5",
    ),
    (
        lambda: DualPrompts(nn.Identity(), [torch.zeros(3, 5), torch.zeros(3, 8)]),
        r"must have one width, got \[5, 8\]",
    ),
    (lambda: MLDecoder(6, 5, queries=6), "queries must lie between 1 and 5"),
    (lambda: MLDecoder(6, 5, width=12), "multiple of its 8 attention heads"),
    (lambda: WordDecoder(6, torch.zeros(3)), r"words must be vectors \(K, E\)"),
    (
        lambda: WordDecoder(6, torch.zeros(2, 3), **SMALL).with_words(torch.zeros(2, 4)),
        "must have the 3 numbers",
    ),
    (lambda: QueryDecoder(6, 5), "multiple of 4 and of its 4 attention heads, got 6; set width"),
    (lambda: QueryDecoder(8, 5, width=12, attention_heads=5), "of its 5 attention heads, got 12"),
    (lambda: QueryDecoder(8, 5, queries=6), "queries must lie between 1 and 5 labels, got 6"),
    (lambda: QueryDecoder(8, 5, queries=0), "got 0"),
    (lambda: QueryDecoder(8, 5, decoder_layers=0), "at least one decoder layer, got 1 and 0"),
    (lambda: QueryDecoder(8, 5, encoder_layers=-1), "got -1 and 2"),
    (lambda: QueryDecoder(8, 3, self_attention="some"), "one of .*'later', 'all'.*, got 'some'"),
    (lambda: sine_position(6, 2, 2, torch.zeros(())), "multiple of 4, got 6"),
]


@pytest.mark.parametrize(("make", "rule"), REFUSED)
def test_what_does_not_fit_is_refused(make, rule):
    with pytest.raises((ValueError, SettingsError), match=rule):
        make()
