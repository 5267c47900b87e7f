"""The program finds where a run differs from its paper; oracle: the settings that were changed.

Each setting of each row is changed, and must be named with its new value.
"""

import json

import pytest
from PIL import Image

from labelwise.errors import SettingsError
from labelwise.learn.methods import METHODS
from labelwise.papers import sources
from labelwise.papers.protocols import EXPERIMENTS
from labelwise.papers.reproduce import Request, facts_of, open_data, published_protocol
from labelwise.training.settings import Settings, flattened


def found(request):
    """Return what differs by key; of a key that only some rows have published, the published."""
    every = sorted(request.protocol_deviations(), key=lambda one: one.stated)
    return {one.key: (one.published, one.here) for one in every}


def test_what_was_silent_is_named():
    named = found(Request("001-table3"))
    assert named["held_out"] == (0.0, 0.1)
    assert "decayed" in named
    assert "image_size" not in named  # 224, as published
    assert "held_out" not in found(Request("000-table1"))
    assert "pooled" in found(Request("001-table3.coco.vit-b-32"))
    assert found(Request("001-table3", quick=True))["recipe.prior_bias"] == (False, True)
    # Rows that the paper does not print have no protocol.
    assert published_protocol(EXPERIMENTS["000-table2"], "softmax-or-none") == {}
    json.dumps([vars(d) for d in Request("000-table2").protocol_deviations()])


# A value that no row has, for every setting of a run; a setting that is not here fails a test.
OTHER = {
    "batch_size": 7, "image_size": 199, "backbone": "small-cnn", "reduced_jpeg": True,
    "weights": "elsewhere.safetensors", "start": "runs/another", "taxonomy": "kinds.csv",
    "on_error": "skip", "skip_missing": True, "val_share": 0.3, "freeze": 7, "crops": 5,
    "labels_are": "complete",
    "keep_val": True, "deterministic": True, "calibrate": "isotonic", "zero_share": 0.123,
    "rule": "top-7", "promise": "precision=0.9", "promise_share": 0.77, "confidence": 0.77,
    "head_options.width": 77, "data_options.nonsense": 7,
    "recipe.epochs": 7, "recipe.ema": 0.5, "recipe.accumulate": 7, "recipe.metric": "log_loss",
    "recipe.patience": 77, "recipe.log_steps": 77, "recipe.save_seconds": 77.0,
    "recipe.optimizer.lr": 0.01234, "recipe.optimizer.weight_decay": 0.01234,
    "recipe.optimizer.momentum": 0.5, "recipe.optimizer.backbone_lr": 0.77,
    "recipe.optimizer.stage_decay": 0.77, "recipe.optimizer.clip": 7.0,
    "recipe.schedule.warmup": 7.0, "recipe.schedule.rise": 0.77,
    "recipe.schedule.milestones": [0.77], "recipe.schedule.gamma": 0.77,
}  # fmt: skip
SWITCHES = {
    "recipe.optimizer.name": ("sgd", "adamw"), "recipe.schedule.name": ("step", "cosine"),
    "recipe.keep": ("best", "last"), "precision": ("32", "bf16"), "augment": ("none", "flip"),
    "head": ("query2label", "linear"), "squash": (True, False), "mirror": (True, False),
    "freeze_batch_norm": (True, False), "recipe.prior_bias": (True, False),
    "recipe.optimizer.nesterov": (True, False), "means_only": (True, False),
}  # fmt: skip
# These exclude others or come with others, so that they are changed by themselves.
RESNET = {"backbone": "resnet18", "augment": "none", "freeze": 0, "freeze_batch_norm": False}
BY_THEMSELVES = {
    "method": {"method": "lsep", "options": {}},
    "features": {"features": "resnet18", **RESNET},
    "effort": {"effort": "good", "backbone": "resnet18"},
    "minutes": {"effort": "best", "minutes": 7.0, "backbone": "resnet18"},
    "cross_fit": {"cross_fit": True, "promise": "precision=0.9", "calibrate": "platt"},
    "attributes": {"attributes": "colours.csv"},
    "bands": {"bands": "all"},
    "composite": {"bands": "a,b", "composite": "a"},
    "window": {"bands": "all", "window": "file"},
}


def changed_settings(settings):
    """Return another value for every setting of a run and for every option of its method."""
    now = flattened(settings.model_dump(mode="json"))
    values = dict(OTHER)
    for key, (first, second) in SWITCHES.items():
        values[key] = second if now[key] == first else first
    for name in METHODS[settings.method].options if settings.method in METHODS else ():
        values[f"options.{name}"] = 0.0777
    return values


def test_no_setting_is_forgotten():
    every = flattened(Settings(data="x").model_dump())
    keys = {key.partition("options.")[0] or key for key in every}
    known = {key.partition("options.")[0] or key for key in (*OTHER, *SWITCHES, *BY_THEMSELVES)}
    kept = {"data", "seed", "options", "head_options", "data_options"}
    assert {key for key in keys if not key.startswith("hardware.")} - known - kept == set()


@pytest.mark.parametrize("table", EXPERIMENTS)
def test_each_setting_of_each_row_that_is_changed_is_named(table):
    for row in EXPERIMENTS[table].rows:
        plain = Request(table, rows=(row,))
        values = changed_settings(plain.settings(row, 0))
        request = Request(table, rows=(row,), overrides=values)
        named = {one.key: one for one in request.protocol_deviations() if row in one.rows}
        text = "\n".join(request.deviations())
        stated = published_protocol(EXPERIMENTS[table], row)
        assert stated.keys() <= facts_of(plain.settings(row, 0), EXPERIMENTS[table], row).keys()
        for key, value in values.items():
            assert named[key].here == value, (row, key)
            assert named[key].published == stated.get(key, named[key].published), (row, key)
            assert str(named[key]) in text
        assert not {one.key for one in plain.protocol_deviations() if not one.stated}, row


@pytest.mark.parametrize("key", BY_THEMSELVES)
def test_settings_that_exclude_others_are_named_too(key):
    for table in ("000-table1", "001-table3", "003-table1", "004-table1", "004-table2"):
        request = Request(table, overrides=BY_THEMSELVES[key])
        assert found(request)[key][1] == BY_THEMSELVES[key][key]


@pytest.mark.parametrize("key", ["data", "seed"])
def test_what_has_an_option_of_its_own_is_not_set(key):
    with pytest.raises(SettingsError, match=f"{key} is not set by --set here but by --"):
        Request("000-table1", overrides={key: 1}).settings("binary", 0)
    with pytest.raises(SettingsError, match=r"data_options\.seed is not set by --set"):
        Request("000-table2", overrides={"data_options.seed": 1}).settings("binary", 0)


SPLIT = ["train"] * 30 + ["test"] * 10
OWN = ["train"] * 20 + ["val"] * 10 + ["test"] * 10


@pytest.mark.parametrize(
    ("table", "split", "share", "chosen_by"),
    [
        ("001-table3", SPLIT, 0.1, sources.STRATIFIED),
        ("001-table3", OWN, 0.0, sources.OWN_SPLIT),
        ("000-table1", SPLIT, 0.0, sources.NO_SPLIT),
        ("004-table2", SPLIT, 0.2, sources.LAST_FIFTH),
        ("004-table2", OWN, 0.0, sources.OWN_SPLIT),
    ],
)
def test_what_is_held_out_is_read_from_the_data(tmp_path, table, split, share, chosen_by):
    for row in range(40):
        Image.new("RGB", (8, 8), (6 * row, 0, 0)).save(tmp_path / f"{row}.png")
    lines = [f"{row}.png,{'abc'[row % 3]},{part}" for row, part in enumerate(split)]
    (tmp_path / "t.csv").write_text("\n".join(["path,labels,split", *lines]) + "\n")
    request = Request(table, source=str(tmp_path / "t.csv"))
    held_out = open_data(request)[1]
    assert held_out == sources.ValidationImages(share, chosen_by)
    row = request.chosen_rows()[0]
    named = {one.key: one.here for one in request.protocol_deviations(held_out)}
    stated = published_protocol(request.experiment, row)["held_out"]
    assert ("held_out" in named) == (stated != share)
