"""All but training a network runs where torch cannot be imported, which a hook refuses."""

import csv
import json
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from typed import must_run
from words_setup import save_encoder

from labelwise.eyes import Eye
from labelwise.learn.predictor import Predictor
from labelwise.metrics import average_precision
from labelwise.models import RunFolder, load_model
from labelwise.predictions import Predictions

BLOCKED = """
import sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "torchvision", "timm", "safetensors"}:
            raise ModuleNotFoundError(f"{name} is refused here", name=name)

sys.meta_path.insert(0, Refused())
"""
RUN = """
import json
from labelwise.cli.app import main

for words in json.loads(sys.argv[1]):
    sys.argv = ["labelwise", *words]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise
"""
RAY = "import labelwise.shards.ray_cluster, ray\n"
NAMES = ("dog", "cat", "boat")


def world(rows=300):
    random = np.random.default_rng(0)
    odds = random.normal(-1, 1.5, (rows, len(NAMES)))
    labels = random.random(odds.shape) < 1 / (1 + np.exp(-odds))
    return [f"photo-{row}" for row in range(rows)], 2 * odds, labels.astype(int)


def save_scores(path):
    ids, logits, labels = world()
    header = ["id", *(f"score:{name}" for name in NAMES), *(f"label:{name}" for name in NAMES)]
    columns = [ids, *logits.T.tolist(), *labels.T.tolist()]
    if path.suffix == ".npz":
        np.savez(path, ids=np.array(ids), scores=logits, labels=labels, names=np.array(NAMES))
    elif path.suffix == ".csv":
        with path.open("w", newline="") as stream:
            csv.writer(stream).writerows([header, *zip(*columns, strict=True)])
    else:
        pq.write_table(pa.table(dict(zip(header, columns, strict=True))), path)


LIBRARY = """
import numpy as np
import labelwise
from labelwise import calibrate, decide
from labelwise.links import Sigmoid

random = np.random.default_rng(0)
odds = random.normal(-1, 1.5, (200, 3))
labels = (random.random(odds.shape) < 1 / (1 + np.exp(-odds))).astype(np.uint8)
ids = [str(row) for row in range(200)]
rows = labelwise.Predictions(ids, 2 * odds, labels, None, ("a", "b", "c"), "test", Sigmoid())
choice = calibrate.auto(rows.logits, rows.labels, rows.link)
rule = decide.best_f(choice.link(rows.logits), rows.labels)
found = labelwise.evaluate(rows, rows.link, rule, calibrated=choice.link)
points = labelwise.retrieval_map(*rows.log_probs(), rows.labels)
assert found.after.log_loss < found.before.log_loss
assert len(points) > 0
assert "torch" not in sys.modules
"""


def test_scores_are_evaluated_calibrated_and_decided_by_verbs_and_by_the_library(tmp_path):
    made = [tmp_path / name for name in ("evaluated", "calibrated", "thresholds.json")]
    verbs = (
        "evaluate SCORES.csv",
        "calibrate SCORES.npz",
        "calibrate SCORES.parquet --rule best-f",
    )
    commands = []
    for verb, out in zip(verbs, made, strict=True):
        words = verb.replace("SCORES", str(tmp_path / "scores")).split()
        save_scores(Path(words[1]))
        commands.append([*words, "--scores", "logits", "--out", str(out)])
    program = [sys.executable, "-W", "error", "-c", BLOCKED + RUN + LIBRARY, json.dumps(commands)]
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    evaluated, calibrated, thresholds = made
    assert json.loads((evaluated / "evaluation.json").read_text())["data"]["rows"] == 300
    assert (calibrated / "link.json").is_file()
    assert set(json.loads(thresholds.read_text())["thresholds"]) == set(NAMES)


COLOURS = {"red": (200, 40, 40), "blue": (40, 40, 200)}


def save_photos(folder, count=24):
    """Write photos that are red, blue, both or grey, and the table of their labels."""
    random, rows = np.random.default_rng(0), ["image,labels,split"]
    (folder / "photos").mkdir()
    for number in range(count):
        names = [name for bit, name in enumerate(COLOURS) if number >> bit & 1]
        pixels = random.integers(0, 60, (80, 96, 3)) + 90
        for place, name in enumerate(names):
            half = slice(0, 40) if place == 0 else slice(40, 80)
            pixels[half] = np.array(COLOURS[name]) + random.integers(0, 40, (40, 96, 3))
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"photos/{number:02d}.png")
        split = "test" if number % 4 == number // 4 % 4 else "train"
        rows.append(f"photos/{number:02d}.png,{'|'.join(names)},{split}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")


def test_photos_are_learned_searched_measured_and_exported_without_torch(tmp_path):
    save_photos(tmp_path)
    commands = """train labels.csv -o run
        predict run photos -o predicted.csv
        index photos --model run -o index
        search index red
        count index red
        evaluate run --data labels.csv
        report run
        export run -o model.onnx --with-runtime
        predict model.onnx photos -o exported.csv
        predict run photos -o shards/
        tag index --xmp --dry-run
        label next index -n 3
        audit index red
        audit labels.csv --photos . --csv questions.csv
        data review run -o review.csv"""
    without_torch(commands, tmp_path)
    assert not (tmp_path / "run/model.safetensors").exists()
    # A row that stood in the pool is judged out of fold, and the test rows by the final head.
    pool, test = (
        Predictions.load(tmp_path / f"run/predictions/{s}.parquet") for s in ("val", "test")
    )
    assert (len(pool.ids), len(test.ids)) == (18, 6)
    assert not {*pool.ids} & {*test.ids}
    with (tmp_path / "predicted.csv").open() as stream:
        answers = list(csv.DictReader(stream))
    with (tmp_path / "exported.csv").open() as stream:
        assert list(csv.DictReader(stream)) == answers
    assert len(answers) == 24
    shards = pq.read_table(sorted((tmp_path / "shards").glob("*.parquet"))[0])
    assert shards.num_rows == 24
    # Torch, which a GPU computes with, has the eye's own rounded weights.
    photos = sorted((tmp_path / "photos").iterdir())
    by_torch, by_eye = (
        model.predict(photos).logits
        for model in (Predictor.load(tmp_path / "run"), load_model(tmp_path / "run"))
    )
    np.testing.assert_allclose(by_torch, by_eye, rtol=0, atol=1e-4)
    answered = served(tmp_path / "run", tmp_path / "photos/03.png")
    assert {*answered["decided"]} == {*COLOURS}


def test_words_are_learned_and_texts_searched_without_torch(tmp_path):
    """Oracles: the same run by torch, and the answers themselves."""
    save_photos(tmp_path, 48)
    save_encoder(tmp_path / "encoder")
    (tmp_path / "words.txt").write_text("red\nblue\ncrimson\n")
    words = "train photos --words words.txt -m encoder -o"
    commands = f"""{words} guess
        {words} run --answers labels.csv
        index photos --model run -o index
        search index --text sky -n 3
        predict run photos -o predicted.csv"""
    without_torch(commands, tmp_path)
    photos = sorted((tmp_path / "photos").iterdir())
    for run in ("guess", "run"):
        by_torch, by_eye = (
            model.predict(photos).logits
            for model in (Predictor.load(tmp_path / run), load_model(tmp_path / run))
        )
        np.testing.assert_allclose(by_torch, by_eye, rtol=0, atol=2e-3 * np.ptp(by_eye))
    spec = RunFolder(tmp_path / "run").spec
    assert spec.unanswered == ("crimson",)
    held = Predictions.load(tmp_path / "run/predictions/test.parquet")
    assert spec.answers == 48 - len(held.ids)
    found = average_precision(held.logits[:, :2], held.labels[:, :2] > 0.5, None).value
    assert found > 0.9
    guide = "from labelwise.base.progress import Silent\nfrom pathlib import Path\n"
    guide += "from labelwise.photos.words import WordsLearner\n"
    guide += "made = WordsLearner(Path('run'), sorted(Path('photos').iterdir()), watch=Silent())\n"
    guide += "assert made.learnt({}).probs.shape == (48, 3) and 'torch' not in sys.modules"
    program = [sys.executable, "-W", "error", "-c", BLOCKED + guide]
    done = subprocess.run(program, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_network_of_timm_is_an_eye_once_and_then_needs_no_torch(tmp_path, monkeypatch):
    """Torch with the same weights is the oracle of the file and of the cached features."""
    save_photos(tmp_path)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(3)
    whole = timm.create_model("test_resnet", num_classes=5).eval()
    save_file(whole.state_dict(), "weights.safetensors")
    weights = ("--weights", "weights.safetensors")
    must_run("export", "test_resnet", "--format", "eye", "-o", "my-eye.onnx", *weights)
    eye = Eye.open(tmp_path / "my-eye.onnx")
    assert eye.outputs == {"means": whole.num_features, "maxima": whole.num_features, "classes": 5}
    photos = [Image.open(path) for path in sorted((tmp_path / "photos").iterdir())[:3]]
    pixels = np.stack([np.asarray(eye.transform.resize(photo)) for photo in photos])
    pixels = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
    inputs = eye.transform.normalise(torch.from_numpy(pixels))
    with torch.no_grad():
        maps, classes = whole.forward_features(inputs), whole(inputs)
    seen = eye.see(pixels)
    np.testing.assert_allclose(seen["means"], maps.mean(dim=(2, 3)), rtol=0, atol=1e-4)
    np.testing.assert_allclose(seen["maxima"], maps.amax(dim=(2, 3)), rtol=0, atol=1e-3)
    np.testing.assert_allclose(seen["classes"], classes, rtol=0, atol=1e-3)

    frozen = "train labels.csv --features test_resnet --weights weights.safetensors -o"
    must_run(*frozen.split(), "with")
    commands = f"""train labels.csv --backbone my-eye.onnx -o run
        predict run photos -o predicted.csv
        index photos --model run -o index
        {frozen} without"""
    without_torch(commands, tmp_path)
    with_torch, *others = (
        Predictions.load(tmp_path / run / "predictions/test.parquet").logits
        for run in ("with", "without", "run")
    )
    for logits in others:
        np.testing.assert_allclose(logits, with_torch, rtol=0, atol=1e-5)


def without_torch(commands, folder):
    words = json.dumps([line.split() for line in commands.splitlines()])
    program = BLOCKED + RUN + RAY + "assert 'torch' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, words],
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def served(run, photo):
    """Return what a server of a run, started where there is no torch, answers about a photo."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = json.dumps([["serve", str(run), "--port", port]])
    program = [sys.executable, "-c", BLOCKED + RUN, words]
    address, kind = f"http://127.0.0.1:{port}/api/v1/predict", {"content-type": "image/png"}
    with subprocess.Popen(program, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as server:
        try:
            while server.poll() is None:
                request = Request(address, photo.read_bytes(), kind)
                with suppress(URLError), urlopen(request) as reply:
                    return json.load(reply)["results"][0]
                time.sleep(0.05)
        finally:
            server.terminate()
        raise AssertionError(server.stderr.read().decode()[-2000:])
