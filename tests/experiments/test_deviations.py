"""The program finds where a run differs from its paper; oracle: the one changed setting."""

import json

import pytest

from labelwise.experiments.deviations import facts_of, published_protocol
from labelwise.experiments.papers import EXPERIMENTS
from labelwise.experiments.reproduce import Request

ROWS = [
    (table, row)
    for table, experiment in EXPERIMENTS.items()
    for row, one in experiment.rows.items()
    if row in experiment.published.rows and one.runs != "never"
]
CHANGES = {
    "batch_size": 7,
    "image_size": 199,
    "backbone": "small-cnn",
    "weights": "elsewhere.safetensors",
    "recipe.epochs": 7,
    "recipe.optimizer.name": "lbfgs",
    "recipe.optimizer.lr": 0.01234,
    "recipe.optimizer.weight_decay": 0.01234,
    "recipe.optimizer.momentum": 0.5,
    "recipe.schedule.name": "constant",
    "recipe.keep": "best",
    "recipe.ema": 0.5,
    "augment": "none",
    "method": "lsep",
}


def found(request):
    return {one.key: (one.published, one.here) for one in request.protocol_deviations()}


@pytest.mark.parametrize(("table", "row"), ROWS)
def test_each_stated_setting_that_is_changed_is_named(table, row):
    stated = published_protocol(EXPERIMENTS[table], row)
    settings = Request(table).settings(row, 0)
    assert set(stated) - set(facts_of(settings, EXPERIMENTS[table], row)) == set()
    named = found(Request(table, rows=(row,)))
    changed = 0
    for key, value in CHANGES.items():
        if key not in stated or key in named or stated[key] == value or key.endswith(".name"):
            continue
        request = Request(table, rows=(row,), overrides={key: value})
        if key == "method":
            request = Request(table, rows=(row,), overrides={"method": value, "options": {}})
        assert found(request)[key] == (stated[key], value)
        sentence = next(text for text in request.deviations() if text.startswith(f"{key}: "))
        assert str(value) in sentence
        changed += 1
    assert changed >= 3


def test_what_was_silent_is_named():
    named = found(Request("001-table3"))
    assert named["held_out"] == (0.0, 0.1)
    assert "decayed" in named
    assert "image_size" not in named  # 224, as published
    assert "held_out" not in found(Request("000-table1"))
    assert "pooled" in found(Request("001-table3.coco.vit-b-32"))
    frozen = found(Request("001-table3", quick=True))
    assert frozen["recipe.prior_bias"] == (False, True)


def test_options_that_a_paper_states_are_compared_though_they_are_defaults():
    assert "options.k_neg" not in found(Request("001-table3", rows=("spa",)))
    changed = Request("001-table3", rows=("spa",), overrides={"options.k_neg": 2.0})
    assert found(changed)["options.k_neg"] == (3.0, 2.0)
    slower = Request("000-table2", rows=("quasibinary",), overrides={"options.momentum": 0.99})
    assert found(slower)["options.momentum"] == (0.9, 0.99)


def test_picture_sizes_are_the_printed_ones():
    sizes = {"000-table1": 32, "000-table1.tiny-imagenet": 32, "000-table1.imagenet": 224}
    for cell, size in sizes.items():
        assert "image_size" not in found(Request(cell))
        changed = Request(cell, overrides={"image_size": 64})
        assert found(changed)["image_size"] == (size, 64)


def test_rows_that_the_paper_does_not_print_have_no_protocol():
    assert published_protocol(EXPERIMENTS["000-table2"], "softmax-or-none") == {}
    json.dumps([vars(d) for d in Request("000-table2").protocol_deviations()])


def test_a_quick_run_names_what_it_changed():
    named = found(Request("000-table1", quick=True))
    assert named["recipe.epochs"] == (200, 30)
    assert named["batch_size"] == (64, 128)
