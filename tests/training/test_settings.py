import pytest
import yaml

from labelwise.errors import SettingsError
from labelwise.training.settings import Settings, differences, parse_assignments, read_settings


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


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"metod": "bce"}, "unknown setting 'metod'; did you mean 'method'"),
        ({"recipe.optimizer.lrr": 1}, "unknown setting 'recipe.optimizer.lrr'; did you mean 'lr'"),
        ({"optons": {}}, "unknown setting 'optons'; did you mean 'options'"),
        ({"recipe.lr": 1}, "unknown setting 'recipe.lr'; did you mean 'recipe.optimizer.lr'"),
        ({"recipe.epochs": "many"}, "setting 'recipe.epochs': .*integer.*got 'many'"),
        ({"recipe.optimizer.name": "adam"}, "'recipe.optimizer.name': .*'adamw' or 'sgd'.*'adam'"),
        ({"batch_size": 0}, "setting 'batch_size': .*greater than or equal to 1, got 0"),
        ({"recipe.ema": 1.5}, r"ema must lie in \[0, 1\), got 1.5"),
        ({"recipe": 3}, "setting 'recipe': "),
        ({"recipe.patience": 0}, "patience must be at least 1, got 0"),
    ],
)
def test_wrong_settings_get_one_sentence(flags, sentence):
    with pytest.raises(SettingsError, match=sentence):
        read_settings(None, {"data": "scenes"} | flags)


def test_numbers_stand_for_the_names_they_spell():
    values = parse_assignments(["precision=32", "rule=0.5", "seed=3"])
    settings = read_settings(None, {"data": "scenes", **values})
    assert (settings.precision, settings.rule, settings.seed) == ("32", "0.5", 3)


def test_wrong_files_are_named(tmp_path):
    def refused(content, sentence):
        file = tmp_path / "s.yaml"
        file.write_bytes(content)
        with pytest.raises(SettingsError, match=f"s.yaml.*{sentence}"):
            read_settings(file, {})

    refused(b"data: [", "is not valid YAML")
    refused(b"data: \xff\xfe", "is not valid YAML")
    refused(b"- a", "must hold keys and values, got list")
    refused(b"data: scenes\nmetod: x", "unknown setting 'metod'")
    refused(b"", "setting 'data' is needed")
    refused(b"data: scenes\nx: !!python/object:os.system {}", "is not valid YAML")
    with pytest.raises(SettingsError, match="cannot be read"):
        read_settings(tmp_path, {})


def test_assignments_are_yaml():
    values = parse_assignments(["a.b=1e-3", "c=[1, 2]", "d=null", "e=x=y", "f=true"])
    assert values == {"a.b": 0.001, "c": [1, 2], "d": None, "e": "x=y", "f": True}
    with pytest.raises(SettingsError, match="must look like key=value, got '=3'"):
        parse_assignments(["=3"])


def test_how_a_run_is_carried_out_is_no_difference():
    one = Settings(data="scenes")
    other = read_settings(None, {"data": "scenes", "hardware.devices": 2, "options.k": 3})
    assert differences(one, other) == {"options.k": "options.k: None -> 3"}
    assert differences(one, read_settings(None, {"data": "scenes", "hardware.workers": 2})) == {}


def test_every_default_is_plain_data():
    text = yaml.safe_dump(Settings(data="scenes").model_dump(mode="json"))
    assert "python" not in text
