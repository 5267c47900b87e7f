"""Losses from a file; oracles: the closed links of BCE, SPA and ASL, a comparison for real."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from labelwise.errors import SettingsError
from labelwise.learn.methods import METHODS, find_method, link_from_spec, link_to_spec
from labelwise.learn.methods.own import OwnLoss, add_method, default_link, slopes
from labelwise.learn.objectives import CROSS_ENTROPY, EASY_NEGATIVES, Focusing, PhiLink, SPALink
from labelwise.learn.objectives.cross_entropy import asymmetric_loss, bce_loss, spa_loss
from labelwise.links import Sigmoid
from labelwise.papers.comparison import SOLVED, STEPPED, Comparison, show_figure
from labelwise.types import DatasetFacts, Outputs, Targets

LOGITS = torch.linspace(-6, 6, 241, dtype=torch.float64)
OFFICIAL = {"gamma_pos": 0.0, "gamma_neg": 4.0, "margin": 0.0}
CLOSED = {
    "bce": (bce_loss, Sigmoid()),
    "a mean": (lambda v, y: bce_loss(v, y).mean(), Sigmoid()),
    "spa": (lambda v, y: spa_loss(v, y, CROSS_ENTROPY, EASY_NEGATIVES), SPALink()),
    "asl": (lambda v, y: asymmetric_loss(v, y, Focusing(**OFFICIAL)), PhiLink(**OFFICIAL)),
}


@pytest.fixture(autouse=True)
def catalogue():
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)


@pytest.mark.parametrize("name", CLOSED)
def test_the_default_link_is_the_closed_one_and_proper(name):
    loss, closed = CLOSED[name]
    link, note = default_link(loss)
    found = link(LOGITS)
    torch.testing.assert_close(found, closed(LOGITS), atol=2e-5, rtol=1e-3)
    assert "not monotone" not in note
    present, absent = (slopes(loss, LOGITS, label) for label in (1.0, 0.0))
    rest = found * present + (1 - found) * absent  # proper: at rest where the link reads eta
    assert (rest.abs() / (absent - present)).max() < 2e-5
    torch.testing.assert_close(link_from_spec(link_to_spec(link))(LOGITS), found)


def test_losses_that_fall_or_couple_entries_are_told():
    def hump(logits, labels):
        return torch.where(labels > 0.5, bce_loss(logits, labels), torch.tanh(logits))

    link, note = default_link(hump)
    assert "not monotone: it falls between the logits" in note
    assert (link(LOGITS).diff() >= 0).all()
    link, note = default_link(lambda v, y: -(v.log_softmax(0) * y).sum())
    assert link is None
    assert "only rank" in note


def test_unknown_entries_leave_a_loss_of_entries_and_stop_a_single_number():
    logits, labels = torch.randn(4, 3), torch.zeros(4, 3)
    observed = torch.zeros(4, 3, dtype=torch.bool)
    observed[0, 0] = True
    found = OwnLoss(bce_loss)(logits, labels, observed)
    torch.testing.assert_close(found, bce_loss(logits, labels)[0, 0])
    with pytest.raises(ValueError, match="one for every entry"):
        OwnLoss(CLOSED["a mean"][0])(logits, labels, observed)


SOURCE = """
from torch import nn

class MyLoss(nn.Module):
    def forward(self, logits, labels):
        return nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")

answer = 42
"""


def test_a_file_is_compared_with_bce_on_features(tmp_path, monkeypatch, call):
    (tmp_path / "my.py").write_text(SOURCE)
    random = np.random.default_rng(0)
    x = random.normal(size=(90, 4)).astype(np.float32)
    split = np.repeat(["train", "val", "test"], 30)
    labels = (x[:, :2] > 0).astype(np.uint8)
    names = np.array(["a", "b"])
    np.savez(tmp_path / "d.npz", features=x, labels=labels, label_names=names, split=split)
    monkeypatch.chdir(tmp_path)
    words = ["compare", "d.npz", "--methods", "bce,my.py:MyLoss", "--features", "identity"]
    code, out = call(*words, "--seeds", "1", "--set", "recipe.epochs=1", "-o", "out")
    assert code == 0
    assert "my.py:MyLoss: its link has probabilities from" in out
    text = (tmp_path / "out" / "comparison.md").read_text("utf-8")
    rows = {line.split(" | ")[0].strip("| "): line for line in text.splitlines() if "|" in line}
    shown = [rows[name].split(" | ")[1:4] for name in ("bce", "my.py:MyLoss")]
    assert shown[0] == shown[1], rows  # the same loss, from the same start


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("none.py:A", "does not exist"),
        ("my.py:Other", "has no function or class 'Other'"),
        ("my.py:answer", "has no function or class 'answer'"),
        ("bad.py:A", "cannot be run"),
    ],
)
def test_what_cannot_be_a_method_is_named(tmp_path, monkeypatch, text, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text(SOURCE)
    (tmp_path / "bad.py").write_text("1 / 0")
    with pytest.raises(SettingsError, match=reason):
        add_method(text)


LOSSES = {
    "entropy.py": ("EntropyMaximisation", "EntropyWithPseudoLabels"),
    "large_losses.py": ("LargeLossCorrected", "LargeLossForGood"),
    "robust.py": ("GeneralizedRobust",),
}


@pytest.mark.parametrize(("file", "name"), [(f, n) for f, names in LOSSES.items() for n in names])
def test_a_class_in_a_file_learns_how_much_data_there_is(file, name):
    """Oracle: with complete labels each of these is cross-entropy; unknown ones change it."""
    place = Path(__file__).parents[2] / "evidence" / "methods" / file
    method = METHODS[add_method(f"{place}:{name}")[0]]
    objective = method.objective(DatasetFacts(num_images=4, num_labels=3, mean_labels=1.0))
    logits, labels = torch.randn(4, 3), torch.tensor([[1.0, 0, 0]] * 4)
    observed, rows = torch.ones(4, 3, dtype=torch.bool), torch.arange(4)
    complete = objective(Outputs(logits), Targets(labels, observed, rows))
    torch.testing.assert_close(complete, bce_loss(logits, labels).mean())
    observed[:, 1:] = False  # by now an epoch has passed
    partly = objective(Outputs(logits), Targets(labels, observed, rows))
    assert partly.isfinite()
    assert not torch.allclose(partly, complete)


def test_a_method_that_left_says_which_file_it_is():
    for name in ("em", "gr", "ll-ct"):
        with pytest.raises(
            SettingsError, match=r"evidence/methods/\w+\.py:[A-Z]\w+ of labelwise's"
        ):
            find_method(name)


def test_a_comparison_says_who_was_solved_and_by_what_its_verdicts_are_corrected():
    """Oracle: Welch's formula by hand; three equal seeds alone give no interval."""
    rows = {name: {seed: {"mAP@class": 0.5, "macro F1": 0.5} for seed in range(3)} for name in "ab"}
    for seed in range(3):
        rows["b"][seed]["mAP@class"] = 0.4 + 0.01 * seed
    drawn = {"a": {"a": 4e-4, "b": 0.0}, "b": {"a": 0.0, "b": 4e-4}}
    settings = {"a": {"trained": SOLVED}, "b": {"trained": STEPPED}}
    done = Comparison(rows, settings, {"mAP@class": drawn})
    solved, stepped = (done.intervals("mAP@class")[name] for name in "ab")
    assert solved.half_width == pytest.approx(1.96 * 0.02, rel=1e-3)
    spread = 1e-4 / 3
    freedom = (spread + 4e-4) ** 2 / (spread**2 / 2)
    expected = stats.t.ppf(0.975, freedom) * (spread + 4e-4) ** 0.5
    assert stepped.half_width == pytest.approx(expected)
    assert done.intervals("macro F1")["a"].half_width == float("inf")
    assert show_figure(done.intervals("macro F1")["a"], True) == "50.00"
    first, *_, last = done.verdicts(["mAP@class"])
    assert first.startswith("Not all methods were trained alike: a solved to its optimum")
    assert "b took gradient steps" in first
    assert "Shaffer's rule" in last
    assert first in done.markdown()
    assert replace(done, settings={"a": {}, "b": {}}).unequal() == ""
