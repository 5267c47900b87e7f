"""DualCoOp's head; oracle: its formulas, one image, label and place at a time."""

from math import exp, sqrt

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn

from labelwise.errors import SettingsError
from labelwise.networks.backbones.transformers import ImageTower, TowerShape
from labelwise.networks.heads import DualPrompts
from labelwise.objectives import BCE
from labelwise.photos.words.tower_files import (
    TextTower,
    TextTowerShape,
    Tokens,
    Towers,
    dual_prompts,
)

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
    image = ImageTower(TowerShape("clip", 8, 1, 2, 12, 4, 8, 6, "quick_gelu", 1e-5))
    return Towers(image, text, Tokens(tokenizer, 9), 100.0, None, "")


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


def test_what_does_not_fit_is_refused():
    model = towers()
    with pytest.raises(SettingsError, match=r"up to 4 tokens and 6 learned words .* at most 5"):
        dual_prompts(model, NAMES, context=6)
    with pytest.raises(SettingsError, match="need a model of the CLIP sort"):
        dual_prompts(towers(causal=False), NAMES)
    with pytest.raises(ValueError, match="one per label, got"):
        dual_prompts(model, [], context=2)
    with pytest.raises(ValueError, match="context must be at least 1, got 0"):
        dual_prompts(model, NAMES, context=0)
    head = dual_prompts(model, NAMES, context=2)
    with pytest.raises(ValueError, match=r"must have the width 8 .* got 5"):
        head.with_names([torch.zeros(3, 5)])
    with pytest.raises(ValueError, match=r"must have one width, got \[5, 8\]"):
        DualPrompts(nn.Identity(), [torch.zeros(3, 5), torch.zeros(3, 8)])
