"""Runs that begin where an earlier one ended. A recipe without a step must change nothing."""

import shutil

import numpy as np
import pytest
import torch
from tiny_run import Hearing, tiny_settings, tiny_table

from labelwise.data import LabelTable
from labelwise.errors import LabelwiseError, SettingsError
from labelwise.files import load_tensors
from labelwise.objectives import ROLE
from labelwise.training import checkpoint
from labelwise.training.progress import Silent
from labelwise.training.run import train

STILL = {"recipe__optimizer__lr": 0.0, "recipe__epochs": 1, "recipe__keep": "last"}


class Stopping(Silent):
    """Stops the run after its second epoch."""

    def epoch(self, record, epochs):
        if record["epoch"] == 2:
            raise KeyboardInterrupt


@pytest.fixture
def earlier(tmp_path):
    train(tiny_settings(), tmp_path / "earlier", table=tiny_table())
    return tmp_path / "earlier"


def assert_same_model(one, other):
    first, second = (load_tensors(folder / "model.safetensors") for folder in (one, other))
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name])


def estimates(folder):
    tensors, _ = checkpoint.load_latest(folder / "checkpoint", "objective")
    objective = ROLE(64, 4, 1.5)
    objective.load_state_dict(tensors)
    return objective.estimates(torch.arange(64))


def test_backbone_and_head_go_on_under_another_method(earlier, tmp_path):
    watch = Hearing()
    later = tiny_settings(start=str(earlier), method="asl", **STILL)
    train(later, tmp_path / "later", table=tiny_table(), watch=watch)
    assert_same_model(earlier, tmp_path / "later")
    assert f"starting from {earlier}" in watch.said


def test_a_stopped_run_goes_on_from_its_own_checkpoint(earlier, tmp_path):
    settings = tiny_settings(start=str(earlier), recipe__save_seconds=0)
    train(settings, tmp_path / "straight", table=tiny_table())
    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path / "stopped", table=tiny_table(), watch=Stopping())
    shutil.move(earlier, tmp_path / "gone")
    train(settings, tmp_path / "stopped", table=tiny_table())
    assert_same_model(tmp_path / "straight", tmp_path / "stopped")
    with pytest.raises(LabelwiseError, match=r"earlier/model\.json"):
        train(settings, tmp_path / "stopped", table=tiny_table(), fresh=True)


@pytest.mark.parametrize("same", [True, False])
def test_estimates_go_on_with_the_images_they_are_of(tmp_path, same):
    role = {"method": "role", "options": {"k": 1.5}}
    train(tiny_settings(**role), tmp_path / "earlier", table=tiny_table())
    watch, table = Hearing(), tiny_table() if same else tiny_table(seed=1)
    settings = tiny_settings(**role, start=str(tmp_path / "earlier"), **STILL)
    train(settings, tmp_path / "later", table=table, watch=watch)
    assert any("with its estimates of the labels" in text for text in watch.said) == same
    first, second = (estimates(tmp_path / name) for name in ("earlier", "later"))
    assert torch.allclose(first, second, atol=1e-5) == same
    assert first.std() > 0.1


def test_other_labels_and_other_heads_are_refused_before_anything_is_written(earlier, tmp_path):
    place, table = tmp_path / "later", tiny_table()
    settings = tiny_settings(start=str(earlier))
    labels, _ = table.targets()
    renamed = LabelTable.from_arrays(
        ("a", "b", "c", "z"), table.images, labels, split=np.asarray(table.split)
    )
    with pytest.raises(SettingsError, match="has other labels; take its backbone alone with"):
        train(settings, place, table=renamed)
    with pytest.raises(SettingsError, match=r"has another model \(identity, head 'linear'\)"):
        train(
            tiny_settings(start=str(earlier), method="average-k", options={"k": 2}),
            place,
            table=table,
        )
    with pytest.raises(LabelwiseError, match="nowhere"):
        train(tiny_settings(start="nowhere"), place, table=table)
    assert not place.exists()
