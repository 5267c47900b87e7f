"""Files that models and runs keep, forged by a stranger: refused in a sentence, or made anew.

The oracle is the error: each of these ended in an internal one, or in answers that are not numbers.
"""

import io
import json
import logging
from contextlib import suppress

import numpy as np
import pytest
import torch
from band_files import dicom, npy, tiff
from PIL import Image
from safetensors.torch import load, save
from tifffile import TiffFile
from tiny_clip import clip_folder

from labelwise.errors import CheckpointError, DataError, ImageError, LabelwiseError, SettingsError
from labelwise.photos.metadata import PhotoFacts, read_facts
from labelwise.photos.shift import HeldOutPictures
from labelwise.photos.words.text_image import TextHead
from labelwise.photos.words.tower_files import read_towers
from labelwise.pictures import multiband as cubes
from labelwise.pictures.multiband import open_cube
from labelwise.system.tensors import save_tensors
from labelwise.training.checkpoint import load_latest
from labelwise.training.checkpoint import save as save_checkpoint

PICTURES = {
    "rows": torch.arange(4),
    "features": torch.ones(4, 3, dtype=torch.float16),
    "looks": torch.ones(4, 2, dtype=torch.float16),
    "fitted": torch.ones(5, 3, dtype=torch.float16),
    "weights": torch.full((32,), 7, dtype=torch.uint8),
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rows", torch.tensor([0, 1, 2, -1])),
        ("rows", torch.arange(4).double()),
        ("rows", torch.arange(3)),
        ("features", torch.ones(4, 3, dtype=torch.bfloat16)),
        ("features", torch.ones(4, dtype=torch.float16)),
        ("looks", torch.ones(3, 2, dtype=torch.float16)),
        ("fitted", torch.ones(5, 2, dtype=torch.float16)),
        ("fitted", torch.full((5, 3), torch.nan).half()),
        ("weights", torch.full((32,), 300)),
        ("weights", torch.ones(2, 2)),
        ("weights", torch.ones(3, dtype=torch.uint8)),
    ],
)
def test_held_out_pictures_that_do_not_fit_are_made_anew(tmp_path, name, value):
    save_tensors(tmp_path / "p", PICTURES)
    assert HeldOutPictures.load(tmp_path / "p") is not None
    save_tensors(tmp_path / "p", PICTURES | {name: value})
    assert HeldOutPictures.load(tmp_path / "p") is None


@pytest.mark.parametrize(
    "change",
    [
        {"weight": torch.ones(3, 2, 2)},
        {"weight": torch.ones(3, 2, dtype=torch.int64)},
        {"weight": torch.full((3, 2), torch.nan)},
        {"bias": torch.ones(3)},
        {"bias": torch.tensor(1.0)},
    ],
)
def test_a_head_of_words_that_is_none(tmp_path, change):
    good = {"weight": torch.ones(3, 2), "bias": torch.zeros(2)}
    save_tensors(tmp_path / "h", good)
    assert TextHead.load(tmp_path / "h").scores(torch.ones(1, 3)).tolist() == [[3, 3]]
    save_tensors(tmp_path / "h", good | change)
    with pytest.raises(CheckpointError, match="must hold a weight"):
        TextHead.load(tmp_path / "h")


def clip(folder, state=None, **changes):
    """Write the model; entries of its two JSON files may be others, and tensors of its weights."""
    for name, content in clip_folder().items():
        if name.endswith("config.json"):
            content = json.dumps(json.loads(content) | changes).encode()
        if name == "model.safetensors":
            content = save(load(content) | (state or {}))
        (folder / name).write_bytes(content)
    return folder


def test_the_model_is_read_as_it_is(tmp_path):
    towers = read_towers(clip(tmp_path))
    ids = torch.tensor([towers.tokens.of("a dog")])
    assert towers.text(ids).isfinite().all()
    assert towers.scale == pytest.approx(np.e)


@pytest.mark.parametrize(
    "changes",
    [
        {"vision_config": "x"},
        {"vision_config": {"num_attention_heads": "many"}},
        {"vision_config": {"num_attention_heads": 0}},
        {"text_config": {"num_attention_heads": 3}},
        {"text_config": {"num_attention_heads": 2, "layer_norm_eps": "nan"}},
        {"text_config": {"num_attention_heads": 2, "layer_norm_eps": -1}},
        {"image_mean": 0.5},
        {"image_std": [0.5, 0.5, []]},
        {"image_std": [0, 0, 0]},
        {"size": {"shortest_edge": 0}},
        {"size": {"shortest_edge": 1e999}},
        {"state": {"visual_projection.weight": torch.full((8, 8), torch.nan)}},
        {"state": {"vision_model.embeddings.patch_embedding.weight": torch.ones(3)}},
        {"state": {"logit_scale": torch.ones(2)}},
        {"state": {"logit_scale": torch.tensor(1e9)}},
    ],
)
def test_a_model_of_words_that_a_stranger_changed(tmp_path, changes):
    clip(tmp_path, **changes)
    with pytest.raises(SettingsError) as caught:
        read_towers(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_that_fails_when_it_is_used(tmp_path):
    clip(tmp_path)
    place = tmp_path / "tokenizer.json"
    facts = json.loads(place.read_text())
    facts["model"]["unk_token"] = "nowhere"
    place.write_text(json.dumps(facts))
    tokens = read_towers(tmp_path).tokens
    with pytest.raises(DataError, match="tokenizer cannot read 'a zebra'"):
        tokens.of("a zebra")


def test_a_token_beyond_what_the_model_knows(tmp_path):
    clip(tmp_path)
    place = tmp_path / "tokenizer.json"
    facts = json.loads(place.read_text())
    facts["model"]["vocab"]["dog"] = 6  # of six, counted from 0
    place.write_text(json.dumps(facts))
    with pytest.raises(SettingsError, match="has 7 tokens and the model knows 6"):
        read_towers(tmp_path)


def test_a_cube_of_negative_sides(tmp_path):
    content = npy(np.zeros((4, 1), np.uint8))
    assert open_cube(content, "a.npy").values.shape == (4, 1, 1)
    with pytest.raises(ImageError, match="a cube must be"):
        open_cube(content.replace(b"(4, 1)", b"(-1,1)"), "a.npy")


def test_a_syntax_that_the_standard_does_not_name_is_not_told():
    content = dicom(np.zeros((4, 4), np.uint16))
    syntax = content.replace(b"1.2.840.10008.1.2.1", b"1.2.840.10008.\n.2.1")
    with pytest.raises(ImageError, match=r"its pixels \(an unknown syntax\) are not read"):
        open_cube(syntax, "a.dcm")


def test_a_damaged_tiff_does_not_write_on_the_terminal(capfd, monkeypatch):
    for name in (None, "tifffile"):  # as in a program that has set up no log
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])
    cubes._keep_quiet.cache_clear()
    content = bytearray(tiff(np.zeros((4, 4), np.uint16)))
    content[48:50] = bytes(2)  # the type of a tag
    with TiffFile(io.BytesIO(content)) as file:
        assert file.pages
    assert "invalid data type" in capfd.readouterr().err
    with suppress(ImageError):
        open_cube(bytes(content), "a.tif")
    assert capfd.readouterr() == ("", "")


def test_a_header_of_more_pixels_than_there_can_be_says_nothing(tmp_path):
    place = tmp_path / "a.webp"
    exif = Image.Exif()
    exif[0x010F] = "Maker"
    Image.new("RGB", (8, 6)).save(place, exif=exif)
    content = bytearray(place.read_bytes())
    assert read_facts(bytes(content)).camera == "Maker"
    at = content.index(b"VP8X") + 12
    content[at : at + 6] = b"\xff" * 6  # 2^24 pixels each way
    assert read_facts(bytes(content)) == PhotoFacts()


def test_a_checkpoint_whose_sum_was_blanked_is_damaged(tmp_path):
    save_checkpoint(tmp_path, {"w": torch.ones(1)}, {"step": 1, "best_step": None})
    (place,) = tmp_path.glob("*/state.json")
    facts = json.loads(place.read_text())
    place.write_text(json.dumps(facts | {"step": "*", "sha256": None}))
    with pytest.raises(LabelwiseError, match="it is not what was written"):
        load_latest(tmp_path)
