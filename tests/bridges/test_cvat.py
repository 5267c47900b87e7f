"""CVAT's auto-annotation. Oracles: cvat-sdk's own driver and its checks; the model's answers."""

from types import SimpleNamespace

import pytest
from tiny_predictor import NAMES, make, pictures

from labelwise.contrib import cvat
from labelwise.learn.predictor import Predictor

pytest.importorskip("cvat_sdk", reason="cvat-sdk is not installed")
TASK_IDS = {name: 100 + number for number, name in enumerate(reversed(NAMES))}


class Task:
    """The photos of a task as cvat-sdk hands them to a function, with labels of its own ids."""

    def __init__(self, client, task_id, load_annotations):
        from cvat_sdk import models

        self.labels = [
            models.Label(name=name, id=own, type="any", attributes=[], sublabels=[])
            for name, own in TASK_IDS.items()
        ]
        self.samples = [
            SimpleNamespace(
                frame_name=f"{number}.jpg",
                frame_index=10 * number,
                media=SimpleNamespace(load_image=lambda photo=photo: photo),
            )
            for number, photo in enumerate(pictures(6))
        ]


def annotate(function, monkeypatch, **options):
    """Return what cvat-sdk's driver uploads: sets of (frame, label of the task)."""
    from cvat_sdk.auto_annotation import annotate_task, driver

    sent = []
    api = SimpleNamespace(
        partial_update_annotations=lambda action, task, patched_labeled_data_request: sent.append(
            (action, task, patched_labeled_data_request)
        )
    )
    log = SimpleNamespace(info=lambda *_: None)
    client = SimpleNamespace(logger=log, tasks=SimpleNamespace(api=api))
    monkeypatch.setattr(driver, "TaskDataset", Task)
    annotate_task(client, 7, function, **options)
    ((action, task, data),) = sent
    assert (action, task, data.shapes) == ("create", 7, [])
    return {(tag.frame, tag.label_id) for tag in data.tags}


def test_photos_get_the_tags_that_the_model_decides_or_surer_ones(tmp_path, monkeypatch):
    make().save(tmp_path / "model")
    own = Predictor.load(tmp_path / "model").predict(pictures(6))
    decided = {(10 * row, TASK_IDS[name]) for row, names in enumerate(own.labels) for name in names}
    level = float(own.probs.median()) + 1e-4  # of calibrated probabilities
    above = (own.probs >= level).nonzero().tolist()
    sure = {(10 * row, TASK_IDS[NAMES[column]]) for row, column in above}
    function = cvat.create(model=str(tmp_path / "model"))
    for expected, options in ((decided, {}), (sure, {"conf_threshold": level})):
        assert 0 < len(expected) < 6 * len(NAMES)
        assert annotate(function, monkeypatch, **options) == expected
