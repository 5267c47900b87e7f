"""Released Query2Label checkpoints; oracle: their forward pass, from their own tensors by name."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from timm.models.swin_transformer import checkpoint_filter_fn
from torch import nn
from torch.nn.functional import conv2d
from typed import must_run, refused, run

from labelwise.contrib.query2label import head_options, load_query2label
from labelwise.errors import DataError, SettingsError
from labelwise.learn.backbones import create_backbone
from labelwise.learn.heads import sine_position
from labelwise.learn.predictor import Predictor
from labelwise.papers.protocols import EXPERIMENTS, Row
from labelwise.pictures import PictureImages
from labelwise.report.explain import look, overlay
from labelwise.tables import load
from labelwise.tables.load import readers

WIDTH, LABELS, HIDDEN, HEADS = 512, 3, 32, 4


@cache
def resnet18():
    """Return the tensors of a ResNet-18, which tests do not change."""
    torch.manual_seed(0)
    return create_backbone("torchvision/resnet18", image_size=64).network.state_dict()


class Published(nn.Module):
    """The released head, whose tensors have the released names, of torch's own layers."""

    def __init__(self, self_attention):
        super().__init__()
        sizes = (WIDTH, HEADS, HIDDEN, 0.0)
        layers = nn.ModuleList(nn.TransformerDecoderLayer(*sizes) for _ in range(2))
        for number in {0, 1}.difference(self_attention):
            del layers[number].self_attn, layers[number].norm1
        encoder = nn.ModuleDict({"layers": nn.ModuleList([nn.TransformerEncoderLayer(*sizes)])})
        decoder = nn.ModuleDict({"layers": layers, "norm": nn.LayerNorm(WIDTH)})
        self.transformer = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
        self.query_embed = nn.Embedding(LABELS, WIDTH)
        last = {"W": torch.empty(1, LABELS, WIDTH), "b": torch.empty(1, LABELS)}
        self.fc, self.self_attention = nn.ParameterDict(last), self_attention
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.05)

    def forward(self, features):
        """Return the logits of one image's features (D, H, W), by the published forward pass."""
        place = sine_position(WIDTH, *features.shape[1:], features).flatten(1).T
        memory = features.flatten(1).T
        encoder, decoder = self.transformer["encoder"]["layers"][0], self.transformer["decoder"]
        query = memory + place
        memory = encoder.norm1(memory + encoder.self_attn(query, query, memory)[0])
        memory = encoder.norm2(memory + encoder.linear2(encoder.linear1(memory).relu()))
        embed = self.query_embed.weight
        target = torch.zeros_like(embed)
        for number, layer in enumerate(decoder["layers"]):
            if number in self.self_attention:
                query = target + embed
                target = layer.norm1(target + layer.self_attn(query, query, target)[0])
            seen, _ = layer.multihead_attn(target + embed, memory + place, memory)
            target = layer.norm2(target + seen)
            target = layer.norm3(target + layer.linear2(layer.linear1(target).relu()))
        return (self.fc["W"][0] * decoder["norm"](target)).sum(dim=1) + self.fc["b"][0]


def checkpoint(self_attention=(), backbone=None):
    """Return random tensors under the released names, with a ResNet-18 or these of a backbone."""
    torch.manual_seed(0)
    if backbone is None:
        backbone = {f"body.{name}": value for name, value in resnet18().items()}
    state = {f"backbone.0.{n}": v for n, v in backbone.items() if "num_batches" not in n}
    return state | Published(self_attention).state_dict()


def their_logits(state, features, self_attention=()):
    """Return the logits of one image's features (D, H, W), by the published forward pass."""
    head = Published(self_attention)
    head.load_state_dict({name: state[name] for name in head.state_dict()})
    if "input_proj.weight" in state:
        features = conv2d(features[None], state["input_proj.weight"], state["input_proj.bias"])[0]
    return head(features)


KINDS = {(): "none", (0,): "first", (1,): "later", (0, 1): "all"}


@pytest.mark.parametrize("self_attention", [(), (1,)])
def test_a_checkpoint_answers_as_its_own_forward_pass(tmp_path, self_attention):
    found = {one: head_options(checkpoint(one, {}))["self_attention"] for one in KINDS}
    assert found == KINDS  # read off the tensors
    state, path = checkpoint(self_attention), tmp_path / "q2l.safetensors"
    if self_attention:
        save_file(state, path)
    else:
        wrapped = {f"module.{name}": value for name, value in state.items()}
        path = tmp_path / "q2l.pth"
        torch.save({"state_dict": wrapped, "epoch": 79}, path)
    predictor = load_query2label(path, "torchvision/resnet18", "abc", image_size=64)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        features = predictor.model.backbone(images)
        expected = torch.stack([their_logits(state, part, self_attention) for part in features])
    torch.testing.assert_close(predictor.logits(images), expected, rtol=1e-4, atol=1e-4)


def in_the_published_layout(swin):
    """Return a Swin's tensors as its authors name them, with what they store beside weights."""
    state = {}
    for name, value in swin.state_dict().items():
        parts = name.split(".")
        if "downsample" in parts:  # theirs ends a stage, timm's begins the next
            parts[1] = str(int(parts[1]) - 1)
        state[".".join(parts)] = value
        if parts[-1] == "relative_position_bias_table":
            state[".".join([*parts[:-1], "relative_position_index"])] = torch.zeros(4, 4).long()
            state[".".join([*parts[:-2], "attn_mask"])] = torch.zeros(1, 4, 4)
    return state


def test_checkpoints_with_a_swin_are_read(tmp_path):
    name = "swin_tiny_patch4_window7_224"
    torch.manual_seed(1)
    original = create_backbone(name, image_size=64).eval()
    own = original.state_dict()
    if name.startswith("swin"):
        own = in_the_published_layout(original.network)
        again = checkpoint_filter_fn(dict(own), original.network)
        assert again.keys() == original.network.state_dict().keys()  # timm reads this layout too
    state = checkpoint(backbone=own)
    state["input_proj.weight"] = 0.05 * torch.randn(WIDTH, original.channels, 1, 1)
    state["input_proj.bias"] = torch.randn(WIDTH)
    save_file(state, tmp_path / "q2l.safetensors")
    predictor = load_query2label(tmp_path / "q2l.safetensors", name, "abc", image_size=64)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = torch.stack([their_logits(state, part) for part in original(images)])
    torch.testing.assert_close(predictor.logits(images), expected, rtol=1e-4, atol=1e-4)


def test_a_checkpoint_of_another_architecture_names_the_first_mismatch(tmp_path):
    path, state = tmp_path / "q2l.safetensors", checkpoint()

    def mismatch(changed, names="abc", backbone="torchvision/resnet18"):
        save_file(changed, path)
        with pytest.raises(SettingsError) as error:
            load_query2label(path, backbone, names, image_size=64)
        return str(error.value)

    assert "answers 3 labels, got 4 names" in mismatch(state, "abcd", "not made any more")
    wide = {**state, "fc.b": torch.zeros(1, 5)}
    assert "'classifier.bias' must have the shape (3,), got (5,)" in mismatch(wide)
    extra = {**state, "transformer.decoder.gate": torch.zeros(1)}
    assert "has no place for 'transformer.decoder.gate'" in mismatch(extra)
    missing = {n: v for n, v in state.items() if n != "transformer.decoder.layers.1.norm3.bias"}
    assert "no tensor for 'decoder.1.norm_feedforward.bias'" in mismatch(missing)
    deep = {n: v for n, v in state.items() if not n.startswith("backbone.0.body.layer4.1.")}
    assert "such as 'layer4.1.conv1.weight'" in mismatch(deep)
    other = {f"backbone.0.body.{name}": value for name, value in resnet18().items()}
    assert "is not a Query2Label checkpoint" in mismatch(other)
    save_file(state, path)
    predictor = load_query2label(path, "torchvision/resnet18", "abc", image_size=32)
    with pytest.raises(SettingsError, match="makes one place of a picture of 32 pixels"):
        list(look(predictor, PictureImages([np.zeros((40, 40, 3), np.uint8)])))


def test_where_each_label_was_seen_is_drawn_over_the_photo(tmp_path):
    save_file(checkpoint(), tmp_path / "q2l.safetensors")
    predictor = load_query2label(
        tmp_path / "q2l.safetensors", "torchvision/resnet18", ("cat", "<dog>", "bus"), image_size=64
    )
    predictor.save(tmp_path / "model")
    pixels = np.random.default_rng(0).integers(0, 255, (80, 100, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    (tmp_path / "broken.png").write_bytes(b"no picture")
    shown = list(look(Predictor.load(tmp_path / "model"), PictureImages([tmp_path / "photo.png"])))
    assert {one.picture.size for one in shown} == {(64, 64)}
    assert [one.attention.sum() for one in shown] == pytest.approx([1.0] * len(shown), abs=1e-5)
    photos = tmp_path / "photo.png", tmp_path / "broken.png"
    done = run("predict", tmp_path / "model", *photos, "--explain", tmp_path / "why.html")
    assert done.exit_code == 1  # of the broken file
    page = (tmp_path / "why.html").read_text()
    assert page.count("<img") == 1 + len(shown)
    assert "<dog>" not in page
    assert "seen on 1 photo:" in done.stdout


def test_an_overlay_is_light_where_the_query_looks():
    attention = np.zeros((2, 2), np.float32)
    attention[0, 0] = 1.0
    seen = np.asarray(overlay(Image.new("RGB", (40, 40), (200, 200, 200)), attention), float)
    assert seen[2, 2].sum() > 3 * seen[37, 37].sum()
    assert seen[37, 37] == pytest.approx(50, abs=2)  # a quarter of the light


def interpolated_precision(scores, labels):
    """AP of one label as Query2Label's code takes it: the best precision at or after each hit."""
    order = sorted(range(len(scores)), key=lambda row: -scores[row])
    hits, precisions = 0, []
    for place, row in enumerate(order, 1):
        hits += labels[row]
        precisions.append(hits / place)
    best = [max(precisions[place:]) for place in range(len(order))]
    return sum(best[place] for place, row in enumerate(order) if labels[row]) / sum(labels)


def test_released_checkpoints_are_judged_beside_the_printed_figures(tmp_path, monkeypatch):
    table = EXPERIMENTS["004-table1"]
    small = Row({"backbone": "torchvision/resnet18", "image_size": 64})
    monkeypatch.setitem(EXPERIMENTS, "004-table1", replace(table, rows={"resnet101-448": small}))
    state, random = checkpoint(), np.random.default_rng(0)
    save_file(state, tmp_path / "q2l.safetensors")
    truth = random.random((8, LABELS)) < 0.5
    truth[0], truth[1] = True, False
    lines = ["path,labels,split"]
    for row, labels in enumerate(truth):
        picture = random.integers(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(picture).save(tmp_path / f"{row}.png")
        lines.append(f"{row}.png,{'|'.join(np.array(list('abc'))[labels])},test")
    (tmp_path / "table.csv").write_text("\n".join(lines))
    words = [
        "papers",
        "run",
        "004-table1",
        "--source",
        tmp_path / "table.csv",
        "-o",
        tmp_path / "out",
    ]
    words += ["--judge", f"resnet101-448={tmp_path / 'q2l.safetensors'}"]
    must_run(*words)
    predictor = load_query2label(
        tmp_path / "q2l.safetensors", "torchvision/resnet18", "abc", image_size=64
    )
    pictures = PictureImages([tmp_path / f"{row}.png" for row in range(8)])
    inputs = torch.stack([predictor.transform(pictures.read(row)) for row in range(8)])
    with torch.no_grad():
        features = predictor.model.backbone(inputs)
        logits = torch.stack([their_logits(state, part) for part in features]).tolist()
    columns = zip(*logits, strict=True), truth.T.tolist()
    found = [interpolated_precision(*column) for column in zip(*columns, strict=True)]
    row = (tmp_path / "out" / "table.md").read_text().splitlines()[-1]
    assert row == f"| resnet101-448 | {100 * sum(found) / LABELS:.1f} | 84.9 | 8 |"
    assert "--quick does not apply: checkpoints are judged as they are" in refused(
        *words, "--quick"
    )


# Readers by entry point. Oracle: packages as pip would install them.

MODULE = """
from labelwise.tables import LabelTable, Reader, as_images

def read(path, *, shout: bool = False):
    words = path.read_text().split()
    names = [word.upper() if shout else word for word in sorted(set(words))]
    labels = [[word.lower() == name.lower() for name in names] for word in words]
    return LabelTable.from_arrays(names, as_images([b""] * len(words)), labels)

BIRDS = Reader("birds", read, "one word a line", (".birds",), ("*.birds",))
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Return a function that installs a package with readers."""

    def install(points, module=MODULE):
        (tmp_path / "site").mkdir(exist_ok=True)
        (tmp_path / "site" / "birdwatch.py").write_text(module)
        info = tmp_path / "site" / "birdwatch-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: birdwatch\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[labelwise.readers]\n{points}\n")
        monkeypatch.syspath_prepend(tmp_path / "site")
        monkeypatch.delitem(__import__("sys").modules, "birdwatch", raising=False)
        readers.cache_clear()

    yield install
    readers.cache_clear()


def test_a_package_brings_a_reader(installed, tmp_path):
    installed("birds = birdwatch:BIRDS")
    (tmp_path / "list.birds").write_text("owl\njay\nowl\n")
    assert load(tmp_path / "list.birds").space.names == ("jay", "owl")
    assert load(f"birds:{tmp_path / 'list.birds'}", shout=True).space.names == ("JAY", "OWL")
    assert list(readers())[-2:] == ["birds", "folder"]
    before = readers()["coco"]  # no package takes the name of ours
    installed("coco = birdwatch:BIRDS\ncvat = birdwatch:BIRDS")
    assert readers()["coco"] == before
    assert readers()["cvat"].suffixes == (".xml",)


@pytest.mark.parametrize(
    ("points", "module", "reason"),
    [
        ("birds = birdwatch:GONE", MODULE, "has no attribute 'GONE'"),
        ("birds = birdwatch:BIRDS", "raise RuntimeError('no binoculars')", "no binoculars"),
        (
            "birds = birdwatch:read",
            MODULE,
            "it is a function, and must be a labelwise.tables.Reader",
        ),
    ],
)
def test_a_reader_that_cannot_be_loaded_disturbs_no_other(
    installed, tmp_path, points, module, reason
):
    installed(points, module)
    (tmp_path / "t.csv").write_text("path,labels\na.jpg,x\n")
    assert len(load(tmp_path / "t.csv", check_files=False)) == 1
    with pytest.raises(DataError, match=f"the reader 'birds' .* cannot be used: .*{reason}"):
        load(f"birds:{tmp_path / 't.csv'}")
