"""Settings. Oracles: what is read back, and the one sentence that a wrong setting gets."""

import pytest
import torch
from tiny_run import tiny_settings, tiny_table

from labelwise.base.yaml_values import parse_assignments
from labelwise.errors import SettingsError
from labelwise.training.run import train
from labelwise.training.settings import Settings, differences, read_settings


def test_saved_settings_are_read_back_unchanged(tmp_path):
    flags = {
        "data": "größe.csv",
        "options": {"k": 2},
        "recipe.schedule.milestones": [0.3, 0.6],
        "recipe.optimizer.clip": 1.5,
        "hardware.workers": 3,
    }
    one = read_settings(None, flags)
    one.save(tmp_path / "run" / "settings.yaml")
    assert read_settings(tmp_path / "run" / "settings.yaml", {}) == one


def test_flags_win_over_the_file_at_any_depth(tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text("data: a\nrecipe: {epochs: 3, optimizer: {lr: 0.5, name: sgd}}\n")
    both = read_settings(file, {"recipe.optimizer.lr": 0.1})
    assert (both.data, both.recipe.epochs) == ("a", 3)
    assert (both.recipe.optimizer.lr, both.recipe.optimizer.name) == (0.1, "sgd")


CROSS = {"cross_fit": True, "promise": "recall=0.9", "calibrate": "platt"}
GROUPS = {"attributes": "groups.csv"}


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"metod": "bce"}, "unknown setting 'metod'; did you mean 'method'"),
        ({"recipe.optimizer.lrr": 1}, "unknown setting 'recipe.optimizer.lrr'; did you mean 'lr'"),
        ({"recipe.lr": 1}, "unknown setting 'recipe.lr'; did you mean 'recipe.optimizer.lr'"),
        ({"recipe.epochs": "many"}, "setting 'recipe.epochs': .*integer.*got 'many'"),
        ({"recipe.optimizer.name": "adam"}, "'recipe.optimizer.name': .*'adamw' or 'sgd'.*'adam'"),
        ({"batch_size": 0}, "setting 'batch_size': .*greater than or equal to 1, got 0"),
        ({"recipe.ema": 1.5}, "'recipe.ema': input should be less than 1, got 1.5"),
        ({"recipe": 3}, "setting 'recipe': "),
        ({"recipe.optimizer.lr": -1}, "lr': input should be greater than or equal to 0, got -1"),
        ({"recipe.optimizer.clip": 0}, "clip': input should be greater than 0, got 0"),
        ({"recipe.schedule.rise": 1}, "rise': input should be less than 1, got 1"),
        ({"recipe.schedule.milestones": [30]}, "milestones.0': input should be less than 1"),
        ({"seed": True}, "seed: it must be a number, got true"),
        ({"hardware.devices": True}, "hardware.devices: it must be a number, got true"),
        ({"minutes": 3}, "minutes end the efforts good and best"),
        ({"effort": "good", "features": "resnet18"}, "features does not apply to an effort"),
        ({"effort": "good", "start": "run"}, "start does not apply to an effort"),
        ({"effort": "best", "hardware.devices": 2}, "hardware.devices does not apply"),
        ({"effort": "good", "backbone": "small-cnn"}, "backbone does not apply to an effort"),
        ({"features": "small-cnn", "augment": "flip"}, "augment does not apply to features"),
        ({"features": "small-cnn", "hardware.devices": 2}, "devices does not apply to features"),
        ({"features": "small-cnn", "backbone": "resnet18"}, "leave backbone out, got 'resnet18'"),
        ({"cross_fit": True}, "cross_fit belongs to promise"),
        (CROSS | {"calibrate": "none"}, "of a calibrator; name one"),
        (CROSS | {"promise": "tags=0.9"}, "tags take the most probable"),
        (CROSS | {"zero_share": 0.5}, "leave out cross_fit or zero_share"),
        (GROUPS | {"taxonomy": "kinds.csv"}, "attributes and taxonomy both move"),
        (GROUPS | {"zero_share": 0.1}, "attributes and zero_share both move"),
        (GROUPS | {"promise": "recall=0.5"}, "attributes and promise both move"),
        ({"window": "file"}, "window belongs to bands"),
    ],
)
def test_wrong_settings_and_those_that_do_not_go_together_get_one_sentence(flags, sentence):
    with pytest.raises(SettingsError, match=sentence):
        read_settings(None, {"data": "x"} | flags)


def test_an_option_of_the_data_may_be_given_as_to_labelwise_data(tmp_path):
    flags = {"delimiter": ";", "columns.labels": "tags", "duplicates": "drop", "seed": 3}
    settings = read_settings(None, {"data": "photos.csv", **flags})
    options = {"delimiter": ";", "columns": {"labels": "tags"}, "duplicates": "drop"}
    assert (settings.data_options, settings.seed) == (options, 3)
    (tmp_path / "s.yaml").write_text("data: photos.csv\ndelimiter: ;\n")
    with pytest.raises(SettingsError, match=r"a run takes as data_options\.delimiter"):
        read_settings(tmp_path / "s.yaml", {})


def test_assignments_are_yaml_and_numbers_stand_for_the_names_they_spell():
    values = parse_assignments(["precision=32", "rule=0.5", "seed=3"])
    settings = read_settings(None, {"data": "scenes", **values})
    assert (settings.precision, settings.rule, settings.seed) == ("32", "0.5", 3)
    values = parse_assignments(["a.b=1e-3", "c=[1, 2]", "d=null", "e=x=y", "f=true"])
    assert values == {"a.b": 0.001, "c": [1, 2], "d": None, "e": "x=y", "f": True}
    with pytest.raises(SettingsError, match="must look like key=value, got '=3'"):
        parse_assignments(["=3"])


def test_how_a_run_is_carried_out_is_no_difference():
    one = Settings(data="scenes")
    other = read_settings(None, {"data": "scenes", "hardware.devices": 2, "options.k": 3})
    assert differences(one, other) == {"options.k": "options.k: None -> 3"}
    assert differences(one, read_settings(None, {"data": "scenes", "hardware.workers": 2})) == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("data: [", "is not valid YAML"),
        (b"data: \xff\xfe", "is not valid YAML"),
        ("- a", "must hold keys and values, got list"),
        ("", "setting 'data' is needed"),
        ("data: scenes\nx: !!python/object:os.system {}", "is not valid YAML"),
        ("1: 2", "a key must be a text, got 1"),
        ("data: x\na: &a [x, x]\nb: &b [*a, *a]\n", r"the alias \*a is not allowed"),
        ("data: scenes\nseed: 18446744073709551616", "'seed': .*less than 9223372036854775808"),
        ("data: scenes\nseed: " + "9" * 5000, "is not valid YAML"),
        ("data: scenes\nimage_size: 7", "'image_size': .*greater than or equal to 8, got 7"),
        ("data: scenes\nrecipe: {schedule: {warmup: .nan}}", "schedule.warmup': .*finite number"),
        ("data: scenes\nrecipe: {optimizer: {lr: .inf}}", "lr': .*finite number, got inf"),
        ("data: scenes\nhardware: {accelerator: foo}", "'hardware.accelerator': .*got 'foo'"),
        ("data: " + "[" * 1500 + "]" * 1500, "is nested too deeply|valid string"),
    ],
)
def test_strange_files_get_one_sentence(tmp_path, text, words):
    path = tmp_path / "s.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SettingsError, match=rf"s.yaml.*({words})") as caught:
        read_settings(path, {})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is such a device")
def test_a_device_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(SettingsError, match="1 devices of 'cuda' were asked for, and there are 0"):
        train(tiny_settings(hardware__accelerator="cuda"), tmp_path, table=tiny_table())
