"""Pictures kept in memory for the looks after each epoch. Oracle: scores of the same pictures."""

import io
from dataclasses import replace

import pytest
import torch
from tiny_predictor import make, pictures

from labelwise.errors import ImageError
from labelwise.models.scoring import Scored, score
from labelwise.pictures import BytesImages
from labelwise.pictures.memory import ArrayImages
from labelwise.training.loader import kept_in_memory


def some_bytes(count, broken=()):
    found = []
    for row, picture in enumerate(pictures(count)):
        stream = io.BytesIO()
        picture.save(stream, "PNG")
        whole = stream.getvalue()
        found.append(whole[: len(whole) // 2] if row in broken else whole)
    return found


@pytest.mark.parametrize("crop", [None, 0.875])
def test_kept_images_answer_as_before_and_are_read_once(crop):
    predictor, source = make(), BytesImages(some_bytes(5), list("abcde"))
    predictor.model.backbone.transform = replace(predictor.transform, crop=crop)
    kept = kept_in_memory(source, predictor.transform)
    assert isinstance(kept, ArrayImages)
    assert list(kept.ids) == list("abcde")
    one, other = (Scored.join(list(score(predictor, images))) for images in (source, kept))
    assert torch.equal(one.logits, other.logits)
    assert kept_in_memory(source, predictor.transform, limit=100) is source
    with pytest.raises(ImageError, match=r"b: the image cannot be read"):
        kept_in_memory(BytesImages(some_bytes(2, [1]), ["a", "b"]), predictor.transform)
