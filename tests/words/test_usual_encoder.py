"""The sentence encoder that is fetched where none is named. Oracle: a stub of the hub."""

from hashlib import sha256

import pytest
from huggingface_hub import constants
from stub_hub import SHA, running_hub

from labelwise.errors import SettingsError
from labelwise.photos.words import open_scorer
from labelwise.photos.words import tower_files as towers

FILES = {"onnx/model_quantized.onnx": b"a model", "tokenizer.json": b"its tokens"}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with running_hub() as server:
        server.files[towers.ENCODER] = dict(FILES)
        template = "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.address + template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(towers, "REVISION", SHA)
        hashes = {name: sha256(content).hexdigest() for name, content in FILES.items()}
        monkeypatch.setattr(towers, "ENCODER_FILES", hashes)
        yield server


def test_it_is_fetched_once_and_its_hash_is_checked_each_time(hub):
    folder = towers.usual_encoder()
    assert {name: (folder / name).read_bytes() for name in FILES} == FILES
    asked = len(hub.requests)
    assert asked > 0
    assert towers.usual_encoder() == folder
    assert len(hub.requests) == asked
    (folder / "tokenizer.json").resolve().write_bytes(b"changed")
    with pytest.raises(SettingsError, match=r"must have the SHA-256 .* delete it and try again"):
        towers.usual_encoder()


def test_a_mirror_that_sends_another_file_is_noticed(hub):
    hub.files[towers.ENCODER]["tokenizer.json"] = b"other tokens"
    with pytest.raises(SettingsError, match=r"must have the SHA-256 .*name it with --model"):
        towers.usual_encoder()


def test_without_hub_or_network_one_sentence_says_what_to_copy(hub, monkeypatch):
    del hub.files[towers.ENCODER]["tokenizer.json"]
    sentence = r"Set HF_ENDPOINT to another mirror, or copy onnx/model_quantized.* --model"
    with pytest.raises(SettingsError, match=rf"404.* {sentence}"):
        towers.usual_encoder()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked = len(hub.requests)
    with pytest.raises(SettingsError, match=sentence):
        towers.usual_encoder()
    assert len(hub.requests) == asked


def test_a_folder_of_open_clip_says_which_folder_to_take(tmp_path):
    (tmp_path / "open_clip_config.json").write_text("{}")
    with pytest.raises(SettingsError, match="take the transformers folder of this model"):
        open_scorer(str(tmp_path))
