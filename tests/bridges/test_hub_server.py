"""Models on a hub. Oracles: huggingface_hub's client on a stub server; the model pushed."""

import json

import pytest
from patience import PATIENCE
from search_setup import picture, save_model
from stub_hub import running_hub

from labelwise.errors import SettingsError
from labelwise.learn.predictor import Predictor
from labelwise.models.run_folder import fetched_from_hub, push_to_hub

SCRIPT = """
import json, sys
for name in [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]:
    del sys.modules[name]  # it reads the hub's address when it is imported
from pathlib import Path
from typer.testing import CliRunner
from labelwise import load_model
from labelwise.cli.app import app
from labelwise.errors import LabelwiseError

def run(*words):
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output

source, folder, photo = sys.argv[1:]
said = run("export", source, "--format", "hf", "-o", folder, "--license", "mit",
           "--push", "me/tagger")
told = run("predict", "hf://me/tagger", photo, "-o", folder + ".jsonl")
link = type(load_model("hf://me/tagger@main").link).__name__
errors = []
for work in (
    lambda: load_model("hf://me/other"),
    lambda: load_model("hf://me/tagger@v9"),
    lambda: load_model("hf://strange/model"),
    lambda: run("export", source, "--format", "hf", "-o", folder + "2", "--push", "denied/tagger"),
):
    try:
        work()
    except LabelwiseError as error:
        errors.append(str(error))
print("FOUND" + json.dumps([said, link, errors]))
"""


def test_an_address_is_an_owner_and_a_name(tmp_path):
    for address in ("hf://tagger", "hf://a/b/c", "hf://a/b@", "hf://../x y"):
        with pytest.raises(SettingsError, match="hf://OWNER/NAME"):
            fetched_from_hub(address, ("model.json",))
    with pytest.raises(SettingsError, match="is OWNER/NAME, got 'tagger'"):
        push_to_hub(tmp_path, "tagger")


def test_a_model_goes_to_a_hub_and_comes_back(tmp_path, warm_commands):
    model = save_model(tmp_path / "model")
    photo = picture(tmp_path / "a.png", 3)
    with running_hub() as hub:
        hub.files["strange/model"] = {"config.json": b"{}", "pytorch_model.bin": b"pickle"}
        settings = {"HF_ENDPOINT": hub.address, "HF_TOKEN": hub.token, "HF_HOME": str(tmp_path)}
        waits = ("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT")  # 10 seconds unless given
        settings |= dict.fromkeys(waits, f"{PATIENCE:.0f}") | {"HF_HUB_OFFLINE": "0"}
        settings |= dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1")
        script = tmp_path / "script.py"
        script.write_text(SCRIPT)
        words = [model, tmp_path / "hub", photo]
        done = warm_commands.start(words, tmp_path, script, **settings).wait()
        assert done.returncode == 0, done.stderr
        said, link, errors = json.loads(done.stdout.rpartition("FOUND")[2])
        assert f"pushed to {hub.address}/me/tagger; labelwise reads it as hf://me/tagger" in said
        pushed = hub.files["me/tagger"]
        assert {"model.json", "model.safetensors", "README.md"} <= set(pushed)
        assert b"license: mit" in pushed["README.md"]
        for name, content in pushed.items():
            assert content == (tmp_path / "hub" / name).read_bytes(), name
        assert hub.private["me/tagger"]
        fetched = {path.rpartition("/")[2] for kind, path in hub.requests if kind == "GET"}
        assert "README.md" not in fetched
        assert not any("pytorch_model.bin" in path for _, path in hub.requests)
    (row,) = map(json.loads, (tmp_path / "hub.jsonl").read_text().splitlines())
    own = Predictor.load(model).predict(photo)
    assert set(row["labels"]) == set(own.labels[0])
    assert link == "Sigmoid"
    missing, revision, strange, denied = errors
    assert "hf://me/other cannot be fetched" in missing
    assert "Revision Not Found" in revision
    assert "hf://strange/model has no model.json, so it is not a model of labelwise" in strange
    assert "denied/tagger cannot be written" in denied
    assert "hf upload denied/tagger" in denied
