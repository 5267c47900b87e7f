"""The method ``auto`` and a shifted share of images without labels, in whole runs."""

import numpy as np
import pytest
import torch
from tiny_run import tiny_settings, tiny_table

from labelwise.data import FeatureRows, LabelTable
from labelwise.data.observe import single_positive
from labelwise.errors import SettingsError
from labelwise.predictor import Predictor
from labelwise.training.choose import choose_method
from labelwise.training.run import train


def table(labels, observed=None) -> LabelTable:
    labels = np.array(labels)
    features = np.zeros((len(labels), 2), np.float32)
    return LabelTable.from_arrays(list("abc"), FeatureRows(features), labels, observed)


@pytest.mark.parametrize(
    ("labels", "observed", "method"),
    [
        ([[1, 0, 0], [0, 0, 1]], None, "softmax"),
        ([[1, 0, 0], [0, 0, 0]], None, "softmax-or-none"),
        ([[1, 1, 0], [0, 0, 0]], None, "bce"),
        ([[1, 0, 0], [0, 1, 0]], [[1, 0, 0], [0, 1, 0]], "wan"),
        ([[1, 0, 0], [0, 1, 0]], [[1, 0, 0], [0, 1, 1]], "bce"),
    ],
)
def test_the_labels_choose_the_method(labels, observed, method):
    known = None if observed is None else np.array(observed, bool)
    name, reason = choose_method(table(labels, known))
    assert name == method
    assert reason


def test_a_run_records_what_was_chosen_and_goes_on_with_it(tmp_path):
    settings = tiny_settings(recipe__epochs=1)
    assert settings.method == "auto"
    train(settings, tmp_path / "full", table=tiny_table())
    assert Predictor.load(tmp_path / "full").method == "bce"
    assert train(settings, tmp_path / "full", table=tiny_table()).was_finished
    train(settings, tmp_path / "single", table=single_positive(tiny_table()))
    assert Predictor.load(tmp_path / "single").method == "wan"


def test_a_run_answers_for_the_share_of_empty_images_it_was_told(tmp_path):
    plain = tiny_settings(recipe__epochs=1, method="bce")
    train(plain, tmp_path / "plain", table=tiny_table())
    run = train(
        tiny_settings(recipe__epochs=1, method="bce", zero_share=0.9),
        tmp_path / "shifted",
        table=tiny_table(),
    )
    one, other = (Predictor.load(tmp_path / name) for name in ("plain", "shifted"))
    features = torch.from_numpy(tiny_table().images.features)
    before, after = (p.answers(p.logits(features)).probs for p in (one, other))
    assert (after < before).all()
    assert "shifted to 90% images without labels" in str(run.evaluation)


def test_a_share_needs_images_without_labels(tmp_path):
    always = tiny_table()
    labels, _ = always.targets()
    full = LabelTable.from_arrays(
        list("abcd"), always.images, np.maximum(labels, np.eye(4)[0]), split=always.split
    )
    with pytest.raises(SettingsError, match="zero_share cannot be used with val: images with"):
        train(tiny_settings(recipe__epochs=1, method="bce", zero_share=0.5), tmp_path, table=full)
